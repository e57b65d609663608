"""Products of a few fp64 rows with a large matrix of a narrower dtype, a block at a time: the
matrix is never held in fp64."""

import math

import torch
from torch import Tensor


def _block(a: Tensor) -> int:
    """Entries upcast at a time: what fits a core's cache, or what keeps a GPU busy."""
    return 2**18 if a.device.type == "cpu" else 2**25


def times(rows: Tensor, a: Tensor) -> Tensor:
    """rows (k, m) in fp64 times `a` (m, n) of any float dtype, in fp64."""
    if a.dtype == torch.float64:
        return rows @ a
    m, n = a.shape
    out = rows.new_zeros(rows.shape[0], n)
    # Blocks along the axis that lies whole in memory, so that upcasting reads it in order.
    if a.stride(-1) == 1 or n == 1:
        step = max(1, _block(a) // max(1, n))
        for at in range(0, m, step):
            part = slice(at, at + step)
            out.addmm_(rows[:, part], a[part].to(torch.float64))
    else:
        step = max(1, _block(a) // max(1, m))
        for at in range(0, n, step):
            part = slice(at, at + step)
            torch.mm(rows, a[:, part].to(torch.float64), out=out[:, part])
    return out


def energy(a: Tensor) -> float:
    """‖a‖² in fp64, of any float dtype."""
    return float(torch.linalg.vector_norm(a, dtype=torch.float64)) ** 2


def tame(a: Tensor) -> tuple[Tensor, float]:
    """A matrix whose largest entry fp32 can square, and the power of two it was divided by: `a`
    itself and 1 where it is neither huge nor tiny."""
    least, most = torch.aminmax(a) if a.numel() else (a.new_zeros(()), a.new_zeros(()))
    peak = max(abs(float(least)), abs(float(most)))
    if peak == 0.0 or 1e-10 < peak < 1e10:
        return a, 1.0
    scale = 2.0 ** math.floor(math.log2(peak))
    tamed = a.to(torch.float64) / scale
    return (tamed if a.dtype == torch.float64 else tamed.to(torch.float32)), scale
