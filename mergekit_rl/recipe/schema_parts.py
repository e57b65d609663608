"""Small things that a merge recipe may say: stages, layers, selectors."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from mergekit_rl.errors import EditError
from mergekit_rl.recipe.yaml_reader import cut, shown
from mergekit_rl.registry import Function, find_stage


class Part(BaseModel):
    """Any mapping of a recipe: no key but its own, no value but of its type."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, strict=True
    )


def _one_key(value: Any) -> dict[str, Any]:
    """`name` or `{name: {settings}}` as the latter."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, settings),) = value.items()
        if settings is None:
            settings = {}
        if isinstance(settings, Mapping):
            return {name: dict(settings)}
    raise ValueError("expected a stage's name, or its name and settings as {name: {setting: …}}")


class StageCall(Part):
    """A stage before or after the merge, with its settings.

    Attributes:
        name: of the stage; `settings`: checked keyword arguments.
    """

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    function: Function = Field(exclude=True)


def _stage(when: Literal["preprocess", "postprocess"]) -> Any:
    def parse(value: Any) -> StageCall:
        if isinstance(value, StageCall):
            return value
        ((name, given),) = _one_key(value).items()
        try:
            function = find_stage(name, when)
            settings = {}
            for key, one in given.items():
                setting = function.setting(key)
                settings[setting.parameter] = setting.parse(one)
        except EditError as error:
            raise ValueError(str(error)) from None
        for setting in function.settings.values():
            if setting.required and setting.parameter not in settings:
                raise ValueError(f"{name} needs {setting.name}: {setting.expected}")
        return StageCall(name=name, settings=settings, function=function)

    schema = {"anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1}]}
    return Annotated[StageCall, BeforeValidator(parse), WithJsonSchema(schema)]


Before = _stage("preprocess")
After = _stage("postprocess")


def _layers(value: Any) -> tuple[int, int]:
    good = isinstance(value, list | tuple) and len(value) == 2
    good = good and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if not good or not 0 <= value[0] < value[1]:
        raise ValueError("expected [first, end): two layer numbers, the end not included")
    return value[0], value[1]


Layers = Annotated[
    tuple[int, int],
    BeforeValidator(_layers),
    WithJsonSchema(
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
    ),
]


class Selector(Part):
    """What include or exclude name: tensors by a pattern, by layers, by module kinds; of several
    conditions all must hold."""

    name: str | None = None
    layers: Layers | None = None
    kinds: list[str] | None = None

    def matches(self, name: str, layer: int | None, kind: str) -> bool:
        """Whether a tensor is meant."""
        if self.name is not None and not re.search(self.name, name):
            return False
        if self.layers is not None and not (
            layer is not None and self.layers[0] <= layer < self.layers[1]
        ):
            return False
        return self.kinds is None or kind in self.kinds


def _selectors(value: Any) -> list[Any]:
    several = value if isinstance(value, list) else [value]
    found = []
    for one in several:
        one = {"name": one} if isinstance(one, str) else one
        if isinstance(one, Mapping):
            if not one:
                raise ValueError("expected a pattern, layers or kinds")
            pattern = one.get("name")
            if isinstance(pattern, str):
                try:
                    re.compile(pattern)
                except (re.error, OverflowError, RecursionError) as error:
                    raise ValueError(
                        f"{shown(pattern)} is no regular expression: {cut(str(error))}"
                    ) from None
        found.append(one)
    return found


Selectors = Annotated[list[Selector], BeforeValidator(_selectors)]
