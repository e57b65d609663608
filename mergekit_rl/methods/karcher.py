"""The Karcher mean of models on the sphere."""

from typing import Annotated

import numpy as np
from torch import Tensor

from mergekit_rl.methods.gram import combined, gram
from mergekit_rl.registry import Context, Positive, Range, method


@method(takes="tensors", base="input", ignores=("weight",))
def karcher(
    base: Tensor | None,
    tensors: list[Tensor],
    *,
    max_iter: Annotated[int, Range(1)] = 10,
    tol: Positive = 1e-5,
    ctx: Context,
) -> Tensor:
    """Average the models' directions on the sphere, and their lengths.

    m starts at the normalised mean of uᵢ = xᵢ/‖xᵢ‖; T = mean of (θᵢ/sin θᵢ)(uᵢ − cos θᵢ m) with
    cos θᵢ = ⟨uᵢ, m⟩; m ← cos‖T‖ m + sin‖T‖ T/‖T‖ until ‖T‖ < tol; the result is m times the mean
    length. All of it lies in the span of the models, so the steps need their inner products alone.
    Where the directions cancel out, m starts at the first.

    Args:
        max_iter: steps at most.
        tol: length of the step to stop at.

    Source: Riemannian centre of mass (Karcher, 1977, doi:10.1002/cpa.3160300502).
    """
    products = gram(tensors)
    lengths = np.sqrt(np.diag(products))
    present = lengths > 0
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=present)
    cosines = products * np.outer(scale, scale)
    mean = present / len(lengths)
    size = _length(mean, cosines)
    if size <= 1e-7:
        mean, size = np.eye(len(lengths))[int(np.argmax(present))], 1.0
    mean = mean / size  # the direction m as Σ meanᵢ uᵢ
    for _ in range(max_iter):
        cos = np.clip(cosines @ mean, -1.0, 1.0)
        angle = np.arccos(cos)
        sine = np.sin(angle)
        pull = np.divide(angle, sine, out=np.ones_like(angle), where=sine > 1e-12)
        pull = np.where(present & (cos > -1 + 1e-12), pull, 0.0) / len(lengths)
        step = pull - (pull @ cos) * mean
        size = _length(step, cosines)
        if size < tol:
            break
        mean = np.cos(size) * mean + np.sin(size) / size * step
        mean = mean / _length(mean, cosines)
    return combined(tensors, mean * scale * lengths.mean())


def _length(coefficients: np.ndarray, products: np.ndarray) -> float:
    return float(np.sqrt(max(0.0, coefficients @ products @ coefficients)))
