"""From a tensor's name on disk to the parameter of the loaded module that holds it.

PEFT addresses modules; checkpoints sometimes store other names. Most families need no rule; the
ones here are those transformers 5 renames while loading, and what only a module's class tells.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from mergekit_rl.errors import EditError

Shapes = Mapping[str, tuple[int, ...]]

EXPERT = re.compile(
    r"(?P<module>.*\.experts)\.(?P<expert>[0-9]{1,9})"
    r"\.(?P<leaf>w1|w2|w3|gate_proj|up_proj|down_proj)\.weight"
)
# How transformers packs separate experts: {leaf: (packed parameter, place on its output axis)}.
PACKED = {
    "w1": ("gate_up_proj", 0), "gate_proj": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1), "up_proj": ("gate_up_proj", 1),
    "w2": ("down_proj", 0), "down_proj": ("down_proj", 0),
}  # fmt: skip
# Order in which a module registers its parameters: PEFT nests their adapters in it.
REGISTERED = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias", "weight")
_TRANSPOSED_EXPERTS = {"gpt_oss", "openai_privacy_filter", "aria", "aria_text"}
_DECODER = {
    "gpt2": "transformer", "gpt_bigcode": "transformer", "gptj": "transformer",
    "bloom": "transformer", "falcon": "transformer", "codegen": "transformer",
    "mpt": "transformer", "gpt_neox": "gpt_neox",
}  # fmt: skip
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_OTHER_ROWS = re.compile(r"(^|\.)(lm_head\.bias|embed_tokens_per_layer\.weight)$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")


def is_embedding(name: str) -> bool:
    """Whether a tensor is the token embedding."""
    return _EMBEDDING.search(name) is not None


@lru_cache(2**17)
def is_head(name: str) -> bool:
    """Whether a tensor is the output head's weight."""
    return _HEAD.search(name) is not None


@lru_cache(2**17)
def has_token_rows(name: str) -> bool:
    """Whether a tensor has a row for every token of the vocabulary."""
    return is_embedding(name) or is_head(name) or _OTHER_ROWS.search(name) is not None


@dataclass(frozen=True)
class Modules:
    """The loaded modules behind a checkpoint's tensors, from its names, shapes and config."""

    shapes: Shapes
    config: Mapping[str, Any]

    def parameter(self, name: str) -> str:
        """The module parameter that holds the tensor `name`; of a separate expert, its own name
        under the renamed module."""
        kind = self._kind
        if "vision_config" in self.config and self._has("language_model."):
            if name.startswith("language_model.lm_head."):
                return name.removeprefix("language_model.")
            if name.startswith("language_model."):
                inner = name.removeprefix("language_model.").removeprefix("model.")
                return f"model.language_model.{inner}"
            return "model." + name.replace("vision_tower.vision_model.", "vision_tower.", 1)
        decoder = _DECODER.get(kind, "model")
        if not self._has(f"{decoder}.") and not _HEAD.search(name):
            name = f"{decoder}.{name}"
        if kind == "gpt_neox" and name == "embed_out.weight":
            return "lm_head.weight"
        if kind in ("mixtral", "minimax", "minimax_m2", "phimoe"):
            name = name.replace(".block_sparse_moe.", ".mlp.")
        if kind == "phimoe":
            name = name.replace(".mlp.gate.weight", ".mlp.router.weight")
        if kind.startswith("granitemoe"):
            for stored, loaded in (
                ("input_linear.weight", "experts.gate_up_proj"),
                ("output_linear.weight", "experts.down_proj"),
                ("router.layer.weight", "router.weight"),
            ):
                name = name.replace(f"block_sparse_moe.{stored}", f"block_sparse_moe.{loaded}")
        return name

    @cached_property
    def stored(self) -> dict[str, str]:
        """{module parameter: tensor name on disk}.

        Raises:
            EditError: two tensors are one parameter.
        """
        found: dict[str, str] = {}
        for name in self.shapes:
            self._once(found, self.parameter(name), name)
        return found

    @cached_property
    def experts(self) -> dict[str, dict[tuple[int, int], str]]:
        """{packed parameter: {(expert, place): tensor name}} of experts stored separately.

        Raises:
            EditError: two tensors are one expert's matrix.
        """
        found: dict[str, dict[tuple[int, int], str]] = {}
        for name in self.shapes:
            match = EXPERT.fullmatch(name)
            if match:
                packed, place = PACKED[match["leaf"]]
                module = EXPERT.fullmatch(self.parameter(name))["module"]
                parts = found.setdefault(f"{module}.{packed}", {})
                self._once(parts, (int(match["expert"]), place), name)
        return found

    def packed_shape(self, parameter: str) -> tuple[int, int, int, int]:
        """(experts, places, out, inner) of separate experts as the one parameter they are packed
        into: places·out rows of length inner for each expert.

        Raises:
            EditError: a matrix of one of the experts is absent or has another shape.
        """
        parts = self.experts[parameter]
        experts = 1 + max(expert for expert, _ in parts)
        places = 1 + max(place for _, place in parts)
        if len(parts) != experts * places:
            hole = next(
                (expert, place)
                for expert in range(experts)
                for place in range(places)
                if (expert, place) not in parts
            )
            leaves = [
                leaf for leaf, where in PACKED.items() if where == (_leaf(parameter), hole[1])
            ]
            raise EditError(
                f"{parameter} is made of experts 0 to {experts - 1}, and expert {hole[0]} has no "
                f"{' or '.join(leaves)}: no adapter can address what is not whole"
            )
        first = parts[0, 0]
        shape = self.shapes[first]
        for name in parts.values():
            if self.shapes[name] != shape or len(shape) != 2:
                raise EditError(
                    f"{name} is {self.shapes[name]} and {first} is {shape}: experts of one layer "
                    "must be matrices of one shape for an adapter to address them"
                )
        return experts, places, *shape

    @cached_property
    def transposed_linears(self) -> bool:
        """Whether linear weights are stored (in, out), as GPT-2's Conv1D does: a bias is as long as
        the output."""
        yes = no = False
        for name, shape in self.shapes.items():
            bias = self.shapes.get(name.removesuffix("weight") + "bias")
            if name.endswith(".weight") and len(shape) == 2 and bias and shape[0] != shape[1]:
                yes |= bias == (shape[1],)
                no |= bias == (shape[0],)
        return yes and not no

    @property
    def transposed_experts(self) -> bool:
        """Whether the module says that its packed experts are (E, in, out)."""
        return self._kind in _TRANSPOSED_EXPERTS

    @cached_property
    def embedding(self) -> str | None:
        """The token embedding's tensor name."""
        return next((name for name in self.shapes if is_embedding(name)), None)

    @cached_property
    def tied_head(self) -> bool:
        """Whether no output head is stored, so that the embedding serves as one."""
        return not any(is_head(name) for name in self.shapes)

    @staticmethod
    def _once(found: dict[Any, str], key: Any, name: str) -> None:
        if found.setdefault(key, name) != name:
            raise EditError(f"{found[key]} and {name} are two tensors for one parameter")

    @property
    def _kind(self) -> str:
        return str(self.config.get("model_type", ""))

    def _has(self, prefix: str) -> bool:
        return prefix in self._prefixes

    @cached_property
    def _prefixes(self) -> set[str]:
        return {name.partition(".")[0] + "." for name in self.shapes}


def _leaf(parameter: str) -> str:
    return parameter.rpartition(".")[2]
