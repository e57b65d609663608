"""Greatest common divisors."""

import math
from collections.abc import Iterator
from random import Random
from typing import Annotated

from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task


@task()
def gcd(rng: Random, *, most: Annotated[int, Range(4, 10**9)] = 60) -> Iterator[Problem]:
    """Find the greatest common divisor of two numbers; half of them share one on purpose."""
    while True:
        shared = rng.randint(2, math.isqrt(most)) if rng.random() < 0.5 else 1
        a, b = (shared * rng.randint(2 if shared == 1 else 1, most // shared) for _ in range(2))
        if a != b:
            yield Problem(
                f"What is the greatest common divisor of {a} and {b}?",
                math.gcd(a, b),
                same=f"{min(a, b)} {max(a, b)}",
            )
