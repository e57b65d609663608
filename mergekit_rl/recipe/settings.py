"""From what a recipe says of a setting to its value for one tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Setting

FILTER_KEYS = {"filter", "value"}


@dataclass(frozen=True)
class Level:
    """Settings written in one place.

    Attributes:
        parameters: {setting: a value, a gradient over the layers, or filters}.
        name: of the tensor that filters are matched on.
        where: the place, for a person.
    """

    parameters: Mapping[str, Any]
    name: str
    where: str


def resolve(setting: Setting, levels: Sequence[Level], t: float) -> tuple[Any, str]:
    """The value of a setting for a tensor at depth t, and where it was written.

    The first level that answers wins; of filters the first that matches. Then the default.

    Raises:
        EditError: nothing answers and there is no default.
    """
    for level in levels:
        if setting.name in level.parameters:
            value, found, how = _answer(level.parameters[setting.name], level.name, t)
            if found:
                return setting.parse(value), f"{level.where}{how}"
    if setting.required:
        raise EditError(
            f"{setting.name} is not set for {levels[0].name if levels else 'any tensor'}: write "
            f"it in parameters, {setting.expected}"
        )
    return setting.default, "default"


def interpolate(gradient: Sequence[float], t: float) -> float:
    """The value at depth t, 0 to 1, of values spread evenly over the layers.

    >>> interpolate([0.0, 1.0, 0.5], 0.75)
    0.75
    """
    if len(gradient) == 1:
        return float(gradient[0])
    at = min(max(t, 0.0), 1.0) * (len(gradient) - 1)
    low = min(int(at), len(gradient) - 2)
    share = at - low
    return gradient[low] * (1 - share) + gradient[low + 1] * share


def is_filters(value: Any) -> bool:
    """Whether a value is a list of filters: mappings with a `value`."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _answer(value: Any, name: str, t: float) -> tuple[Any, bool, str]:
    """(the value, whether there is one, how it was found)."""
    if is_filters(value):
        for one in value:
            pattern = one.get("filter", "*")
            if pattern == "*" or pattern in name:
                inner, _, how = _answer(one["value"], name, t)
                matched = f", filter {pattern}" if "filter" in one else ", the filters' default"
                return inner, True, matched + how
        return None, False, ""
    if isinstance(value, list):
        return interpolate(value, t), True, f", gradient at {t:.3g}"
    return value, True, ""
