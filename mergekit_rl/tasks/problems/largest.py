"""The largest of a few numbers."""

from collections.abc import Iterator
from random import Random
from typing import Annotated

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task


@task(format="bare", strict=False)
def largest(
    rng: Random,
    *,
    count: Annotated[int, Range(2, 20)] = 3,
    least: Annotated[int, Range(0, 10**12)] = 10,
    most: Annotated[int, Range(1, 10**12)] = 99,
) -> Iterator[Problem]:
    """Name the largest of a few different numbers."""
    if most - least + 1 < count:
        raise EditError(
            f"largest: {least} to {most} has too few numbers, expected {count} or more: "
            "raise most or lower count"
        )
    while True:
        numbers = rng.sample(range(least, most + 1), count)
        words = f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
        yield Problem(
            f"Which number is the largest: {words}?", max(numbers), same=str(sorted(numbers))
        )
