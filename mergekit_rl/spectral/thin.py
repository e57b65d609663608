"""Products of a few fp64 rows with a large matrix of a narrower dtype, a block at a time: a large
matrix is never held in fp64."""

import math

import torch
from torch import Tensor


def _block(a: Tensor) -> int:
    """Entries upcast at a time: what fits a core's cache, or what keeps a GPU busy."""
    return 2**19 if a.device.type == "cpu" else 2**25


_SMALL = 2**21  # entries of a matrix whose fp64 copy nobody misses


def ready(a: Tensor) -> Tensor:
    """`a` for several calls of `times`: in fp64 at once where it is small."""
    return a.to(torch.float64) if a.numel() <= _SMALL else a


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
    """‖a‖², to about 1e-8, of any float dtype and scale."""
    if a.dtype != torch.float64 and a.numel():
        # Short sums in fp32, the sum of them in fp64: as exact as fp64 throughout, and quicker.
        total = float(torch.linalg.vector_norm(_by_rows(a), dtype=torch.float64)) ** 2
        if 1e-24 < total < 1e24:
            return total
    return float(torch.linalg.vector_norm(a, dtype=torch.float64)) ** 2


def power_to_tame(a: Tensor) -> float:
    """The power of two to divide a matrix by, so that fp32 can multiply it with itself: 1 unless it
    is huge or tiny. Exact, as only exponents change."""
    norm = energy(a) ** 0.5
    if norm == 0.0 or 1e-10 < norm < 1e10:
        return 1.0
    return 2.0 ** math.floor(math.log2(norm))


def divided(a: Tensor, power: float) -> Tensor:
    """`a` over a power of two, in its own dtype."""
    return a if power == 1.0 else (a.to(torch.float64) / power).to(a.dtype)


def _by_rows(a: Tensor) -> Tensor:
    """Norms in fp32 of pieces that together are `a`."""
    a = a.to(torch.float32)
    if a.dim() == 2:
        return torch.linalg.vector_norm(a if a.stride(-1) == 1 else a.T, dim=-1)
    flat = a.reshape(-1)
    whole = flat.numel() // 1024 * 1024
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, 1024), dim=-1)
    return torch.cat([norms, torch.linalg.vector_norm(flat[whole:]).reshape(1)])
