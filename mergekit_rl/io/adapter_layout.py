"""Low-rank factors of a checkpoint's tensors as a PEFT LoRA adapter.

Factors are given per tensor on disk, Δ = B A as it is stored. What the adapter's tensors are called
and how they lie follows PEFT's conventions for Linear, Conv1D, raw parameters and packed experts.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.modules import EXPERT, PACKED, REGISTERED, Modules

Factors = tuple[Tensor, Tensor]
"""(B, A): (m, k) and (k, n), or (E, m, k) and (E, k, n) for a stack."""
_PREFIX = "base_model.model."
_ROUTERS = ("gate", "router")


@dataclass(frozen=True)
class Group:
    """Tensors of the checkpoint whose factors go into the same tensors of the adapter.

    Attributes:
        members: their names; one, except for experts stored separately.
        tensors: {adapter key: (shape, build)}; build({member: factors}) makes the fp32 tensor.
    """

    members: tuple[str, ...]
    tensors: dict[str, tuple[tuple[int, ...], Callable[[Mapping[str, Factors]], Tensor]]]


def adapter_layout(
    modules: Modules, ranks: Mapping[str, int], base: str
) -> tuple[dict[str, Any], list[Group]]:
    """The adapter_config.json and the tensors of an adapter for {tensor name: rank}.

    Args:
        modules: the base's.
        ranks: the tensors that have factors, 2-D or 3-D, and their rank.
        base: what `base_model_name_or_path` is to say.

    Raises:
        EditError: experts that are not whole or not alike; parameters of one module in an order
            that is not known.
    """
    plain: dict[str, int] = {}  # module path: rank
    raw: dict[str, int] = {}  # parameter path: rank
    wrapped: dict[str, list[tuple[str, Group]]] = {}  # module path: (parameter, group), unkeyed
    groups: list[Group] = []
    for name, k in ranks.items():
        if EXPERT.fullmatch(name):
            continue
        parameter = modules.parameter(name)
        module, _, leaf = parameter.rpartition(".")
        shape = modules.shapes[name]
        if len(shape) == 2 and not _needs_parameter(modules, module, leaf):
            plain[module] = k
            groups.append(_linear(name, f"{_PREFIX}{module}.", shape, k, modules))
        else:
            raw[parameter] = k
            group = _parameter(name, shape, k, modules)
            wrapped.setdefault(module, []).append((leaf, group))
    for parameter, parts in modules.experts.items():
        if any(name in ranks for name in parts.values()):
            module, _, leaf = parameter.rpartition(".")
            group, raw[parameter] = _packed(parameter, ranks, modules)
            wrapped.setdefault(module, []).append((leaf, group))
    for module, parts in wrapped.items():
        groups += _nested(f"{_PREFIX}{module}.", parts)
    return _config(plain, raw, base, modules.transposed_linears), groups


def expert_offsets(
    parts: Mapping[tuple[int, int], str], ranks: Mapping[str, int]
) -> tuple[dict[str, tuple[int, int]], int]:
    """Where in its expert's shared rank each tensor's own begins, and the shared rank: the largest
    sum over the places of one expert. {name: (expert, offset)}."""
    offsets: dict[str, tuple[int, int]] = {}
    filled: dict[int, int] = {}
    for (expert, _), name in sorted(parts.items()):
        offsets[name] = (expert, filled.get(expert, 0))
        filled[expert] = filled.get(expert, 0) + ranks.get(name, 0)
    return offsets, max(filled.values())


def _needs_parameter(modules: Modules, module: str, leaf: str) -> bool:
    """Whether PEFT must address the parameter itself: it is no nn.Linear's weight, or PEFT would
    take the module for a part of the packed experts."""
    last = module.rpartition(".")[2]
    return leaf != "weight" or last in _ROUTERS or (bool(modules.experts) and last in PACKED)


def _linear(name: str, prefix: str, shape: tuple[int, ...], k: int, modules: Modules) -> Group:
    if modules.transposed_linears:
        return _pair(
            name, prefix, (shape[1], shape[0]), k, lambda f: f[name][0].T, lambda f: f[name][1].T
        )
    return _pair(name, prefix, shape, k, lambda f: f[name][1], lambda f: f[name][0])


def _pair(name, prefix, shape, k, build_a, build_b) -> Group:
    return Group(
        (name,),
        {
            f"{prefix}lora_A.weight": ((k, shape[1]), build_a),
            f"{prefix}lora_B.weight": ((shape[0], k), build_b),
        },
    )


def _parameter(name: str, shape: tuple[int, ...], k: int, modules: Modules) -> Group:
    if len(shape) == 2:
        return _pair(name, "", shape, k, lambda f: f[name][1], lambda f: f[name][0])
    experts, out, inner = shape
    if modules.transposed_experts:
        out, inner = inner, out
        flip = lambda f: (f[name][1].transpose(1, 2), f[name][0].transpose(1, 2))  # noqa: E731
    else:
        flip = lambda f: f[name]  # noqa: E731
    return Group(
        (name,),
        {
            "lora_A.weight": ((experts * k, inner), lambda f: _rows_by_expert(flip(f)[1])),
            "lora_B.weight": ((out, k * experts), lambda f: _columns_by_rank(flip(f)[0])),
        },
    )


def _packed(parameter: str, ranks: Mapping[str, int], modules: Modules) -> tuple[Group, int]:
    """Separate experts as one packed parameter: places stacked on the output axis, so A is stacked
    and B block-diagonal, padded with zeros to one rank."""
    parts = modules.experts[parameter]
    offsets, rank = expert_offsets(parts, ranks)
    experts, places, out, inner = modules.packed_shape(parameter)
    members = tuple(name for _, name in sorted(parts.items()) if name in ranks)

    def build_a(factors: Mapping[str, Factors]) -> Tensor:
        stack = torch.zeros(experts, rank, inner)
        for name in members:
            expert, at = offsets[name]
            stack[expert, at : at + ranks[name]] = factors[name][1]
        return _rows_by_expert(stack)

    def build_b(factors: Mapping[str, Factors]) -> Tensor:
        stack = torch.zeros(experts, places * out, rank)
        for (expert, place), name in parts.items():
            if name in factors:
                at = offsets[name][1]
                block = stack[expert, place * out : (place + 1) * out]
                block[:, at : at + ranks[name]] = factors[name][0]
        return _columns_by_rank(stack)

    tensors = {
        "lora_A.weight": ((experts * rank, inner), build_a),
        "lora_B.weight": ((places * out, rank * experts), build_b),
    }
    return Group(members, tensors), rank


def _rows_by_expert(a: Tensor) -> Tensor:
    """(E, k, in) → (E·k, in), row e·k + j."""
    return a.reshape(-1, a.shape[-1])


def _columns_by_rank(b: Tensor) -> Tensor:
    """(E, out, k) → (out, k·E), column j·E + e."""
    return b.permute(1, 2, 0).reshape(b.shape[1], -1)


def _nested(prefix: str, parts: list[tuple[str, Group]]) -> list[Group]:
    """The groups of one module's parameters under their keys: the parameter registered first is
    innermost, each further wrapper adds a `base_layer.` to those inside it."""
    unknown = [leaf for leaf, _ in parts if leaf not in REGISTERED]
    if unknown and len(parts) > 1:
        raise EditError(
            f"{prefix}{unknown[0]}: the order in which PEFT nests the parameters of this module is "
            "not known; leave all but one out with --exclude, or use --save model"
        )
    parts = sorted(parts, key=lambda part: unknown or REGISTERED.index(part[0]))
    keyed = []
    for depth, (_, group) in enumerate(reversed(parts)):
        at = prefix + "base_layer." * depth
        keyed.append(Group(group.members, {at + key: t for key, t in group.tensors.items()}))
    return keyed


def _config(
    plain: Mapping[str, int], raw: Mapping[str, int], base: str, transposed: bool
) -> dict[str, Any]:
    every = {**plain, **raw}
    # PEFT warns of patterns that hit parameters only: their rank is the default where they agree.
    agreed = set(raw.values()) if len(set(raw.values())) == 1 else {max(every.values())}
    default = agreed.pop()
    pattern = {}
    for rank in sorted(set(every.values()) - {default}):
        names = sorted(name for name, own in every.items() if own == rank)
        pattern["^(?:" + "|".join(re.escape(name) for name in names) + ")"] = rank
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": default,
        "lora_alpha": default,
        "rank_pattern": pattern,
        "alpha_pattern": dict(pattern),
        "target_modules": sorted(plain),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": transposed and not raw,
        "modules_to_save": None,
        "init_lora_weights": True,
    }
    if raw:
        config["target_parameters"] = sorted(raw)
    return config
