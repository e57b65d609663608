"""Products of a few fp64 rows with a large matrix of a narrower dtype, a block at a time: the
matrix is never held in fp64."""

import torch
from torch import Tensor

_BLOCK = 2**18  # entries upcast at a time


def times(rows: Tensor, a: Tensor) -> Tensor:
    """rows (k, m) in fp64 times `a` (m, n) of any float dtype, in fp64."""
    if a.dtype == torch.float64:
        return rows @ a
    m, n = a.shape
    out = rows.new_zeros(rows.shape[0], n)
    # Blocks along the axis that lies whole in memory, so that upcasting reads it in order.
    if a.stride(-1) == 1 or n == 1:
        step = max(1, _BLOCK // max(1, n))
        for at in range(0, m, step):
            part = slice(at, at + step)
            out.addmm_(rows[:, part], a[part].to(torch.float64))
    else:
        step = max(1, _BLOCK // max(1, m))
        for at in range(0, n, step):
            part = slice(at, at + step)
            torch.mm(rows, a[:, part].to(torch.float64), out=out[:, part])
    return out


def energy(a: Tensor) -> float:
    """‖a‖² in fp64, of any float dtype."""
    if a.dtype == torch.float64:
        return float(torch.linalg.vector_norm(a)) ** 2
    flat = a.reshape(-1) if a.is_contiguous() else a.T.reshape(-1)
    total = 0.0
    for piece in flat.split(_BLOCK):
        total += float(torch.linalg.vector_norm(piece.to(torch.float32))) ** 2
    return total
