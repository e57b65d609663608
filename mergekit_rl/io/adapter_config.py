"""adapter_config.json of PEFT: what it asks for, and what is refused by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.header import is_name
from mergekit_rl.io.jsonfile import read_object, shown
from mergekit_rl.io.patterns import MAX_CHARACTERS, Pattern

# Fields that make the adapter more than W + scaling·B A.
_REFUSED = {
    "use_dora": "DoRA rescales the base's weights",
    "use_bdlora": "BD-LoRA has block-diagonal factors",
    "use_qalora": "QA-LoRA pools its input",
    "kasa_config": "KaSA alters the base's weights",
    "arrow_config": "Arrow routes per token",
    "alora_invocation_tokens": "aLoRA acts only after a token sequence",
    "layer_replication": "it changes the stack of layers",
    "monteclora_config": "MonteCLoRA samples its factors",
    "megatron_config": "it is made for Megatron's modules",
}
_ALTERED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Fields that do not change the delta, or are read below.
_KNOWN = frozenset(
    """alora_invocation_tokens alpha_pattern arrow_config auto_mapping base_model_name_or_path bias
    corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode
    init_lora_weights kasa_config layer_replication layers_pattern layers_to_transform loftq_config
    lora_alpha lora_bias lora_dropout lora_ga_config megatron_config megatron_core
    modules_to_save monteclora_config peft_type peft_version qalora_group_size r rank_pattern
    revision runtime_config target_modules target_parameters task_type trainable_token_indices
    use_bdlora use_dora use_qalora use_rslora velora_config""".split()
)
_MAX_PARTS = 20_000  # of all alpha patterns together


@dataclass(frozen=True)
class LoraConfig:
    """The part of an adapter_config.json that decides its delta; `path` is its own."""

    path: Path
    base: str
    revision: str | None
    alpha: float
    alpha_pattern: tuple[tuple[Pattern, float], ...]
    rslora: bool
    target_parameters: tuple[str, ...]
    token_rows: tuple[int, ...] | Mapping[str, tuple[int, ...]]

    def scaling(self, module: str, r: int) -> float:
        """alpha/r, or alpha/√r with rank-stabilised scaling (Kalajdzievski, 2023,
        arXiv:2312.03732). The alpha pattern matches as PEFT's does: the first key that is a regex
        of the whole name or of what follows a dot.

        Raises:
            EditError: a pattern that takes too long to match.
        """
        alpha = self.alpha
        try:
            alpha = next((own for p, own in self.alpha_pattern if p.matches(module)), alpha)
        except EditError as error:
            raise EditError(f"{self.path}: alpha_pattern: {error}") from None
        return alpha / math.sqrt(r) if self.rslora else alpha / r

    def targets_parameter(self, path: str) -> bool:
        """Whether `target_parameters` names the parameter: whole, or by what follows a dot."""
        return any(path == t or path.endswith(f".{t}") for t in self.target_parameters)


def read_lora_config(path: Path) -> LoraConfig:
    """The LoRA configuration at `path`.

    Raises:
        EditError: another adapter type, a variant that is no plain low-rank delta (named), a field
            that is not known, or a wrong type.
    """
    found = read_object(path)
    kind = found.get("peft_type")
    if kind != "LORA":
        raise EditError(
            f"{path}: peft_type is {shown(kind)}, expected LORA; merge it with PEFT first"
        )
    for field, why in _REFUSED.items():
        if found.get(field):
            raise EditError(f"{path}: {field} is set and {why}; merge it with PEFT first")
    init = found.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower().startswith(_ALTERED_BASE):
        raise EditError(
            f"{path}: init_lora_weights is {shown(init)}, which alters the base; convert "
            "the adapter to plain LoRA with PEFT first"
        )
    if found.get("bias", "none") != "none":
        raise EditError(
            f"{path}: bias is {shown(found['bias'])}, expected none; merge it with PEFT"
        )
    for field, value in found.items():
        if field not in _KNOWN and value not in (None, False, {}, []):
            raise EditError(f"{path}: the field {shown(field)} is not known, so it is not ignored")
    return _parsed(found, path)


def _parsed(found: Mapping[str, Any], path: Path) -> LoraConfig:
    def of(field: str, kinds: tuple[type, ...], default: Any) -> Any:
        value = found.get(field)
        value = default if value is None else value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise EditError(f"{path}: {field} is {shown(value)}, expected {expected}")
        return value

    rows = of("trainable_token_indices", (list, dict), [])
    named = rows if isinstance(rows, dict) else {"": rows}
    for indices in named.values():
        if not isinstance(indices, list) or not all(type(i) is int and i >= 0 for i in indices):
            raise EditError(f"{path}: trainable_token_indices is not a list of token ids")
    parameters = of("target_parameters", (list,), [])
    if not all(isinstance(parameter, str) for parameter in parameters):
        raise EditError(f"{path}: target_parameters is not a list of names")
    alpha = of("lora_alpha", (int, float), 8)
    if not _is_finite(alpha):
        raise EditError(f"{path}: lora_alpha is {shown(alpha)}, expected a finite number")
    base = of("base_model_name_or_path", (str,), "")
    revision = of("revision", (str,), "")
    for field, name in (("base_model_name_or_path", base), ("revision", revision)):
        if name and not is_name(name):
            raise EditError(f"{path}: {field} is {shown(name)}, expected a name")
    return LoraConfig(
        path=path,
        base=base,
        revision=revision or None,
        alpha=alpha,
        alpha_pattern=_alpha_pattern(of("alpha_pattern", (dict,), {}), path),
        rslora=of("use_rslora", (bool,), False),
        target_parameters=tuple(parameters),
        token_rows={name: tuple(indices) for name, indices in named.items()}
        if isinstance(rows, dict)
        else tuple(rows),
    )


def _alpha_pattern(found: Mapping[str, Any], path: Path) -> tuple[tuple[Pattern, float], ...]:
    if sum(map(len, found)) > MAX_CHARACTERS:
        raise EditError(f"{path}: alpha_pattern has more than {MAX_CHARACTERS:,} characters")
    patterns = []
    parts = 0
    for text, alpha in found.items():
        if not _is_finite(alpha):
            raise EditError(f"{path}: alpha_pattern[{shown(text)}] is not a finite number")
        try:
            pattern = Pattern(text)
        except EditError as error:
            raise EditError(f"{path}: alpha_pattern {shown(text)}: {error}") from None
        parts += pattern.parts
        if parts > _MAX_PARTS:
            raise EditError(f"{path}: alpha_pattern is too large; write it more simply")
        patterns.append((pattern, alpha))
    return tuple(patterns)


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and -1e30 < value < 1e30
