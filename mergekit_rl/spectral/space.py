"""Orthogonal projectors onto the column and row spaces of a matrix."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mergekit_rl.spectral.svd import gram, truncated_svd

_WELL_CONDITIONED = 1e-4  # λ_min/λ₁ of the Gram matrix above which fp32 factors serve
_REFINEMENTS = 8


@dataclass(frozen=True)
class Space:
    """A subspace of ℝ^size of dimension `dim`.

    `project` maps rows (k, size) in fp64 to their orthogonal projections.
    """

    size: int
    dim: int
    project: Callable[[Tensor], Tensor]

    @property
    def share(self) -> float:
        """dim / size: the share of its energy that a random vector keeps, in expectation."""
        return self.dim / self.size


def whole(size: int) -> Space:
    """All of ℝ^size."""
    return Space(size, size, lambda rows: rows)


def base_spaces(w: Tensor, rank: int | None = None) -> tuple[Space, Space]:
    """The column space (in ℝ^m) and the row space (in ℝ^n) that the leading singular vectors of a
    matrix span.

    Directions beyond the numerical rank, σ_i ≤ ε·max(m, n)·σ₁ with ε of fp32, belong to neither:
    a thin SVD returns arbitrary vectors for them. With `rank` None the spaces need no SVD: the
    short side is all of its ℝ^r where W has full rank (a Cholesky factorisation of the shifted Gram
    matrix decides), and the long side is projected on by least squares.

    Args:
        w: (m, n), any float dtype.
        rank: how many leading directions, ≥ 1; None for all.
    """
    m, n = w.shape
    if m < n:
        row, column = base_spaces(w.T, rank)
        return column, row
    if rank is not None and rank < n:
        svd = truncated_svd(w, rank)
        alive = int((svd.S > _cutoff(m) * svd.S[0]).sum())
        return _span(svd.U[:, :alive].T), _span(svd.Vh[:alive])
    if m > n:
        quick = _least_squares(w, torch.float32)
        if quick is not None:
            return quick, whole(n)
    return _careful_spaces(w)


def _cutoff(longest: int) -> float:
    return torch.finfo(torch.float32).eps * longest


def _span(rows: Tensor) -> Space:
    """The space that orthonormal rows (b, size) span."""
    return Space(rows.shape[1], rows.shape[0], lambda x: (x @ rows.T) @ rows)


def _careful_spaces(w: Tensor) -> tuple[Space, Space]:
    """The spaces of an (m, n) matrix, m ≥ n, whatever its condition: in fp64."""
    m, n = w.shape
    g = gram(w, torch.float64)
    cutoff = _cutoff(m) ** 2 * _largest_eigenvalue(g)
    if cutoff > 0 and _is_positive(g, cutoff):
        if m == n:
            return whole(m), whole(n)
        found = _least_squares(w, torch.float64, g)
        if found is not None:
            return found, whole(n)
    values, vectors = torch.linalg.eigh(g)
    alive = values > cutoff
    right = vectors[:, alive].T  # (ρ, n)
    left = (right @ w.T.to(torch.float64)) / values[alive].sqrt()[:, None]
    left = torch.linalg.qr(left.T)[0].T if left.shape[0] else left
    return _span(left), _span(right)


def _least_squares(w: Tensor, dtype: torch.dtype, g: Tensor | None = None) -> Space | None:
    """The column space of an (m, n) matrix of full rank, m > n: x ↦ W (WᵀW)⁻¹ Wᵀ x.

    The Gram matrix is factored in `dtype`; the projection is refined in fp64 until it stands. None
    where fp32 factors would not do.
    """
    m, n = w.shape
    if g is None:
        g = gram(w, dtype)
        largest = _largest_eigenvalue(g)
        if largest == 0 or not _is_positive(g, _WELL_CONDITIONED * largest):
            return None
    factor, failed = torch.linalg.cholesky_ex(g)
    if int(failed):
        return None
    exact = w.to(torch.float64)

    def project(rows: Tensor) -> Tensor:
        solution = rows.new_zeros(rows.shape[0], n)
        image = torch.zeros_like(rows)
        enough = 1e-8 * float(torch.linalg.vector_norm(rows))
        for _ in range(_REFINEMENTS):
            right = ((rows - image) @ exact).to(dtype)
            solution = solution + torch.cholesky_solve(right.T, factor).T.to(torch.float64)
            previous, image = image, solution @ exact.T
            if float(torch.linalg.vector_norm(image - previous)) <= enough:
                break
        return image

    return Space(m, n, project)


def _is_positive(g: Tensor, shift: float) -> bool:
    """Whether all eigenvalues of a symmetric matrix exceed `shift` (Sylvester's law of inertia)."""
    shifted = g.clone()
    shifted.diagonal().sub_(shift)
    return int(torch.linalg.cholesky_ex(shifted)[1]) == 0


def _largest_eigenvalue(g: Tensor) -> float:
    """λ₁ of a Gram matrix, to about 1 %: subspace iteration from a fixed start."""
    n = g.shape[0]
    if n <= 64:
        return float(torch.linalg.eigvalsh(g)[-1])
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(8, n, generator=generator, dtype=torch.float64).to(g.device, g.dtype)
    for _ in range(8):
        rows = torch.linalg.qr((rows @ g).T)[0].T
    return float(torch.linalg.eigvalsh((rows @ g) @ rows.T)[-1])
