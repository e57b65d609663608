"""Functions by name; their keyword-only arguments are their settings."""

import difflib
import hashlib
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

from mergekit_rl.errors import EditError

T = TypeVar("T")
Takes = Literal["deltas", "tensors"]
Base = Literal["required", "optional", "input"]
Stage = Literal["preprocess", "postprocess"]


class PerModel(Generic[T]):
    """Marks a setting that every model has a value of its own of; the function gets a list."""


@dataclass(frozen=True)
class Range:
    """The values a number may have: `least` to `most`, both included unless `open`."""

    least: float = -math.inf
    most: float = math.inf
    open: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value lies in it."""
        if self.open:
            return self.least < value < self.most
        return self.least <= value <= self.most

    def __str__(self) -> str:
        if self.most < math.inf:
            ends = ", both excluded" if self.open else ""
            return f"between {self.least:g} and {self.most:g}{ends}"
        if self.least > -math.inf:
            return f"above {self.least:g}" if self.open else f"of {self.least:g} or more"
        return ""


@dataclass(frozen=True)
class Parsed:
    """A setting of another kind: `call(value, name)` turns what a recipe says into it or raises
    EditError; `words` say what it expects."""

    call: Callable[[Any, str], Any]
    words: str


Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, open=True)]
NonNegative = Annotated[float, Range(0)]


@dataclass(frozen=True)
class Setting:
    """One setting of a function.

    Attributes:
        name: as a recipe writes it.
        kind: `float`, `int`, `bool` or `str`.
        per_model: whether every model has a value of its own.
        default: None where `required`.
        range: of a number; `choices`: of a text, () for any; `parsed`: of another kind.
    """

    name: str
    kind: type
    per_model: bool
    required: bool
    default: Any
    range: Range | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    parsed: Parsed | None = None

    @property
    def parameter(self) -> str:
        """Its name in the function."""
        return f"{self.name}_" if self.name == "lambda" else self.name

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.parsed is not None:
            return self.parsed.words
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        word = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
        where = f" {self.range}" if self.range is not None else ""
        return word[self.kind] + where

    def parse(self, value: object) -> Any:
        """The value as the function takes it.

        Raises:
            EditError: another type, or out of range.
        """
        if value is None and self.optional:
            return None
        if self.parsed is not None:
            return self.parsed.call(value, self.name)
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        good = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if good and isinstance(value, float):
            good = math.isfinite(value)
        if good and self.range is not None:
            good = self.range.holds(value)
        if good and self.choices:
            good = value in self.choices
        if not good:
            hint = suggestion(value, self.choices) if isinstance(value, str) else ""
            raise EditError(f"{self.name} is {value!r}, expected {self.expected}{hint}")
        return value


@dataclass(frozen=True)
class Function:
    """A registered function: a merge method, or a stage before or after one.

    Attributes:
        name: of the function, and in recipes.
        call: the function.
        settings: {name in recipes: setting}.
        takes: what a method gets beside the base: `deltas` or the models' `tensors`.
        base: `required`; `optional`; or `input`: the base, if it is listed, is one more model.
        models: the least and the most a method merges, the base aside; None for any number.
        ignores: settings of other tools that are accepted and change nothing.
        elementwise: whether every entry depends on the entries at its place alone.
        scratch: memory beside its arguments, in tensors of their size: (always, per model).
        check: takes the settings as the function does and raises EditError where they do not go
            together; called for every tensor before any is read.
        totals: the reduction over all tensors that runs first; its sums arrive as `ctx.totals`.
        stage: None for a merge method.
    """

    name: str
    call: Callable[..., Any]
    settings: Mapping[str, Setting]
    takes: Takes
    base: Base = "required"
    models: tuple[int, int | None] = (1, None)
    ignores: tuple[str, ...] = ()
    elementwise: bool = False
    scratch: tuple[float, float] = (1.0, 0.0)
    check: Callable[..., None] | None = None
    totals: Callable[..., list[float]] | None = None
    stage: Stage | None = None

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return self.documentation.splitlines()[0]

    @property
    def documentation(self) -> str:
        """Its documentation, with the names that settings have in recipes."""
        text = inspect.getdoc(self.call)
        for setting in self.settings.values():
            text = re.sub(rf"\b{setting.parameter}\b", setting.name, text)
        return text

    def setting(self, name: str) -> Setting:
        """A setting by its name in recipes.

        Raises:
            EditError: there is none, with the nearest.
        """
        if name not in self.settings:
            known = f"; it has {', '.join(self.settings)}" if self.settings else ": it has none"
            hint = suggestion(name, self.settings)
            raise EditError(f"{self.name} has no setting {name!r}{hint or known}")
        return self.settings[name]


@dataclass(frozen=True)
class Context:
    """What a function needs to know of a tensor's place.

    Attributes:
        name: of the output tensor; `index`: of the matrix in a stack of experts.
        layer: None outside the layers; `layers`: how many the output has.
        kind: of module, as `q_proj`; `projection`: whether it is one of attention or MLP.
        seed: of the run.
        models: what tells the models apart, in order; keys of their randomness.
        totals: what the function's reduction summed over all tensors.
        out: where the result may be written to spare memory, possibly the base itself; None for a
            tensor of its own.
    """

    name: str = ""
    index: int = 0
    layer: int | None = None
    layers: int = 0
    kind: str = ""
    projection: bool = False
    seed: int = 0
    models: tuple[str, ...] = ()
    totals: tuple[float, ...] = field(default=())
    out: Any = None

    def key(self, model: int) -> int:
        """128 bits that depend on seed, tensor, matrix and model, on nothing else."""
        whose = self.models[model] if self.models else str(model)
        text = f"{self.seed} {self.name} {self.index} {whose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


_METHODS: dict[str, Function] = {}
_STAGES: dict[str, Function] = {}


def method(
    *,
    takes: Takes,
    base: Base = "required",
    models: tuple[int, int | None] = (1, None),
    ignores: Iterable[str] = (),
    elementwise: bool = False,
    scratch: tuple[float, float] = (1.0, 0.0),
    check: Callable[..., None] | None = None,
    totals: Callable[..., list[float]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `f(base, deltas_or_tensors, *, settings…, ctx) -> Tensor` under its own name.

    It gets fp32 or fp64 tensors of one shape and returns one of it; it changes none of them, but
    for `ctx.out`. Where it `takes="deltas"` it returns base plus the merged delta. `scratch` is the
    memory it takes beside its arguments, in tensors of their size: so many, and so many per model.
    """

    def register(call: Callable[..., Any]) -> Callable[..., Any]:
        name = call.__name__
        _METHODS[name] = Function(
            name,
            call,
            settings_of(call),
            takes,
            base=base,
            models=models,
            ignores=tuple(ignores),
            elementwise=elementwise,
            scratch=scratch,
            check=check,
            totals=totals,
        )
        return call

    return register


def stage(
    when: Stage, *, totals: Callable[..., list[float]] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function under its own name that works on a delta: `preprocess` before the
    merge, `f(base, delta, *, settings…, model, ctx)`, with `model` the expert's number; or
    `postprocess` after it, `f(base, delta, deltas, *, settings…, ctx)`. It returns the delta that
    takes its place."""

    def register(call: Callable[..., Any]) -> Callable[..., Any]:
        name = call.__name__
        _STAGES[name] = Function(name, call, settings_of(call), "deltas", stage=when, totals=totals)
        return call

    return register


def methods() -> dict[str, Function]:
    """{name: method} of all that are registered, by name."""
    return dict(sorted(_METHODS.items()))


def stages(when: Stage) -> dict[str, Function]:
    """{name: stage} of all that are registered for `when`, by name."""
    return {name: one for name, one in sorted(_STAGES.items()) if one.stage == when}


def find_method(name: str) -> Function:
    """A merge method by name.

    Raises:
        EditError: there is none, with the nearest.
    """
    return _find(name, methods(), "merge method")


def find_stage(name: str, when: Stage) -> Function:
    """A stage by name; raises as `find_method`."""
    return _find(name, stages(when), f"{when} stage")


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'density'?`, or "" where nothing known is near."""
    near = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _find(name: str, known: Mapping[str, Function], what: str) -> Function:
    if name not in known:
        hint = suggestion(name, known) or f"; there are {', '.join(known)}"
        raise EditError(f"there is no {what} {name!r}{hint}")
    return known[name]


def settings_of(call: Callable[..., Any]) -> dict[str, Setting]:
    """{name: setting} of a function's keyword-only arguments, or of those of a class."""
    typed = call.__init__ if isinstance(call, type) else call
    hints = typing.get_type_hints(typed, include_extras=True)
    found = {}
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name not in (
            "ctx",
            "model",
        ):
            setting = _setting(parameter, hints[parameter.name])
            found[setting.name] = setting
    return found


def _setting(parameter: inspect.Parameter, hint: Any) -> Setting:
    per_model = typing.get_origin(hint) is PerModel
    if per_model:
        (hint,) = typing.get_args(hint)
    optional = type(None) in typing.get_args(hint)
    if optional:
        (hint,) = (one for one in typing.get_args(hint) if one is not type(None))
    limits = parsed = None
    if typing.get_origin(hint) is Annotated:
        hint, limits = typing.get_args(hint)
    if isinstance(limits, Parsed):
        limits, parsed = None, limits
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    required = parameter.default is inspect.Parameter.empty
    return Setting(
        name=parameter.name.removesuffix("_"),
        kind=hint,
        per_model=per_model,
        required=required,
        default=None if required else parameter.default,
        range=limits,
        choices=choices,
        optional=optional,
        parsed=parsed,
    )
