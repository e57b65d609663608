"""Merging tensors that are in memory already."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import mergekit_rl.methods  # noqa: F401  registers the methods
from mergekit_rl.errors import EditError
from mergekit_rl.io.names import is_expert_stack, is_projection, module_kind, split_layer
from mergekit_rl.registry import Context, Function, Setting, find_method

StateDict = Mapping[str, Tensor]


def merge_state_dicts(
    experts: Mapping[str, StateDict] | Sequence[StateDict],
    *,
    method: str,
    base: StateDict | None = None,
    seed: int = 0,
    **settings: Any,
) -> dict[str, Tensor]:
    """The merge of state dicts by one method, computed in fp32 and in the first one's dtypes.

    >>> a, b = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    >>> merge_state_dicts([a, b], method="linear", weight=[3.0, 1.0])
    {'w': tensor([0.2500, 0.2500])}

    Args:
        experts: the models, by name or in order; the names have no meaning.
        method: a registered merge method.
        base: the base, where the method needs or takes one.
        seed: of random masks.
        **settings: the method's; of those that every model has its own of, one value for all or a
            list.

    Raises:
        EditError: no such method or setting; a value out of its range; state dicts whose tensors
            differ in name or shape; a method that needs two passes and totals.
    """
    chosen = find_method(method)
    models = list(experts.values()) if isinstance(experts, Mapping) else list(experts)
    _check(chosen, models, base)
    values = _settings(chosen, settings, len(models))
    if chosen.check is not None:
        chosen.check(**values)
    first = models[0] if base is None else base
    merged: dict[str, Tensor] = {}
    layers = 1 + max((split[1] for name in first if (split := split_layer(name))), default=-1)
    numbers = tuple(str(i) for i in range(base is not None, len(models) + (base is not None)))
    totals: tuple[float, ...] = ()
    if chosen.totals is not None:
        shares = [
            chosen.totals(*_wide(chosen, name, models, base), settings=values, ctx=Context(name))
            for name in sorted(first)
            if first[name].is_floating_point()
        ]
        totals = tuple(map(sum, zip(*shares, strict=True)))
    for name, own in first.items():
        if not own.is_floating_point():
            merged[name] = own.clone()
            continue
        split = split_layer(name)
        ctx = Context(
            name,
            layer=None if split is None else split[1],
            layers=layers,
            kind=module_kind(name),
            projection=is_projection(name, tuple(own.shape)),
            seed=seed,
            models=numbers,
            totals=totals,
        )
        over, tensors = _wide(chosen, name, models, base)
        if is_expert_stack(name, tuple(own.shape)):
            parts = [
                chosen.call(
                    None if over is None else over[index],
                    [tensor[index] for tensor in tensors],
                    **values,
                    ctx=Context(**{**ctx.__dict__, "index": index}),
                )
                for index in range(own.shape[0])
            ]
            found = torch.stack(parts)
        else:
            found = chosen.call(over, tensors, **values, ctx=ctx)
        merged[name] = found.to(own.dtype)
    return merged


def _wide(
    chosen: Function, name: str, models: Sequence[StateDict], base: StateDict | None
) -> tuple[Tensor | None, list[Tensor]]:
    """The base and what the method takes of the models, in fp32 or wider."""
    all_of = [*([] if base is None else [base]), *models]
    wide = torch.float64 if any(m[name].dtype == torch.float64 for m in all_of) else torch.float32
    tensors = [model[name].to(wide) for model in models]
    over = None if base is None else base[name].to(wide)
    if chosen.takes == "deltas":
        tensors = [tensor - over for tensor in tensors]
    return (None if chosen.base == "input" else over), tensors


def _check(chosen: Function, models: Sequence[StateDict], base: StateDict | None) -> None:
    if chosen.base == "required" and base is None:
        raise EditError(f"{chosen.name} needs a base: give base=…")
    least, most = chosen.models
    if len(models) < least or (most is not None and len(models) > most):
        wanted = f"{least}" if most == least else f"{least} or more"
        raise EditError(f"{chosen.name} merges {wanted} models beside its base, not {len(models)}")
    first = models[0] if base is None else base
    for number, model in enumerate(models):
        odd = sorted(set(first) ^ set(model))
        if odd:
            raise EditError(f"model {number} and the first differ in their tensors: {odd[0]}")
        for name, tensor in model.items():
            if tensor.shape != first[name].shape:
                raise EditError(
                    f"{name} is {tuple(first[name].shape)} in the first model and "
                    f"{tuple(tensor.shape)} in model {number}"
                )


def _settings(chosen: Function, given: Mapping[str, Any], models: int) -> dict[str, Any]:
    """The method's keyword arguments, with defaults and checked."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        setting = chosen.setting(name.removesuffix("_"))
        values[setting.parameter] = _value(setting, value, models)
    for setting in chosen.settings.values():
        if setting.parameter in values:
            continue
        if setting.required:
            raise EditError(f"{chosen.name} needs {setting.name}: {setting.expected}")
        default = setting.default
        values[setting.parameter] = [default] * models if setting.per_model else default
    return values


def _value(setting: Setting, value: Any, models: int) -> Any:
    if not setting.per_model:
        return setting.parse(value)
    each = list(value) if isinstance(value, list | tuple) else [value] * models
    if len(each) != models:
        raise EditError(f"{setting.name} has {len(each)} values for {models} models")
    return [setting.parse(one) for one in each]
