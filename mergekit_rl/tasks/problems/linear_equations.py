"""Linear equations in one unknown."""

from collections.abc import Iterator
from random import Random
from typing import Annotated

from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task


@task(wanted="the value of x")
def linear_equations(
    rng: Random,
    *,
    most: Annotated[int, Range(2, 10**6)] = 9,
    both_sides: bool = False,
    negative: bool = False,
) -> Iterator[Problem]:
    """Solve for x, a whole number of at most `most` in size."""
    while True:
        x = rng.randint(-most if negative else 1, most)
        a, b = rng.randint(2, max(most, 3)), rng.randint(1, 2 * most)
        c = rng.choice([n for n in range(1, 10) if n != a]) if both_sides else 0
        right = f"{c}x + {(a - c) * x + b}" if both_sides else f"{a * x + b}"
        yield Problem(f"Solve for x: {a}x + {b} = {right.replace('+ -', '- ')}.", x)
