"""What a tensor's name says: its layer, its module kind, whether it is an edit target.

Read from the names' form alone, so that a new architecture needs no table here.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

_NUMBER = re.compile(r"[0-9]{1,9}")
_PARAMETER = {"weight", "bias"}
_DECODERS = ("model.", "transformer.")
_EXPERTS = re.compile(r"(^|_)experts?$")
# Matrices inside a layer that are no projection of attention or MLP.
_ROUTER = re.compile(r"\.(gate|router(\.layer)?|wg)\.(weight|bias|e_score_correction_bias)$")
_NOT_A_PROJECTION = re.compile(
    r"norm|embed|conv|router|rotary|position|relative_attention_bias|lora_|(^|\.)(ln|wte|wpe|gate"
    r"|\w+_gate|\w*bias|scale)\b|(^|\.)ln_",
    re.IGNORECASE,
)


def layer_index(name: str) -> int | None:
    """The number of the layer a tensor belongs to; None outside the layers.

    The first number in the name that does not count experts:

    >>> layer_index("model.layers.3.mlp.experts.5.up_proj.weight"), layer_index("h.0.ln_1.weight")
    (3, 0)
    >>> layer_index("lm_head.weight") is None
    True
    """
    found = split_layer(name)
    return None if found is None else found[1]


@lru_cache(2**17)
def split_layer(name: str) -> tuple[str, int, str] | None:
    """(what stands before the layer's number, the number, the rest); None outside the layers.

    >>> split_layer("model.layers.3.mlp.up_proj.weight")
    ('model.layers.', 3, '.mlp.up_proj.weight')
    """
    at = 0
    parts = name.split(".")
    for before, part in pairwise(parts):
        at += len(before) + 1
        if _NUMBER.fullmatch(part) and not _EXPERTS.search(before):
            return name[:at], int(part), name[at + len(part) :]
    return None


@lru_cache(2**17)
def module_kind(name: str) -> str:
    """The module's own name, without its place: `q_proj`, `input_layernorm`, `embed_tokens`.

    >>> module_kind("model.layers.3.self_attn.q_proj.weight")
    'q_proj'
    >>> module_kind("model.layers.3.mlp.experts.gate_up_proj")
    'gate_up_proj'
    """
    parts = [part for part in name.split(".") if not _NUMBER.fullmatch(part)]
    if len(parts) > 1 and parts[-1] in _PARAMETER:
        parts.pop()
    return parts[-1] if parts else name


def is_projection(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a projection of attention or MLP: a matrix named `….weight` inside a
    numbered layer, or a packed stack (E, m, n) of experts; no norm, embedding, router, convolution
    or bias."""
    if layer_index(name) is None or len(shape) not in (2, 3) or min(shape) < 1:
        return False
    if min(shape[-2:]) < 2 or _NOT_A_PROJECTION.search(name):
        return False
    return name.endswith(".weight") if len(shape) == 2 else is_expert_stack(name, shape)


def is_router(name: str) -> bool:
    """Whether a tensor of a layer chooses experts.

    >>> is_router("layers.0.mlp.gate.weight"), is_router("layers.0.mlp.gate_proj.weight")
    (True, False)
    """
    return layer_index(name) is not None and _ROUTER.search(name) is not None


def match_names(base: Iterable[str], other: Mapping[str, object] | set[str]) -> dict[str, str]:
    """{base name: other's name} for every tensor both have.

    Names agree as they are, or else across one `model.` prefix (`transformer.` in GPT-2's family)
    that one side has and the other lacks: a bare decoder saved without its head, or with it.
    """
    matches = ((name, match_name(name, other)) for name in base)
    return {name: match for name, match in matches if match is not None}


def match_name(name: str, other: Mapping[str, object] | set[str]) -> str | None:
    """The name that one tensor has among others', None where they lack it; see `match_names`."""
    if name in other:
        return name
    renamed = (
        candidate
        for prefix in _DECODERS
        for candidate in (prefix + name, name.removeprefix(prefix))
    )
    return next((candidate for candidate in renamed if candidate in other), None)


def is_expert_stack(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a packed stack (E, m, n) of experts: E matrices of their own."""
    if len(shape) != 3:
        return False
    return any(_EXPERTS.search(part) or part.endswith("moe") for part in name.split("."))
