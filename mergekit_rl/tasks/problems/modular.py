"""Remainders."""

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from mergekit_rl.registry import Range
from mergekit_rl.tasks.equation import evaluate
from mergekit_rl.tasks.task import Problem, task


@task()
def modular(
    rng: Random,
    *,
    most: Annotated[int, Range(10, 10**9)] = 99,
    divisor: Annotated[int, Range(3, 10**6)] = 12,
    of: Literal["number", "sum", "product"] = "number",
) -> Iterator[Problem]:
    """Find the remainder of a number, a sum or a product; the divisor is at most `divisor`."""
    sign = {"sum": " + ", "product": " * ", "number": ""}[of]
    while True:
        numbers = [rng.randint(2, most) for _ in range(2 if sign else 1)]
        by = rng.randint(3, divisor)
        text = sign.join(map(str, numbers))
        value, _ = evaluate(text)
        yield Problem(
            f"What is the remainder of {text} divided by {by}?",
            int(value) % by,
            same=f"{sign}{sorted(numbers)} % {by}",
        )
