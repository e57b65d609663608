"""Spherical interpolation between two models or their deltas, by tensor, row or column."""

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.methods.gram import combined, gram
from mergekit_rl.registry import Context, PerModel, method

_COLINEAR = 1e-14  # 1 − cos²: what rounding leaves of exactly colinear vectors


def _check(*, weight: list[float], **_: object) -> None:
    if abs(sum(weight)) <= 1e-12 * sum(map(abs, weight)):
        raise EditError(
            "the weights sum to zero, so they give no place between the two models: change them"
        )


@method(takes="tensors", base="optional", models=(2, 2), check=_check, scratch=(3, 1))
def nuslerp(
    base: Tensor | None,
    tensors: list[Tensor],
    *,
    weight: PerModel[float],
    nuslerp_flatten: bool = True,
    nuslerp_row_wise: bool = False,
    ctx: Context,
) -> Tensor:
    """Interpolate along the arc between two models or, with a base, between their deltas.

    [sin((1−t)θ)·x₁ + sin(tθ)·x₂] / sin θ with t = w₂/(w₁ + w₂) and θ the angle between the vectors,
    whose lengths stay as they are; linear where they are colinear or one is zero.

    Args:
        weight: of the two models; only their ratio counts.
        nuslerp_flatten: the vectors are whole tensors.
        nuslerp_row_wise: without `nuslerp_flatten`, the vectors run along the first dim, one per
            column of an [out, in] weight; else along the last, one per row.

    Raises:
        EditError: the weights sum to zero.

    Source: slerp, Shoemake (1985), doi:10.1145/325165.325242.
    """
    _check(weight=weight)
    t = weight[1] / (weight[0] + weight[1])
    one, two = tensors if base is None else [tensor - base for tensor in tensors]
    if nuslerp_flatten or one.ndim == 0:
        products = torch.from_numpy(gram([one, two]))
        shares = _shares(products[0, 0], products[0, 1], products[1, 1], t)
        merged = combined([one, two], [float(share) for share in shares])
    else:
        dim = 0 if nuslerp_row_wise else -1
        pairs = ((one, one), (one, two), (two, two))
        products = [_dots(a, b, dim) for a, b in pairs]
        first, second = (share.to(one.dtype) for share in _shares(*products, t))
        merged = (one * first).addcmul_(two, second)
    return merged if base is None else base - (0.0 - merged)


def _shares(aa: Tensor, ab: Tensor, bb: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """The factors of two vectors from their inner products, elementwise in fp64."""
    zero = (aa == 0) | (bb == 0)
    cos = (ab / (aa * bb).sqrt().masked_fill(zero, 1.0)).clamp(-1, 1)
    linear = zero | (1 - cos**2 <= _COLINEAR)
    angle = torch.acos(cos)
    sine = torch.sin(angle).masked_fill(linear, 1.0)
    first, second = torch.sin((1 - t) * angle) / sine, torch.sin(t * angle) / sine
    return first.masked_fill(linear, 1 - t), second.masked_fill(linear, t)


def _dots(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Inner products along a dim, kept as one of length 1, in fp64."""
    total = torch.zeros_like(a.sum(dim, keepdim=True), dtype=torch.float64)
    if dim == 0:
        for x, y in zip(a.split(256), b.split(256), strict=True):
            total += (x.double() * y.double()).sum(0, keepdim=True)
        return total
    if a.ndim == 1:
        return (a.double() * b.double()).sum(-1, keepdim=True)
    for out, x, y in zip(total.split(256), a.split(256), b.split(256), strict=True):
        out.copy_((x.double() * y.double()).sum(-1, keepdim=True))
    return total
