"""Sums of two small numbers."""

from collections.abc import Iterator
from random import Random
from typing import Annotated

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task


@task(format="bare", strict=False, test_share=0.41)
def sums(
    rng: Random,
    *,
    least: Annotated[int, Range(0, 999)] = 1,
    most: Annotated[int, Range(0, 999)] = 15,
) -> Iterator[Problem]:
    """Add two numbers from a small range: every pair once."""
    if least > most:
        raise EditError(f"sums: least is {least}, expected at most {most}, the setting most")
    width = most - least + 1
    pairs = list(range(width * width))
    rng.shuffle(pairs)
    for pair in pairs:
        a, b = least + pair // width, least + pair % width
        yield Problem(f"What is {a} + {b}?", a + b, same=f"{min(a, b)} + {max(a, b)}")
