"""The graders that come along."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.tasks import extract
from mergekit_rl.tasks.equation import evaluate
from mergekit_rl.tasks.grade import Grade, Row, grader


@grader
def integer(text: str, row: Row) -> Grade:
    """Whether the answer is the whole number `row["answer"]`."""
    gold = row["answer"]
    return judge(text, row, extract.whole_number, extract.last_number, lambda got: got == gold)


@grader
def list_(text: str, row: Row) -> Grade:
    """Whether the answer is the list `row["answer"]`, in its order."""
    gold = row["answer"]
    whole = all(isinstance(item, int) for item in gold)
    expected = [item if whole else extract.plain_text(str(item)) for item in gold]
    return judge(
        text,
        row,
        lambda content: extract.items(content, whole),
        lambda shown: extract.last_list(shown, whole),
        lambda got: got == expected,
    )


@grader
def text_(text: str, row: Row) -> Grade:
    """Whether the answer is the text `row["answer"]`; case and spaces around words do not count."""
    gold = extract.plain_text(row["answer"])
    return judge(
        text,
        row,
        lambda content: extract.plain_text(content) if "\n" not in content else None,
        lambda shown: extract.last_line_says(shown, gold),
        lambda got: got == gold,
    )


@grader
def equation(text: str, row: Row) -> Grade:
    """Whether the answer is an equation with the value `meta["target"]` that uses each of
    `meta["numbers"]` at most once."""
    target, numbers = row["meta"]["target"], Counter(row["meta"]["numbers"])

    def read(content: str) -> Any:
        left, equals, right = content.partition("=")
        if equals and extract.whole_number(right.strip()) != target:
            return None
        return evaluate(left)

    def loose(shown: str) -> Any:
        found = (read(line.rpartition(":")[2].strip()) for line in reversed(shown.splitlines()))
        return next((one for one in found if one is not None), None)

    def right(got: Any) -> bool:
        return got[0] == target and not Counter(got[1]) - numbers

    return judge(text, row, read, loose, right, say=lambda got: f"{got[0]} from {got[1]}")


@grader
def math(text: str, row: Row) -> Grade:
    """Whether the answer equals the LaTeX or number `row["answer"]`, by math-verify.

    Only its LaTeX parser is used: the other one evaluates what it reads as Python. Its own time
    limits are off, since they work in a main thread only: `GraderPool` has the limit.
    """
    parse, verify = _math_verify()
    gold = parse(f"${row['answer']}$")
    if not gold:
        raise EditError(f"math-verify cannot read the answer {row['answer']!r}")
    return judge(
        text,
        row,
        lambda content: parse(f"${content.strip('$ ')}$") if content.strip("$ ") else None,
        lambda shown: parse(shown) or _number(shown),
        lambda got: verify(gold, got),
        say=lambda got: str(got[-1]),
    )


@grader
def reasoning_gym(text: str, row: Row) -> Grade:
    """Whether reasoning-gym gives the answer its full score."""
    entry = row["meta"]["entry"]
    score = _reasoning_gym_score(entry["metadata"]["source_dataset"])
    shown = extract.visible(text)
    bare = row["meta"].get("format", "line") == "bare"
    answer = (shown.strip() or None) if bare else extract.after_marker(shown)
    if answer is None:
        return Grade(0.0, False, False, "no answer")
    if score(answer, entry) >= 1:
        return Grade(1.0, True, True, "right")
    return Grade(0.0, False, True, f"wrong: {_short(answer)}")


def judge(
    text: str,
    row: Row,
    read: Callable[[str], Any],
    loose: Callable[[str], Any],
    right: Callable[[Any], bool],
    say: Callable[[Any], str] = str,
) -> Grade:
    """The grade of a completion: right or not, and as it was asked for or not.

    Args:
        read: the value of an answer in the asked-for format, None where it is not one.
        loose: the value of the answer wherever it stands in a text; None for none.
        right: whether a value is the right one.
        say: a value in words.
    """
    meta = row.get("meta", {})
    shown = extract.visible(text)
    found = extract.asked(shown, meta.get("format", "line"))
    if len(set(found)) > 1:
        return Grade(0.0, False, False, f"{len(found)} answers")
    value = read(found[0]) if found else None
    format_ok = value is not None and len(found) == 1
    if value is None:
        value = loose(extract.without_echo(shown, row.get("prompt", "")))
    if value is None:
        return Grade(0.0, False, False, "no answer")
    if not right(value):
        return Grade(0.0, False, format_ok, f"wrong: {_short(say(value))}")
    if format_ok:
        return Grade(1.0, True, True, "right")
    paid = not meta.get("strict", True)
    return Grade(1.0 if paid else 0.0, True, False, "right, not in the asked format")


def _short(words: str) -> str:
    return words if len(words) <= 60 else f"{words[:57]}..."


@cache
def _reasoning_gym_score(dataset: str) -> Callable[[str, dict], float]:
    try:
        from reasoning_gym import get_score_answer_fn
    except ImportError:
        raise EditError(
            "the grader 'reasoning_gym' needs reasoning-gym: pip install reasoning-gym"
        ) from None
    return get_score_answer_fn(dataset)


@cache
def _math_verify() -> tuple[Callable[[str], Any], Callable[[Any, Any], bool]]:
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError:
        raise EditError("the grader 'math' needs math-verify: pip install math-verify") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of its limits being off
    latex = [LatexExtractionConfig()]

    def read(text: str) -> Any:
        found = parse(text, latex, parsing_timeout=None)
        return found if any(not isinstance(one, str) for one in found) else None

    return read, lambda gold, got: verify(gold, got, timeout_seconds=None)


def _number(shown: str) -> Any:
    number = extract.last_number(shown)
    return None if number is None else _math_verify()[0](f"${number}$")
