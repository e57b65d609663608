"""Leading eigenvectors of AᵀA by block Lanczos in fp32, refined and certified in fp64."""

import math

import torch
from torch import Tensor

from mergekit_rl.spectral.thin import energy, ready, times

_SMALLEST_GAP = 1e-3  # relative; closer than this the leading subspace itself is ill-defined
_REFINEMENTS = 6
_FP32_NOISE, _FP64_NOISE = 1e-6, 1e-14
_IN_CACHE = 2**22  # entries
# Blocks are kept as rows, (block, n): thin row-major products run two to four times faster on CPU
# than thin columns.


def leading_right_vectors(
    a: Tensor, k: int, tolerance: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, float] | None:
    """The k leading right singular vectors V of `a` as rows (k, n), (A V)ᵀ (k, m), and the
    certificate: the estimated ‖Â_k − A_k‖_F / ‖A_k‖_F, at most `tolerance`. None where a basis of
    n/2 vectors did not reach it: a method that does not iterate is cheaper then.

    Args:
        a: (m, n), m ≥ n, fp32 or fp64.
        k: 1 ≤ k < n.
        generator: CPU generator of the starting block.
    """
    guard = min(a.shape[1], k + k // 2 + 6)
    found = _lanczos(a.to(torch.float32), k, guard, tolerance, generator)
    return None if found is None else _refine(a, found, k, guard, tolerance)


def _lanczos(
    a: Tensor, k: int, guard: int, tolerance: float, generator: torch.Generator
) -> Tensor | None:
    """Rows (guard, n) that span the leading right singular space, to about fp32 precision."""
    n = a.shape[1]
    block = 8 if a.numel() <= _IN_CACHE else 16
    most = n // 2
    if guard + block > most:
        return None
    start = torch.randn(block, n, generator=generator, dtype=torch.float64)
    newest = _orthonormal_rows(start.to(a.device, a.dtype))
    across = a.T
    # AᵀA is scaled by a power of two, which is exact: f(c·A) = c·f(A) to the last bits.
    size = energy(newest @ across)
    if size == 0.0:
        return None
    scale = 2.0 ** -math.floor(math.log2(size))
    basis = a.new_empty(most + block, n)
    projected = a.new_zeros(most + block, most + block)  # basis AᵀA basisᵀ, its lower triangle
    check_at = guard + 5 * block
    size = 0
    while size + block <= most:
        basis[size : size + block] = newest
        size += block
        known = basis[:size]
        flipped = known.T
        image = (newest @ across).mul_(scale) @ a  # (block, n)
        overlap = image @ flipped  # (block, size)
        projected[size - block : size, :size] = overlap
        rest = torch.addmm(image, overlap, known, alpha=-1)
        rest.addmm_(rest @ flipped, known, alpha=-1)
        q, tail = torch.linalg.qr(rest.T)
        newest = q.T
        if size < check_at:
            continue
        values, vectors = torch.linalg.eigh(projected[:size, :size])
        values, vectors = values.flip(0), vectors.flip(1)  # descending
        residual = tail @ vectors[-block:, :k]
        if truncation_error(values, residual, k, guard, _FP32_NOISE) <= tolerance:
            return vectors[:, :guard].T @ known
        check_at = size + block * (1 + size // 128)
    return None


def _refine(
    a: Tensor, rows: Tensor, k: int, guard: int, tolerance: float
) -> tuple[Tensor, Tensor, float] | None:
    """Rayleigh–Ritz in fp64 on the span of `rows`, enlarged by its own residuals until they
    certify the tolerance."""
    a = ready(a)
    rows = _orthonormal_rows(rows.to(torch.float64))
    for _ in range(_REFINEMENTS):
        image = times(rows, a.T)  # (p, m)
        values, vectors = torch.linalg.eigh(image @ image.T)
        values, vectors = values.flip(0), vectors.flip(1)
        turn = vectors[:, :guard].T
        rows, image = turn @ rows, turn @ image
        residual = times(image[:k], a) - values[:k, None] * rows[:k]
        error = truncation_error(values, residual.T, k, guard - 1, _FP64_NOISE)
        if error <= tolerance:
            return rows[:k], image[:k], error
        rows = _orthonormal_rows(torch.cat([rows, residual]))
    return None


def truncation_error(values: Tensor, residual: Tensor, k: int, guard: int, noise: float) -> float:
    """Estimated ‖Â_k − A_k‖_F / ‖A_k‖_F of a Rayleigh–Ritz step on AᵀA.

    Residuals are orthogonal to the whole space searched, so a Ritz vector tilts by its residual
    over the distance of its eigenvalue to those outside; the `guard`-th Ritz value stands for them.

    Args:
        values: Ritz values, descending.
        residual: (·, k), the residual of each of the k leading Ritz vectors.
        guard: k < guard.
        noise: Ritz values below this share of the first are rounding, and carry nothing.
    """
    kept = [max(value, 0.0) for value in values[:k].tolist()]
    total = sum(kept)
    if total == 0.0:
        return 0.0
    outside = float(values[min(guard, len(values) - 1)])
    lost = 0.0
    for value, norm in zip(kept, torch.linalg.vector_norm(residual, dim=0).tolist(), strict=True):
        if value >= noise * kept[0]:
            gap = max(value - outside, 2 * _SMALLEST_GAP * value)
            lost += value * min(norm / gap, 1.0) ** 2
    return (lost / total) ** 0.5


def _orthonormal_rows(rows: Tensor) -> Tensor:
    """Twice orthogonalised, so that nearly dependent rows still come out orthonormal."""
    return torch.linalg.qr(torch.linalg.qr(rows.T)[0])[0].T
