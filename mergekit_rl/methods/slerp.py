"""Spherical interpolation between two models."""

import math

import torch
from torch import Tensor

from mergekit_rl.methods.gram import combined, gram
from mergekit_rl.registry import Context, method

_NEARLY_ALIGNED = 0.9995


@method(takes="tensors", models=(1, 1))
def slerp(base: Tensor, tensors: list[Tensor], *, t: float, ctx: Context) -> Tensor:
    """Interpolate along the arc from the base (t = 0) to the other model (t = 1).

    [sin((1−t)θ)·b + sin(tθ)·x] / sin θ with θ the angle between the flattened tensors; linear,
    (1−t)·b + t·x, where |cos θ| > 0.9995 or one of them is zero.

    Args:
        t: place on the arc.

    Source: Shoemake (1985), doi:10.1145/325165.325242.
    """
    (other,) = tensors
    (bb, bx), (_, xx) = gram([base, other]).tolist()
    cos = bx / math.sqrt(bb * xx) if bb > 0 and xx > 0 else 1.0
    if abs(cos) > _NEARLY_ALIGNED:
        return torch.lerp(base, other, t)
    angle = math.acos(cos)
    shares = math.sin((1 - t) * angle), math.sin(t * angle)
    return combined([base, other], [share / math.sin(angle) for share in shares])
