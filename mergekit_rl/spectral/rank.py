"""Ranks as a user writes them."""

import math
import re
from dataclasses import dataclass

from mergekit_rl.errors import EditError


@dataclass(frozen=True)
class Rank:
    """A number of singular directions: of each matrix's own r = min(m, n), or absolute.

    Exactly one of the three is set; none is `full`, all r.

    >>> Rank.parse("0.01").of(576), Rank.parse("8").of(576), Rank.parse("full").of(576)
    (5, 8, 576)
    """

    ratio: float | None = None
    count: int | None = None
    energy: float | None = None

    @staticmethod
    def parse(text: "str | int | float | Rank", what: str = "--rank") -> "Rank":
        """`0.01` (a share of r, rounded down, at least 1), `8` (a number, r where that is less),
        `energy:0.9` (the least that keeps this share of the update's energy), or `full`.

        Raises:
            EditError: none of these, or out of range: 0 < share ≤ 1, number ≥ 1.
        """
        if isinstance(text, Rank):
            return text
        text = str(text).strip()
        if text == "full":
            return Rank()
        if re.fullmatch(r"\d+", text) and int(text) >= 1:
            return Rank(count=int(text))
        kind, _, value = text.rpartition(":")
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        is_ratio = kind == "" and not re.fullmatch(r"\d+", text)
        if (is_ratio or kind == "energy") and 0 < share <= 1:
            return Rank(energy=share) if kind else Rank(ratio=share)
        raise EditError(
            f"{what} is {text!r}, expected a share of each matrix's rank above 0 and up to 1.0 "
            "(0.01), a number from 1 (8), energy:SHARE (energy:0.9) or full"
        )

    def of(self, r: int) -> int:
        """The rank for a matrix whose smaller side is `r`; energy ranks need the matrix."""
        if self.count is not None:
            return min(self.count, r)
        if self.ratio is not None:
            return max(1, math.floor(self.ratio * r + 1e-9))
        return r

    def __str__(self) -> str:
        if self.energy is not None:
            return f"energy:{self.energy!r}"
        if self.count is not None:
            return str(self.count)
        return "full" if self.ratio is None else repr(self.ratio)
