"""Arcee Fusion: only the entries whose change matters most."""

import math

import torch
from torch import Tensor

from mergekit_rl.methods.selection import largest
from mergekit_rl.registry import Context, method


@method(takes="tensors", models=(1, 1), scratch=(2.3, 0))
def arcee_fusion(base: Tensor, tensors: list[Tensor], *, ctx: Context) -> Tensor:
    """Take the other model's entries whose importance stands out, the base's elsewhere.

    The importance is I = |x − b|·KL(softmax x ‖ softmax b), one divergence per row (the last dim);
    x where I ≥ median + 1.5·(q₃ − q₁) of the tensor's importances, with the median interpolated and
    the quartiles lower order statistics.

    Source: Arcee Fusion (Arcee AI, 2025, mergekit 0.1).
    """
    (other,) = tensors
    if base.numel() == 0:
        return base.clone()
    width = base.shape[-1] if base.ndim else 1
    ours, theirs = base.reshape(-1, width), other.reshape(-1, width)
    importance = torch.empty_like(ours)
    step = max(1, 2**16 // width)
    for at in range(0, len(ours), step):
        b, x = ours[at : at + step].double(), theirs[at : at + step].double()
        p, q = x.log_softmax(1), b.log_softmax(1)
        divergence = (p.exp() * (p - q)).sum(1, keepdim=True).clamp_min_(0)
        importance[at : at + step] = (x - b).abs_() * divergence
    flat = importance.reshape(-1)
    middle = (flat.numel() - 1) / 2
    median = (_ascending(flat, math.floor(middle)) + _ascending(flat, math.ceil(middle))) / 2
    spread = _ascending(flat, (3 * (flat.numel() - 1)) // 4) - _ascending(
        flat, (flat.numel() - 1) // 4
    )
    takes = importance >= median + 1.5 * spread
    return torch.where(takes.reshape(base.shape), other, base)


def _ascending(flat: Tensor, place: int) -> float:
    """The value at a place of the sorted importances."""
    return largest(flat, flat.numel() - place).level if place else float(flat.min())
