"""The one sum every edited weight comes from, and what its rounding leaves visible."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 2**19  # entries: a few arrays of it fit the caches


@dataclass(frozen=True)
class Visibility:
    """What a dtype shows of an edit.

    Attributes:
        changed: entries with cast(W₀ + Δ*) ≠ cast(W₀).
        entries: all entries.
        rounding: ‖cast(W₀ + Δ*) − W₀ − Δ*‖².
    """

    changed: int
    entries: int
    rounding: float


def edit(w0: Tensor, b: Tensor, a: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """W₀ + scale·B A, summed in fp32 (fp64 for an fp64 W₀) and cast once; W₀ itself, cast, where
    the product is 0.

    Args:
        w0: (m, n), any float dtype; left as it is.
        b, a: contiguous fp32 factors (m, k) and (k, n).
        dtype: of the result.
    """
    if scale == 0.0 or not bool(a.any()) or not bool(b.any()):
        return w0.to(dtype)
    out = torch.empty(w0.shape, dtype=dtype, device=w0.device)
    for rows, start, delta in _blocks(w0, b, a, scale):
        out[rows] = (start + delta).to(dtype)
    return out


def visibility(w0: Tensor, b: Tensor, a: Tensor, dtype: torch.dtype) -> Visibility:
    """How much of W₀ + B A differs from W₀ once cast to `dtype`; arguments as in `edit`."""
    changed, rounding = 0, 0.0
    for _, start, delta in _blocks(w0, b, a, 1.0):
        cast = (start + delta).to(dtype).to(start.dtype)
        # A difference is 0 only between equals; counting it is quicker than comparing.
        changed += int(torch.count_nonzero(cast - start.to(dtype).to(start.dtype)))
        lost = cast.sub_(start).sub_(delta)
        rounding += float(torch.linalg.vector_norm(lost)) ** 2
    return Visibility(changed, w0.numel(), rounding)


def _blocks(
    w0: Tensor, b: Tensor, a: Tensor, scale: float
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Row blocks: their place, W₀ and scale·B A in fp32, or in fp64 for an fp64 W₀."""
    wide = torch.float64 if w0.dtype == torch.float64 else torch.float32
    m, n = w0.shape
    step = max(1, _BLOCK // max(1, n))
    for at in range(0, m, step):
        rows = slice(at, at + step)
        delta = (b[rows] @ a).to(wide)
        yield rows, w0[rows].to(wide), delta if scale == 1.0 else delta.mul_(scale)
