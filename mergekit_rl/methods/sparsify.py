"""Which entries of a delta are kept: by magnitude, at random, or both."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.methods.selection import Cut, largest

DareRescale = Literal["l1", "density"]

PIECE = 2**16
"""Entries at a time on the CPU, so that a dozen pieces fit its second-level cache."""


@dataclass(frozen=True)
class Part:
    """A delta of which some entries are kept, read in flat pieces.

    Attributes:
        delta: flat, (n,).
        keeps: only the largest entries; `drops`: of these, the largest.
        mask: (n,) of uint8, 1 where an entry is kept.
        factor: to multiply what is kept by.
    """

    delta: Tensor
    keeps: Cut | None = None
    drops: Cut | None = None
    mask: Tensor | None = None
    factor: float = 1.0

    def piece(self, start: int, out: Tensor, spare: Tensor) -> Tensor:
        """The entries from `start` on, without the factor: in `out`, or a view of the delta.

        Args:
            out, spare: (length,) of the delta's dtype, overwritten.
        """
        values = self.delta[start : start + out.numel()]
        if self.mask is not None:
            return torch.mul(values, out.copy_(self.mask[start : start + out.numel()]), out=out)
        if self.keeps is None:
            return values
        self.keeps.fill(values, start, out)
        if self.drops is not None:
            out.sub_(self.drops.fill(values, start, spare))
        return out

    def whole(self) -> Tensor:
        """All entries, with the factor, (n,)."""
        out = torch.empty_like(self.delta)
        for start, stop, (scratch, spare) in pieces(self.delta, 2):
            kept = self.piece(start, scratch, spare)
            torch.mul(kept, self.factor, out=out[start:stop])
        return out


def whole(delta: Tensor) -> Part:
    """All of a delta."""
    return Part(delta.reshape(-1))


def magnitude(delta: Tensor, density: float) -> Part:
    """The max(1, ⌊density·n⌋) entries of largest magnitude."""
    flat = delta.reshape(-1)
    n = flat.numel()
    k = max(1, int(density * n))
    return Part(flat) if k >= n else Part(flat, keeps=largest(flat, k))


def outliers(delta: Tensor, density: float, gamma: float) -> Part:
    """The ⌊density·n⌋ entries that follow the ⌊γn⌋ of largest magnitude; fewer of the largest are
    dropped where not enough would follow."""
    flat = delta.reshape(-1)
    n = flat.numel()
    k = int(density * n)
    dropped = min(int(gamma * n), n - k)
    keeps = largest(flat, k + dropped)
    return Part(flat, keeps=keeps, drops=largest(flat, dropped) if dropped else None)


def dare(delta: Tensor, density: float, key: int, rescale: DareRescale | None) -> Part:
    """Every entry with probability `density`, times what restores the sum of magnitudes (`l1`) or
    1 / density (`density`).

    Args:
        key: of the random numbers.
    """
    flat = delta.reshape(-1)
    if density == 1.0:
        return Part(flat)
    mask = np.empty(flat.numel(), dtype=bool)
    rng = _rng(key)
    # Of 2³² equally likely numbers, those below; two of them from each draw.
    below = np.uint32(min(round(density * 2**32), 2**32 - 1))
    for start in range(0, flat.numel(), PIECE):
        out = mask[start : start + PIECE]
        numbers = rng.integers(0, 2**64, (len(out) + 1) // 2, dtype=np.uint64).view(np.uint32)
        np.less(numbers[: len(out)], below, out=out)
    part = Part(flat, mask=_mask(mask, flat))
    if rescale == "density" and density > 0:
        return replace(part, factor=1 / density)
    return rescaled(part) if rescale == "l1" else part


def magprune(delta: Tensor, density: float, epsilon: float, key: int) -> Part:
    """Entries with a probability that rises with the rank of the magnitude in its row, linearly
    from density − ε to density + ε; all where the density is 1, none where it is 0.

    Args:
        delta: rows are along the last dim; equal magnitudes rank by their place.
        key: of the random numbers.
    """
    flat = delta.reshape(-1)
    if density == 1.0 or flat.numel() == 0:
        return Part(flat)
    width = delta.shape[-1] if delta.ndim else 1
    rows = flat.reshape(-1, width)
    spread = np.linspace(-epsilon, epsilon, width) if width > 1 and density > 0 else np.zeros(1)
    probability = (density + spread).astype(np.float32)
    mask = np.empty(rows.shape, dtype=bool)
    step = max(1, PIECE // width)
    rng = _rng(key)
    for at in range(0, len(rows), step):
        order = _ascending(rows[at : at + step])
        # The numbers belong to ranks: which entry has one doesn't matter for what is drawn.
        drawn = rng.random(order.shape, dtype=np.float32) < probability
        np.put_along_axis(mask[at : at + step], order, drawn, 1)
    return Part(flat, mask=_mask(mask.reshape(-1), flat))


def check_magprune(*, density: list[float], epsilon: list[float], **_: object) -> None:
    """Whether the probabilities that `magprune` would keep entries with are any.

    Raises:
        EditError: density ± ε is not within 0 and 1, where the density is not 0 or 1 itself.
    """
    for share, half in zip(density, epsilon, strict=True):
        if 0 < share < 1 and not (half <= share and share + half <= 1):
            raise EditError(
                f"density {share:g} and epsilon {half:g} give probabilities from {share - half:g} "
                f"to {share + half:g}, expected 0 to 1: epsilon may be {min(share, 1 - share):g} "
                "at most there"
            )


def rescaled(part: Part) -> Part:
    """The part times Σ|d| / Σ|kept|, so that the sum of magnitudes is the delta's; as it is where
    nothing is kept."""
    if part.keeps is None and part.mask is None:
        return part
    before = kept = 0.0
    for start, stop, (scratch, spare) in pieces(part.delta, 2):
        magnitudes = torch.abs(part.delta[start:stop], out=spare)
        before += float(magnitudes.sum())
        if part.mask is not None:
            scratch.copy_(part.mask[start:stop])
            kept += float(torch.dot(scratch, magnitudes))
        else:
            kept += float(torch.abs(part.piece(start, scratch, spare), out=scratch).sum())
    return replace(part, factor=before / kept) if kept > 0 else part


def pieces(like: Tensor, scratch: int = 0) -> Iterator[tuple[int, int, list[Tensor]]]:
    """(start, stop, scratch tensors of that length) of pieces of a flat tensor that fit a cache."""
    n = like.numel()
    size = min(n, PIECE if like.device.type == "cpu" else 2**24)
    room = [torch.empty(size, dtype=like.dtype, device=like.device) for _ in range(scratch)]
    for start in range(0, n, max(1, size)):
        length = min(n - start, size)
        yield start, start + length, room if length == size else [one[:length] for one in room]


def _ascending(rows: Tensor) -> np.ndarray:
    """The places of each row's entries from the smallest magnitude to the largest, equal ones in
    their order, (rows, width)."""
    magnitudes = rows.detach().abs().cpu().numpy()
    if magnitudes.dtype != np.float32:
        return np.argsort(magnitudes, axis=1, kind="stable")
    # The bits of floats that are not negative sort as the floats do; with the place behind them
    # no two keys are the same, and the fast unstable sort gives the stable order.
    keys = magnitudes.view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(magnitudes.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & np.uint64(2**32 - 1)).astype(np.int64)


def _rng(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(key))


def _mask(mask: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(mask.view(np.uint8)).to(like.device)
