"""The settings of a task: its function's keyword-only arguments."""

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from mergekit_rl.errors import EditError
from mergekit_rl.tasks.grade import nearest

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class Between:
    """The values a number may have, both ends included."""

    least: float
    most: float


@dataclass(frozen=True)
class Setting:
    """One setting of a task.

    Attributes:
        name: in Python and in recipes.
        kind: `int`, `float`, `bool`, `str` or `dict`.
        default: of it, None where `required`.
        between: of a number; `choices`: of a text, () for any.
    """

    name: str
    kind: type
    required: bool
    default: Any
    between: Between | None = None
    choices: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        words = _WORDS.get(self.kind, "a mapping")
        if self.between is None:
            return words
        if self.between.most == math.inf:
            return f"{words} of {self.between.least:.12g} or more"
        return f"{words} between {self.between.least:.12g} and {self.between.most:.12g}"

    def parse(self, value: object, task: str) -> Any:
        """The value as the function takes it.

        Raises:
            EditError: another type, or out of range.
        """
        if self.kind is float and type(value) is int:
            value = float(value)
        good = type(value) is self.kind
        if good and self.between is not None:
            good = self.between.least <= value <= self.between.most
        if good and self.choices:
            good = value in self.choices
        if not good:
            raise EditError(f"{task}: {self.name} is {value!r}, expected {self.expected}")
        return value


def settings_of(call: Callable[..., Any]) -> dict[str, Setting]:
    """{name: setting} of a function's keyword-only arguments, in their order."""
    hints = typing.get_type_hints(call, include_extras=True)
    found = {}
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            hint, between, choices = hints[parameter.name], None, ()
            if typing.get_origin(hint) is Annotated:
                hint, between = typing.get_args(hint)
            if typing.get_origin(hint) is Literal:
                choices, hint = typing.get_args(hint), str
            required = parameter.default is inspect.Parameter.empty
            default = None if required else parameter.default
            found[parameter.name] = Setting(
                parameter.name, hint, required, default, between, choices
            )
    return found


def parse_settings(task: str, known: Mapping[str, Setting], given: Mapping[str, Any]) -> dict:
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
    return {
        name: one.parse(given[name], task) if name in given else one.default
        for name, one in known.items()
    }
