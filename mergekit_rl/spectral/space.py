"""Orthogonal projectors onto the column and row spaces of a matrix."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mergekit_rl.spectral.svd import gram, truncated_svd
from mergekit_rl.spectral.thin import divided, power_to_tame, ready, times

_WELL_CONDITIONED = 3e-5  # λ_min/‖G‖ of the Gram matrix above which fp32 factors serve
_INVERSE_STEPS = 12
_CLEARLY = 4  # an estimate of σ_min this many times the cutoff settles that W has full rank
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

    @staticmethod
    def spanned_by(rows: Tensor) -> "Space":
        """The space that orthonormal rows (b, size) span."""
        return Space(rows.shape[1], rows.shape[0], lambda x: (x @ rows.T) @ rows)


def whole(size: int) -> Space:
    """All of ℝ^size."""
    return Space(size, size, lambda rows: rows)


def base_spaces(w: Tensor, rank: int | None = None) -> tuple[Space, Space]:
    """The column space (in ℝ^m) and the row space (in ℝ^n) that the leading singular vectors of a
    matrix span.

    Directions beyond the numerical rank, σ_i ≤ ε·max(m, n)·σ₁ with ε of fp32, belong to neither:
    a thin SVD returns arbitrary vectors for them. With `rank` None the spaces need no SVD: the
    short side is all of its ℝ^r where W has full rank (a Cholesky factorisation of the shifted Gram
    matrix decides, or inverse iteration for a square one), and the long side is projected on by
    least squares.

    Args:
        w: (m, n), any float dtype.
        rank: how many leading directions, ≥ 1; None for all.
    """
    m, n = w.shape
    w = w if w.dtype == torch.float64 else w.to(torch.float32)
    w = divided(w, power_to_tame(w))
    if m < n:
        row, column = base_spaces(w.T, rank)
        return column, row
    if rank is not None and rank < n:
        svd = truncated_svd(w, rank)
        alive = int((svd.S > _cutoff(m) * svd.S[0]).sum())
        return Space.spanned_by(svd.U[:, :alive].T), Space.spanned_by(svd.Vh[:alive])
    if m == n:
        return _square_spaces(w) or _careful_spaces(w)
    column = _least_squares(w, torch.float32)
    return _careful_spaces(w) if column is None else (column, whole(n))


def random_space(like: Space, generator: torch.Generator, device: torch.device) -> Space:
    """A Haar-random subspace of the size and dimension of another."""
    if like.dim == like.size:
        return whole(like.size)
    normal = torch.randn(like.size, like.dim, generator=generator, dtype=torch.float64)
    return Space.spanned_by(torch.linalg.qr(normal.to(device))[0].T)


def _cutoff(longest: int) -> float:
    return torch.finfo(torch.float32).eps * longest


def _square_spaces(w: Tensor) -> tuple[Space, Space] | None:
    """The spaces of an (n, n) matrix with few directions beyond its numerical rank, as the
    complements of those; None where they are many.

    Block inverse iteration on W from an LU factorisation: the smallest singular values of RL bases
    lie far apart, so a few steps settle them.
    """
    n = w.shape[0]
    block = 16
    if n < 8 * block:
        return None
    largest = _largest_singular_value(w.to(torch.float32))
    w = w.to(torch.float64)
    lu, pivots, failed = torch.linalg.lu_factor_ex(w)
    if int(failed):
        return None
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(n, block, generator=generator, dtype=torch.float64).to(w.device)
    right = torch.linalg.qr(start)[0]
    previous = None
    for _ in range(_INVERSE_STEPS):
        left = torch.linalg.qr(torch.linalg.lu_solve(lu, pivots, right, adjoint=True))[0]
        right = torch.linalg.qr(torch.linalg.lu_solve(lu, pivots, left))[0]
        u, s, vh = torch.linalg.svd(left.T @ w @ right)
        gone = s <= _cutoff(n) * largest
        count = int(gone.sum())
        if count > block // 2 or not bool(torch.isfinite(s).all()):
            return None
        if previous is not None and float(s[-1]) > _CLEARLY * _cutoff(n) * largest:
            return whole(n), whole(n)
        settled = previous is not None and bool(
            ((s - previous).abs() <= 1e-6 * s + 1e-9 * largest)[-count - 1 :].all()
        )
        previous = s
        if settled:
            lost_left, lost_right = (left @ u)[:, gone], right @ vh.T[:, gone]
            return _complement(lost_left.T), _complement(lost_right.T)
    return None


def _largest_singular_value(w: Tensor) -> float:
    """σ₁, to about 1 %, by power iteration."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, w.shape[1], generator=generator).to(w.device)
    for _ in range(6):
        rows = (torch.linalg.qr(rows.T)[0].T @ w.T) @ w
    return float(torch.linalg.matrix_norm(rows, 2)) ** 0.5


def _complement(rows: Tensor) -> Space:
    """The space orthogonal to orthonormal rows (c, size)."""
    count, size = rows.shape
    if count == 0:
        return whole(size)
    return Space(size, size - count, lambda x: x - (x @ rows.T) @ rows)


def _careful_spaces(w: Tensor) -> tuple[Space, Space]:
    """The spaces of an (m, n) matrix, m ≥ n, whatever its condition: in fp64."""
    m, n = w.shape
    g = gram(w, torch.float64)
    values, vectors = torch.linalg.eigh(g)
    alive = values > _cutoff(m) ** 2 * values[-1]
    if bool(alive.all()) and values[-1] > 0:
        found = whole(m) if m == n else _least_squares(w, torch.float64, g)
        if found is not None:
            return found, whole(n)
    right = vectors[:, alive].T  # (ρ, n)
    left = times(right, w.T) / values[alive].sqrt()[:, None]
    left = torch.linalg.qr(left.T)[0].T if left.shape[0] else left
    return Space.spanned_by(left), Space.spanned_by(right)


def _least_squares(w: Tensor, dtype: torch.dtype, g: Tensor | None = None) -> Space | None:
    """The column space of an (m, n) matrix of full rank, m > n: x ↦ W (WᵀW)⁻¹ Wᵀ x.

    The Gram matrix is factored in `dtype`; the projection is refined in fp64 until it stands. None
    where fp32 factors would not do.
    """
    m, n = w.shape
    if g is None:
        g = gram(w, dtype)
        size = float(torch.linalg.vector_norm(g))  # at least λ₁
        if size == 0 or not _is_positive(g, max(_WELL_CONDITIONED, _cutoff(m) ** 2) * size):
            return None
    factor, failed = torch.linalg.cholesky_ex(g)
    if int(failed):
        return None
    w = ready(w)

    def project(rows: Tensor) -> Tensor:
        solution = rows.new_zeros(rows.shape[0], n)
        image = torch.zeros_like(rows)
        before = float(torch.linalg.vector_norm(rows))
        enough = 1e-7 * before
        for _ in range(_REFINEMENTS):
            right = times(rows - image, w).to(dtype)
            solution = solution + torch.cholesky_solve(right.T, factor).T.to(torch.float64)
            previous, image = image, times(solution, w.T)
            change = float(torch.linalg.vector_norm(image - previous))
            # The error that is left, at the rate it shrinks by.
            if change <= enough or (change < before and change * change / before <= enough):
                break
            before = change
        return image

    return Space(m, n, project)


def _is_positive(g: Tensor, shift: float) -> bool:
    """Whether all eigenvalues of a symmetric matrix exceed `shift` (Sylvester's law of inertia)."""
    shifted = g.clone()
    shifted.diagonal().sub_(shift)
    return int(torch.linalg.cholesky_ex(shifted)[1]) == 0
