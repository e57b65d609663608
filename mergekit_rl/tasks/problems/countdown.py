"""Countdown: make a number out of others."""

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Annotated

from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task

_TRIES = 10_000


@task(wanted="the expression", grader="equation")
def countdown(
    rng: Random,
    *,
    count: Annotated[int, Range(2, 6)] = 3,
    most: Annotated[int, Range(9, 1000)] = 20,
    target_most: Annotated[int, Range(20, 10**6)] = 100,
) -> Iterator[Problem]:
    """Make a number from others with + - * /, each at most once; there is always a way.

    The problem is made from a solution, so one exists; the gold answer is that one.
    """
    while True:
        made = _solved(rng, count, most, target_most)
        if made is None:
            return
        numbers, target, solution = made
        rng.shuffle(numbers)
        listed = ", ".join(map(str, numbers))
        yield Problem(
            f"Make {target} from {listed} with + - * /, each number at most once.",
            solution,
            same=f"{target} from {sorted(numbers)}",
            meta={"numbers": numbers, "target": target},
        )


def _solved(rng: Random, count: int, most: int, target_most: int) -> tuple[list, int, str] | None:
    for _ in range(_TRIES):
        numbers = [rng.randint(1, most) for _ in range(count)]
        value, text = _combined(rng, numbers)
        inside = value is not None and value.denominator == 1 and 0 < value <= target_most
        if inside and value not in numbers:
            return numbers, int(value), text
    return None


def _combined(rng: Random, numbers: list[int]) -> tuple[Fraction | None, str]:
    """The value and the words of the numbers joined in pairs, at random."""
    parts = [(Fraction(number), str(number)) for number in numbers]
    while len(parts) > 1:
        rng.shuffle(parts)
        (a, left), (b, right) = parts.pop(), parts.pop()
        sign = rng.choice("+-*/")
        if sign == "/" and (b == 0 or (a / b).denominator != 1):
            return None, ""
        value = {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b
        if value < 0:
            return None, ""
        parts.append((value, f"({left} {sign} {right})"))
    value, text = parts[0]
    return value, text[1:-1]
