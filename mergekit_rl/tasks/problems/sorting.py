"""Numbers in order."""

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task


@task(wanted="the sorted numbers")
def sorting(
    rng: Random,
    *,
    count: Annotated[int, Range(2, 50)] = 4,
    least: Annotated[int, Range(0, 10**9)] = 1,
    most: Annotated[int, Range(1, 10**9)] = 99,
    order: Literal["up", "down"] = "up",
) -> Iterator[Problem]:
    """Sort different numbers that are not in order yet."""
    if most - least + 1 < count:
        raise EditError(
            f"sorting: {least} to {most} has too few numbers, expected {count} or more: "
            "raise most or lower count"
        )
    words = "smallest to largest" if order == "up" else "largest to smallest"
    while True:
        numbers = rng.sample(range(least, most + 1), count)
        right = sorted(numbers, reverse=order == "down")
        if numbers != right:
            listed = ", ".join(map(str, numbers))
            yield Problem(f"Sort from {words}: {listed}.", right, same=f"{sorted(numbers)}")
