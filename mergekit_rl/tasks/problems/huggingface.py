"""Questions and answers from a Hugging Face dataset."""

from collections.abc import Iterator
from random import Random
from typing import Any, Literal

from mergekit_rl.errors import EditError
from mergekit_rl.tasks.extract import whole_number
from mergekit_rl.tasks.grade import check_gold, find_grader
from mergekit_rl.tasks.task import Problem, task


@task(wanted="the answer", train_size=10**9, test_size=10**9)
def huggingface(
    rng: Random,
    *,
    dataset: str,
    config: str = "",
    split: str = "train",
    question: str = "question",
    answer: str = "answer",
    answer_after: str = "",
    kind: Literal["integer", "text", "list", "math"] = "text",
) -> Iterator[Problem]:
    """Questions and answers from a Hugging Face dataset, or a folder that holds one.

    `split` is the dataset's; which of its rows are held out is decided by hash here too, so
    `test_share` 0 or 1 takes all of them. `answer_after` cuts the answer: `####` for GSM8K.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise EditError("the task 'huggingface' needs datasets: pip install datasets") from None
    find_grader(kind)
    where = f"the dataset {dataset} [{split}]"
    try:
        loaded = load_dataset(dataset, config or None, split=split)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise EditError(f"{where} cannot be loaded: {type(error).__name__}: {said}") from None
    for column in (question, answer):
        if column not in loaded.column_names:
            known = ", ".join(loaded.column_names)
            raise EditError(f"{where} has no column {column!r}; it has {known}")
    order = list(range(len(loaded)))
    rng.shuffle(order)
    for number in order:
        row = loaded[number]
        gold = _gold(row[answer], answer_after, kind, f"{where} row {number}")
        yield Problem(str(row[question]).strip(), gold, meta={"grader": kind})


def _gold(value: Any, after: str, kind: str, where: str) -> Any:
    if kind == "list" and not isinstance(value, list):
        raise EditError(f"{where}: the answer is {value!r}, expected a list")
    gold = value if kind == "list" else _cut(str(value), after, kind, where)
    if kind != "math":
        try:
            check_gold(gold)
        except EditError as error:
            raise EditError(f"{where}: {error}") from None
    return gold


def _cut(text: str, after: str, kind: str, where: str) -> str | int:
    if after:
        if after not in text:
            raise EditError(f"{where}: the answer {text[-60:]!r} has no {after!r}")
        text = text.rpartition(after)[2]
    if kind != "integer":
        return text.strip()
    number = whole_number(text.strip())
    if number is None:
        raise EditError(f"{where}: the answer is {text.strip()!r}, expected a whole number")
    return number
