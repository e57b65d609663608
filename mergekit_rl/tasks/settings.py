"""The settings of a task: its function's keyword-only arguments, as `registry` reads them."""

from collections.abc import Mapping
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Parsed, Setting
from mergekit_rl.tasks.grade import nearest


def parse_settings(
    task: str, known: Mapping[str, Setting], given: Mapping[str, Any]
) -> dict[str, Any]:
    """{name: value} of every setting: given, or its default.

    Raises:
        EditError: an unknown setting (with the nearest), a missing one, a wrong value.
    """
    for name in given:
        if name not in known:
            raise EditError(f"{task} has no setting {name!r}{nearest(str(name), list(known))}")
    missing = [name for name, one in known.items() if one.required and name not in given]
    if missing:
        expected = known[missing[0]].expected
        raise EditError(f"{task} needs the setting {missing[0]!r}, {expected}")
    values = {name: one.default for name, one in known.items()}
    for name, value in given.items():
        try:
            values[name] = known[name].parse(value)
        except EditError as error:
            raise EditError(f"{task}: {error}") from None
    return values


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise EditError(f"{name} is {value!r}, expected {MAPPING.words}")
    return dict(value)


MAPPING = Parsed(_mapping, "a mapping")
