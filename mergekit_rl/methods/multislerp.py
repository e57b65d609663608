"""Weighted averages on the sphere."""

import math

import numpy as np
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.methods.gram import combined, gram
from mergekit_rl.registry import Context, NonNegative, PerModel, method


def _check(*, weight: list[float], normalize_weights: bool, **_: object) -> None:
    if normalize_weights and abs(sum(weight)) <= 1e-12 * sum(map(abs, weight)):
        raise EditError(
            "the weights sum to zero, so there is no average: change them, or set "
            "normalize_weights: false"
        )


@method(takes="tensors", base="optional", check=_check, scratch=(3, 1))
def multislerp(
    base: Tensor | None,
    tensors: list[Tensor],
    *,
    weight: PerModel[float],
    normalize_weights: bool = True,
    eps: NonNegative = 1e-8,
    ctx: Context,
) -> Tensor:
    """Average directions and lengths of the models or, with a base, of their deltas.

    With uᵢ = xᵢ/(‖xᵢ‖ + eps), μ = Σwᵢuᵢ and m = μ/‖μ‖, the mean τ = Σwᵢ(uᵢ − ⟨uᵢ, m⟩m) in the
    tangent space at m, projected back with a = ‖τ‖ + eps, is (m cos a + τ sin a / a)·Σwᵢ‖xᵢ‖. As
    τ = μ − ⟨μ, m⟩m is zero, that is cos(eps)·Σwᵢ‖xᵢ‖·m. Directions that cancel out give zero.

    Args:
        weight: of each model.
        normalize_weights: divide the weights by their sum.
        eps: added to lengths.

    Raises:
        EditError: the weights to normalise by sum to zero.

    Source: MultiSLERP (Goddard, 2024, huggingface.co/blog/chargoddard/multislerp), weights on a
    sphere: Buss & Fillmore (2001), doi:10.1145/502122.502124.
    """
    _check(weight=weight, normalize_weights=normalize_weights)
    vectors = tensors if base is None else [tensor - base for tensor in tensors]
    w = np.array(weight) / (sum(weight) if normalize_weights else 1.0)
    products = gram(vectors)
    lengths = np.sqrt(np.diag(products))
    shares = np.divide(w, lengths + eps, out=np.zeros_like(w), where=lengths > 0)
    merged = combined(vectors, shares)
    # Its own length and not one from the products: directions may cancel out but for little.
    length = math.sqrt(gram([merged])[0, 0])
    if length <= 1e-6 * np.abs(w).sum():
        merged.zero_()
    else:
        merged.mul_(math.cos(eps) * float(w @ lengths) / length)
    return merged if base is None else base - (0.0 - merged)
