"""Questions and answers from a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.tasks.grade import check_gold, find_grader
from mergekit_rl.tasks.task import Problem, task


@task(wanted="the answer", train_size=10**9, test_size=10**9)
def jsonl(
    rng: Random,
    *,
    file: str,
    question: str = "question",
    answer: str = "answer",
    grader: str = "",
) -> Iterator[Problem]:
    """Questions and answers from a JSONL file: whole numbers, texts or lists.

    `question` and `answer` are the keys of a row.
    """
    if grader:
        find_grader(grader)
    problems = list(read_problems(Path(file), question, answer, grader))
    rng.shuffle(problems)
    yield from problems


def read_problems(path: Path, question: str, answer: str, grader: str) -> Iterator[Problem]:
    """The problems of a file, in its order.

    Raises:
        EditError: no file, a line that cannot be used, or one question with two answers.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise EditError(f"the task's file {path} cannot be read: {error}") from None
    answers: dict[str, tuple[Any, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        asked, gold = _row(line, question, answer, where)
        if not grader:
            try:
                check_gold(gold)
            except EditError as error:
                raise EditError(f"{where}: {error}") from None
        first, at = answers.setdefault(asked, (gold, number))
        if first != gold:
            raise EditError(
                f"{where}: the answer is {gold!r}, but line {at} asks the same and says {first!r}"
            )
        if at == number:
            yield Problem(asked, gold, meta={"grader": grader} if grader else {})
    if not answers:
        raise EditError(f"{path} has no row, expected a JSON object a line")


def _row(line: str, question: str, answer: str, where: str) -> tuple[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EditError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise EditError(f"{where} is {type(row).__name__}, expected a JSON object")
    for key in (question, answer):
        if key not in row:
            raise EditError(f"{where} has no {key!r}; it has {', '.join(map(repr, row)) or 'none'}")
    asked = row[question]
    if not isinstance(asked, str) or not asked.strip():
        raise EditError(f"{where}: the question is {asked!r}, expected a text")
    return asked.strip(), row[answer]
