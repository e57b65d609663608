"""Numbers in other bases."""

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from mergekit_rl.registry import Range
from mergekit_rl.tasks.task import Problem, task

_DIGITS = "0123456789abcdef"


@task()
def bases(
    rng: Random,
    *,
    base: Annotated[int, Range(2, 16)] = 2,
    most: Annotated[int, Range(4, 10**12)] = 1000,
    to: Literal["base", "ten"] = "base",
) -> Iterator[Problem]:
    """Write a number in another base, or one in another base in base ten."""
    while True:
        number = rng.randint(2, most)
        other = in_base(number, base)
        same = f"{number} in base {base}"  # either way round
        if to == "base":
            yield Problem(f"Write the decimal number {number} in base {base}.", other, same)
        else:
            yield Problem(f"Write the base {base} number {other} in base 10.", number, same)


def in_base(number: int, base: int) -> str:
    """The digits of a number above zero.

    >>> in_base(13, 2), in_base(255, 16)
    ('1101', 'ff')
    """
    digits = ""
    while number:
        number, digit = divmod(number, base)
        digits = _DIGITS[digit] + digits
    return digits
