"""The entries of largest magnitude, exactly and without a sort."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_SMALL = 2**17  # entries up to which selecting in a copy is as fast as anything
_SAMPLE = 2**16
_PIECE = 2**16


@dataclass(frozen=True)
class Cut:
    """The k entries of largest magnitude, of equal ones those of the lowest flat index.

    Attributes:
        level: the least magnitude among them.
        last: the flat index up to which entries of that magnitude belong to them.
    """

    level: float
    last: int

    def fill(self, values: Tensor, start: int, out: Tensor) -> Tensor:
        """The entries of `values` that belong to them, the others 0, in `out`.

        Args:
            values: a flat piece; `start`: its place in the whole.
        """
        n = values.numel()
        at = min(max(self.last + 1 - start, 0), n)
        if at == 0:
            return torch.hardshrink(values, self.level, out=out)
        # What shrinks drops all that is not above its level; the next one below takes it in.
        kind = np.float64 if values.dtype == torch.float64 else np.float32
        below = float(np.nextafter(kind(self.level), kind(0)))
        if at == n:
            return torch.hardshrink(values, below, out=out)
        torch.hardshrink(values[:at], below, out=out[:at])
        torch.hardshrink(values[at:], self.level, out=out[at:])
        return out


def largest(values: Tensor, k: int) -> Cut:
    """The k entries of largest magnitude of a flat tensor.

    On the CPU a sample brackets the k-th magnitude, one pass counts what is above the bracket and
    gathers what is inside, and the k-th is selected there; where the bracket misses, from all.
    """
    n = values.numel()
    if k <= 0:
        return Cut(float("inf"), -1)
    if k >= n:
        return Cut(0.0, n - 1)
    if values.device.type != "cpu":
        return _largest_on_device(values, k)
    numbers = values.detach().numpy()
    found = _bracketed(numbers, k) if n > _SMALL else None
    if found is None:
        found = _selected(np.abs(numbers), k)
    return _cut(numbers, *found)


def _largest_on_device(values: Tensor, k: int) -> Cut:
    magnitudes = values.abs()
    n = magnitudes.numel()
    level = magnitudes.kthvalue(n - k + 1).values
    wanted = k - int((magnitudes > level).sum())
    same = magnitudes == level
    if float(level) == 0 or wanted >= int(same.sum()):
        return Cut(float(level), n - 1)
    return Cut(float(level), int(same.nonzero()[wanted - 1]))


def _bracketed(values: np.ndarray, k: int) -> tuple[float, int, int] | None:
    """As `_selected`, among what lies in a bracket; None where the k-th does not."""
    low, high = _bracket(values, k)
    one = low == high  # so common a magnitude that there is nothing to select among
    above = inside = 0
    gathered = []
    over, within = np.empty(_PIECE, dtype=bool), np.empty(_PIECE, dtype=bool)
    for _, magnitudes in _magnitudes(values):
        o, w = over[: len(magnitudes)], within[: len(magnitudes)]
        (np.greater if one else np.greater_equal)(magnitudes, high, out=o)
        np.greater_equal(magnitudes, low, out=w)
        above += np.count_nonzero(o)
        np.not_equal(w, o, out=w)
        if one:
            inside += np.count_nonzero(w)
        else:
            gathered.append(magnitudes[w])
            inside += len(gathered[-1])
    if not above < k <= above + inside:
        return None
    if one:
        return float(low), k - above, inside
    return _selected(np.concatenate(gathered), k - above)


def _bracket(values: np.ndarray, k: int) -> tuple[np.floating, np.floating]:
    """Two magnitudes between which the k-th largest lies almost surely, from a sample."""
    n = len(values)
    m = min(_SAMPLE, n // 8)
    # One entry at a random place of each stretch: a stride alone could follow the columns.
    step = n // m
    places = np.arange(m) * step + np.random.Generator(np.random.SFC64(n)).integers(0, step, m)
    sample = np.sort(np.abs(values[places]))
    share = k / n
    middle, margin = m * (1 - share), 4 * (m * share * (1 - share)) ** 0.5 + 2
    low, high = int(middle - margin), int(middle + margin) + 1
    kind = values.dtype.type
    return sample[low] if low >= 0 else kind(0), sample[high] if high < m else kind(np.inf)


def _selected(magnitudes: np.ndarray, k: int) -> tuple[float, int, int]:
    """The k-th largest of some magnitudes, how many of that size belong to the k largest, and how
    many there are; overwrites them."""
    at = len(magnitudes) - k
    magnitudes.partition(at)
    level = magnitudes[at]
    above = magnitudes[at:]
    wanted = k - np.count_nonzero(above > level)
    return float(level), int(wanted), int(np.count_nonzero(magnitudes == level))


def _cut(values: np.ndarray, level: float, wanted: int, equal: int) -> Cut:
    """The cut that takes the first `wanted` of the `equal` entries of magnitude `level`."""
    if level > 0 and wanted < equal:
        for start, magnitudes in _magnitudes(values):
            here = magnitudes == level
            count = np.count_nonzero(here)
            if wanted <= count:
                return Cut(level, start + int(np.flatnonzero(here)[wanted - 1]))
            wanted -= count
    return Cut(level, len(values) - 1)


def _magnitudes(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(start, magnitudes) of pieces that fit a cache; each overwrites the one before."""
    scratch = np.empty(min(_PIECE, len(values)), dtype=values.dtype)
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        yield start, np.abs(piece, out=scratch[: len(piece)])
