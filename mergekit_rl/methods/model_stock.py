"""Model Stock: between base and average, as far as the experts agree."""

import numpy as np
import torch
from torch import Tensor

from mergekit_rl.methods.consensus import added
from mergekit_rl.methods.gram import gram
from mergekit_rl.methods.sparsify import whole
from mergekit_rl.registry import Context, method


@method(takes="deltas", models=(2, None), ignores=("weight",), scratch=(0.5, 0))
def model_stock(
    base: Tensor, deltas: list[Tensor], *, filter_wise: bool = False, ctx: Context
) -> Tensor:
    """Interpolate between base and average by how far the deltas point the same way.

    b + t·mean(d) with t = N·c / (1 + (N−1)·c), c the mean cosine between two deltas. Where the
    deltas cancel out (1 + (N−1)·c = 0) t is 0.

    Args:
        filter_wise: a cosine and t for each row (along the last dim) in place of each tensor.

    Source: Model Stock (Jang et al., 2024, arXiv:2403.19522).
    """
    count = len(deltas)
    if not filter_wise or base.ndim == 0 or base.numel() == 0:
        products = gram(deltas)
        lengths = np.sqrt(np.diag(products))
        scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        cosines = products * np.outer(scale, scale)
        total = torch.tensor(cosines.sum())  # ‖Σ dᵢ/‖dᵢ‖‖²
        share = _share(total, torch.tensor(np.trace(cosines)), count)
        return added(
            base, [whole(delta) for delta in deltas], [float(share) / count] * count, out=ctx.out
        )
    rows = [delta.reshape(-1, base.shape[-1]) for delta in deltas]
    out = base.reshape(rows[0].shape).clone()
    step = max(1, 2**16 // base.shape[-1])
    for at in range(0, len(out), step):
        directions, present = 0.0, 0.0
        for row in rows:
            values = row[at : at + step].double()
            length = torch.linalg.vector_norm(values, dim=1, keepdim=True)
            directions = directions + values / length.masked_fill(length == 0, 1.0)
            present = present + (length > 0).double()
        total = directions.square().sum(1, keepdim=True)
        mean = sum(row[at : at + step].double() for row in rows) / count
        out[at : at + step].sub_((0.0 - _share(total, present, count) * mean).to(out.dtype))
    return out.reshape(base.shape)


def _share(total: Tensor, present: Tensor, count: int) -> Tensor:
    """t from ‖Σuᵢ‖² and Σ‖uᵢ‖² of `count` directions uᵢ."""
    if count == 1:
        return torch.ones_like(total)
    cosine = (total - present) / (count * (count - 1))
    under = 1 + (count - 1) * cosine
    gone = under <= 1e-12
    return (count * cosine / under.masked_fill(gone, 1.0)).masked_fill(gone, 0.0)
