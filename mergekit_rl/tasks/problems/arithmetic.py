"""Arithmetic of graded size."""

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from mergekit_rl.registry import Range
from mergekit_rl.tasks.equation import evaluate
from mergekit_rl.tasks.task import Problem, task


@task()
def arithmetic(
    rng: Random,
    *,
    digits: Annotated[int, Range(1, 9)] = 2,
    terms: Annotated[int, Range(2, 6)] = 2,
    operations: Literal["+", "-", "*", "+-", "+-*"] = "+-",
) -> Iterator[Problem]:
    """Compute with whole numbers: more digits, terms and operations make it harder."""
    least = 10 ** (digits - 1)
    while True:
        numbers = [rng.randint(least, 10 * least - 1) for _ in range(terms)]
        signs = [rng.choice(operations) for _ in range(terms - 1)]
        text = str(numbers[0])
        for sign, number in zip(signs, numbers[1:], strict=True):
            text += f" {sign} {number}"
        value, _ = evaluate(text)
        commutes = set(signs) in ({"+"}, {"*"})
        same = f"{signs[0]} {sorted(numbers)}" if commutes else text
        yield Problem(f"What is {text}?", int(value), same=same)
