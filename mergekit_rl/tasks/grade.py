"""What an answer is worth: graders by name, and the one function that applies them."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NotRequired, TypedDict

from mergekit_rl.errors import EditError

Message = dict[str, str]


class Row(TypedDict):
    """A prompt with its gold answer.

    Keys:
        id: tells it apart from every other row of the task.
        prompt: plain text of the user's turn, or chat messages with `role` and `content`.
        answer: whole number, text, or list of either.
        meta: `grader` (by the answer's type where absent), `format` (`line` or `bare`), `strict`
            (whether a reward needs the format), and what the grader needs besides.
    """

    id: NotRequired[str]
    prompt: NotRequired[str | list[Message]]
    answer: Any
    meta: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class Grade:
    """What one completion is worth.

    Attributes:
        reward: 1.0 or 0.0; None where it could not be graded, which is no zero.
        correct: whether the answer that was meant is right, asked-for format or not.
        format_ok: whether it came in the asked-for format.
        why: in a few words.
    """

    reward: float | None
    correct: bool
    format_ok: bool
    why: str

    @property
    def strict(self) -> bool:
        """Whether it is right in the asked-for format."""
        return self.correct and self.format_ok


Grader = Callable[[str, Row], Grade]
_GRADERS: dict[str, Grader] = {}


def grader(call: Grader) -> Grader:
    """The function itself, now known by its name: `f(text, row) -> Grade`, pure. A last `_` of
    its name does not count."""
    _GRADERS[call.__name__.removesuffix("_")] = call
    return call


def find_grader(name: str) -> Grader:
    """A grader by its name.

    Raises:
        EditError: there is none, with the nearest.
    """
    if name not in _GRADERS:
        import_module("mergekit_rl.tasks.graders")
    if name not in _GRADERS:
        raise EditError(f"there is no grader {name!r}{nearest(name, _GRADERS)}")
    return _GRADERS[name]


def grade(text: str, row: Row) -> Grade:
    """What the completion `text` is worth as an answer to `row`.

    >>> grade("7 + 8 = 15\\nAnswer: 15", {"answer": 15})
    Grade(reward=1.0, correct=True, format_ok=True, why='right')
    >>> grade("It is 15.", {"answer": 15})
    Grade(reward=0.0, correct=True, format_ok=False, why='right, not in the asked format')

    Raises:
        EditError: the row names a grader that does not exist.
    """
    name = row.get("meta", {}).get("grader") or grader_of(row["answer"])
    return find_grader(name)(text, row)


def grader_of(answer: object) -> str:
    """The name of the grader for a gold answer of this type.

    Raises:
        EditError: no grader takes it.
    """
    if isinstance(answer, int) and not isinstance(answer, bool):
        return "integer"
    if isinstance(answer, str) and answer.strip():
        return "text"
    if isinstance(answer, list) and answer and all(map(_is_item, answer)):
        return "list"
    raise EditError(
        f"the answer is {answer!r}, expected a whole number, a text or a list of either"
    )


def check_gold(answer: object) -> None:
    """Nothing, where the gold answer is rewarded when a completion gives it.

    Raises:
        EditError: no grader takes it, or no completion could give it.
    """
    grader_of(answer)
    words = ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)
    if not grade(f"Answer: {words}", {"answer": answer}).strict:
        raise EditError(
            f"no completion could give the answer {words[:60]!r}: expected a single line, without "
            "code fences, and list items without commas"
        )


def nearest(word: str, known: "list[str] | dict[str, Any]") -> str:
    """`; did you mean 'sums'?`, or what there is where nothing known is near."""
    near = get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _is_item(item: object) -> bool:
    whole = isinstance(item, int) and not isinstance(item, bool)
    return whole or (isinstance(item, str) and bool(item.strip()))
