"""The larger of two numbers, whole or decimal."""

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Annotated

from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task


@task()
def comparison(
    rng: Random,
    *,
    digits: Annotated[int, Range(1, 12)] = 3,
    decimals: Annotated[int, Range(0, 6)] = 0,
) -> Iterator[Problem]:
    """Name the larger of two numbers; with decimals, of different lengths, as 9.9 and 9.11."""
    while True:
        a, b = (_number(rng, digits, decimals) for _ in range(2))
        if rng.random() < 0.5:  # alike at the start, so that the first digit does not tell
            b = f"{a.split('.')[0]}.{b.split('.')[1]}" if decimals else a[0] + b[1:]
        if Fraction(a) != Fraction(b):
            right = max(a, b, key=Fraction)
            yield Problem(
                f"Which number is larger: {a} or {b}?",
                right if decimals else int(right),
                same=" ".join(sorted((a, b))),
            )


def _number(rng: Random, digits: int, decimals: int) -> str:
    whole = str(rng.randint(10 ** (digits - 1), 10**digits - 1))
    if not decimals:
        return whole
    places = rng.randint(1, decimals)
    return f"{whole}.{rng.randint(1, 10**places - 1):0{places}d}"
