"""Tasks by name: rows of prompts and gold answers, train and test apart."""

import hashlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import islice
from random import Random
from typing import Annotated, Any, Literal

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Range, Setting, settings_of
from mergekit_rl.tasks.grade import Row, grader_of, nearest
from mergekit_rl.tasks.settings import parse_settings

Split = Literal["train", "test"]
_ASKED = {"line": 'End with "Answer: " and {}.', "bare": "Answer with just {}."}
# Draws in a row without a new row, of those that fall into the split, after which an endless stream
# counts as used up; and four more for every row that there is already.
_PATIENCE = 2000


@dataclass(frozen=True)
class Problem:
    """A question and its answer.

    Attributes:
        question: what the prompt asks, without the words on the form of the answer.
        answer: whole number, text, or list of either.
        same: what tells the problem apart when train and test are parted: 3 + 7 and 7 + 3 are the
            same. The question where "".
        meta: what the grader needs besides.
    """

    question: str
    answer: Any
    same: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


Stream = Callable[..., Iterator[Problem]]


def _settings_of_all(
    *,
    format: Literal["line", "bare"] = "line",
    strict: bool = True,
    ask: bool = True,
    test_share: Annotated[float, Range(0, 1)] = 0.2,
    train_size: Annotated[int, Range(0, math.inf)] = 4000,
    test_size: Annotated[int, Range(0, math.inf)] = 200,
) -> None:
    """What every task can be told.

    Args:
        format: of the answer: after `Answer:`, or the reply and nothing else.
        strict: whether a reward needs that format; else the last number (list, line) counts.
        ask: whether the prompt asks for the format.
        test_share: of all problems, held out by hash.
        train_size, test_size: rows at most.
    """


_SHARED = settings_of(_settings_of_all)


@dataclass(frozen=True)
class Kind:
    """A registered task, not yet set.

    Attributes:
        name: of the function, and in recipes.
        call: `f(rng, *, settings…) -> Iterator[Problem]`; it may end or go on for ever.
        wanted: what the prompt asks for, as `the number`; "" where the question says it itself.
        grader: its name; "" for the one that the answer's type asks for.
        settings: {name: setting}, the function's own first.
    """

    name: str
    call: Stream
    wanted: str
    grader: str
    settings: Mapping[str, Setting]

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return inspect.getdoc(self.call).splitlines()[0]

    def __call__(self, **given: Any) -> "Task":
        """The task with these settings.

        Raises:
            EditError: an unknown setting, a wrong value, or values that do not go together.
        """
        return Task(self, parse_settings(self.name, self.settings, given))


@dataclass(frozen=True)
class Task:
    """A task with its settings."""

    kind: Kind
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As it is registered."""
        return self.kind.name

    @property
    def summary(self) -> str:
        """What it asks, in a line."""
        return self.kind.summary

    def rows(self, split: Split, seed: int = 0) -> list[Row]:
        """The rows of a split, in an order of the seed's.

        Which split a problem belongs to depends on the problem and on `test_share` alone: not on
        the seed, nor on other settings. So no seed and no range leaks test problems into training.

        Raises:
            EditError: there is no row, or a problem that cannot be used.
        """
        if split not in ("train", "test"):
            raise EditError(f"there is no split {split!r}; there are train, test")
        size = self.settings[f"{split}_size"]
        rows = list(islice(self._new_rows(split, seed), size))
        if not rows and size:
            raise EditError(
                f"{self.name} has no {split} rows with test_share "
                f"{self.settings['test_share']:g}: change it, or allow more problems"
            )
        return rows

    def sizes(self) -> dict[str, int]:
        """{split: number of rows} with seed 0."""
        return {
            split: sum(1 for _ in islice(self._new_rows(split, 0), self.settings[f"{split}_size"]))
            for split in ("train", "test")
        }

    def _new_rows(self, split: Split, seed: int) -> Iterator[Row]:
        shared = {name: self.settings[name] for name in _SHARED}
        own = {name: value for name, value in self.settings.items() if name not in _SHARED}
        share = shared["test_share"] if split == "test" else 1 - shared["test_share"]
        seen: set[str] = set()
        fruitless = 0
        if share == 0:
            return
        for problem in self.kind.call(Random(f"{self.name} {seed}"), **own):
            key = _digest(problem.same or problem.question)
            held_out = int(key[:13], 16) < shared["test_share"] * 16**13
            if held_out == (split == "test") and problem.question not in seen:
                seen.add(problem.question)
                fruitless = 0
                yield self._row(problem)
            else:
                fruitless += 1
                if fruitless * share >= _PATIENCE + 4 * len(seen):
                    return

    def _row(self, problem: Problem) -> Row:
        form, wanted = self.settings["format"], self.kind.wanted
        prompt = problem.question
        if wanted and self.settings["ask"]:
            prompt = f"{prompt} {_ASKED[form].format(wanted)}"
        meta = {
            "grader": problem.meta.get("grader") or self.kind.grader or grader_of(problem.answer),
            "format": form,
            "strict": self.settings["strict"],
            **problem.meta,
        }
        number = _digest(problem.question)[:12]
        return {
            "id": f"{self.name}-{number}",
            "prompt": prompt,
            "answer": problem.answer,
            "meta": meta,
        }


_KINDS: dict[str, Kind] = {}


def task(
    *, wanted: str = "the number", grader: str = "", **defaults: Any
) -> Callable[[Stream], Stream]:
    """Registers `f(rng, *, settings…) -> Iterator[Problem]` as a task under its own name.

    Args:
        wanted: what the prompt asks for, after `Answer with just`.
        grader: by name; by the answer's type where "".
        defaults: of the settings that all tasks have, where another suits this one better.
    """

    def register(call: Stream) -> Stream:
        shared = {
            name: replace(one, default=defaults.get(name, one.default))
            for name, one in _SHARED.items()
        }
        settings = {**settings_of(call), **shared}
        _KINDS[call.__name__] = Kind(call.__name__, call, wanted, grader, settings)
        return call

    return register


def kinds() -> dict[str, Kind]:
    """{name: task} of all that are registered, by name."""
    _register_ours()
    return dict(sorted(_KINDS.items()))


def find_kind(name: str) -> Kind:
    """A task by its name.

    Raises:
        EditError: there is none, with the nearest.
    """
    known = kinds()
    if name not in known:
        raise EditError(f"there is no task {name!r}{nearest(name, list(known))}")
    return known[name]


@cache
def _register_ours() -> None:
    problems = import_module("mergekit_rl.tasks.problems")
    for file in pkgutil.iter_modules(problems.__path__, f"{problems.__name__}."):
        import_module(file.name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
