"""What an update looks like beside its base: one pure function per measure.

Every function takes matrices (m, n) of any float dtype and computes in fp64; r = min(m, n).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BF16_TOLERANCE = 1e-3
"""Relative difference up to which two bf16 weights count as equal (arXiv:2511.08567)."""
VISIBLE_IN = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Decomposition:
    """A thin SVD in fp64: U (m, r), S (r,) descending, Vh (r, n)."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def decompose(w: Tensor) -> Decomposition:
    """The thin SVD of an (m, n) matrix, in fp64."""
    return Decomposition(*torch.linalg.svd(w.to(torch.float64), full_matrices=False))


def relative_size(w0: Tensor, delta: Tensor) -> float:
    """‖Δ‖ / ‖W₀‖."""
    norm = _norm(w0)
    return _norm(delta) / norm if norm else math.inf if _norm(delta) else 0.0


# Measure 2: the spectrum of the update


def truncation_energy(s: Tensor) -> Tensor:
    """F(k) = Σ_{i≤k} σ_i² / Σ σ_i² for k = 1 … r; zeros where Δ is 0.

    Args:
        s: (r,), the update's singular values, descending.
    """
    running = (s**2).cumsum(0)
    return running / running[-1] if float(running[-1]) > 0 else running


def stable_rank(s: Tensor) -> float:
    """‖Δ‖_F² / σ₁², from 1 to the rank of Δ; 0 where Δ is 0."""
    return float((s**2).sum() / s[0] ** 2) if float(s[0]) > 0 else 0.0


def effective_rank(s: Tensor) -> float:
    """exp(H(p)) with p_i = σ_i² / Σ σ²: from 1, all energy in one direction, to r, spread evenly; 0
    where Δ is 0 (Roy & Vetterli, 2007)."""
    total = float((s**2).sum())
    if total == 0:
        return 0.0
    p = s**2 / total
    return math.exp(float(torch.special.entr(p).sum()))


# Measure 3: where in the base's basis


def rewiring(w0: Decomposition, delta: Tensor) -> Tensor:
    """M = Uᵀ Δ V, the update in the basis of W₀'s singular vectors, (r, r)."""
    return w0.U.T @ delta.to(torch.float64) @ w0.Vh.T


def block_energy(m: Tensor, total: float) -> Tensor:
    """Share of ‖Δ‖² in the leading j×j block of M, for j = 1 … r.

    Args:
        m: (r, r), from `rewiring`.
        total: ‖Δ‖², > 0; more than ‖M‖² where W₀ is not square.
    """
    squares = (m**2).cumsum(0).cumsum(1).diagonal()
    return squares / total if total > 0 else torch.zeros_like(squares)


def diagonal_share(m: Tensor) -> float:
    """Σ M_ii² / ‖M‖²: how much rescales existing directions rather than re-routing between them."""
    total = float((m**2).sum())
    return float((m.diagonal() ** 2).sum()) / total if total > 0 else 0.0


# Measure 4: how far the spectral subspaces turned


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Angles between two subspaces, ascending, in radians from 0 to π/2.

    Small ones come from their sines, which the arc cosine would lose (Björck & Golub, 1973).

    Args:
        a, b: (d, k), orthonormal columns.
    """
    cosines = torch.linalg.svdvals(a.T @ b).clamp(0, 1)
    sines = torch.linalg.svdvals(b - a @ (a.T @ b)).clamp(0, 1).flip(0)
    return torch.where(cosines > 0.7, sines.asin(), cosines.acos())


def spectral_shift(s0: Tensor, s1: Tensor) -> float:
    """‖σ(W₁) − σ(W₀)‖ / ‖σ(W₀)‖."""
    norm = _norm(s0)
    return _norm(s1 - s0) / norm if norm else 0.0


# Measure 5: how many entries moved


def unchanged_share(w0: Tensor, w1: Tensor) -> float:
    """Share of entries that are exactly equal."""
    return float((w0.to(torch.float64) == w1.to(torch.float64)).double().mean())


def bf16_unchanged_share(w0: Tensor, w1: Tensor) -> float:
    """Share of entries with |w − ŵ| ≤ 1e-3·max(|w|, |ŵ|), the criterion under which RL updates were
    reported sparse (arXiv:2511.08567)."""
    a, b = w0.to(torch.float64), w1.to(torch.float64)
    near = (a - b).abs() <= BF16_TOLERANCE * torch.maximum(a.abs(), b.abs())
    return float(near.double().mean())


def visible_share(w0: Tensor, w1: Tensor, dtype: torch.dtype) -> float:
    """Share of entries that differ once both are cast to `dtype`."""
    return float((w0.to(dtype) != w1.to(dtype)).double().mean())


# Measure 6: on which weights


def update_mask(w0: Tensor, w1: Tensor) -> Tensor:
    """(m, n) bool: the entries that the update moved beyond bf16's resolution."""
    a, b = w0.to(torch.float64), w1.to(torch.float64)
    return (a - b).abs() > BF16_TOLERANCE * torch.maximum(a.abs(), b.abs())


def top_mask(score: Tensor, share: float) -> Tensor:
    """(m, n) bool: the ⌈share·mn⌉ entries of largest score, the lowest index first among equals."""
    flat = score.reshape(-1)
    count = min(flat.numel(), max(1, math.ceil(share * flat.numel() - 1e-9)))
    cut = flat.kthvalue(flat.numel() - count + 1).values
    mask = flat > cut
    ties = (flat == cut).nonzero().reshape(-1)
    mask[ties[: count - int(mask.sum())]] = True
    return mask.reshape(score.shape)


def principal_mask(w0: Decomposition, k: int, share: float) -> Tensor:
    """The entries that carry most of W₀'s leading k directions: the top `share` of |rank-k W₀|."""
    return top_mask(((w0.U[:, :k] * w0.S[:k]) @ w0.Vh[:k]).abs(), share)


def low_magnitude_mask(w0: Tensor, share: float) -> Tensor:
    """The smallest `share` of |W₀|."""
    return top_mask(-w0.to(torch.float64).abs(), share)


def mask_overlap(update: Tensor, mask: Tensor) -> tuple[float, float]:
    """The share of the update's entries that lie in the mask, and that share if they lay anywhere:
    the mask's own. (0, that) where nothing moved."""
    moved = int(update.sum())
    hit = int((update & mask).sum())
    return (hit / moved if moved else 0.0), float(mask.double().mean())


# Measure 7: between experts


def cosine(a: Tensor, b: Tensor) -> float:
    """⟨Δ_a, Δ_b⟩ / ‖Δ_a‖‖Δ_b‖; 0 where either is 0."""
    norms = _norm(a) * _norm(b)
    product = float((a.to(torch.float64) * b.to(torch.float64)).sum())
    return product / norms if norms else 0.0


def sign_conflict(a: Tensor, b: Tensor) -> float:
    """Share of the entries both move that they move in opposite directions."""
    shared = (a != 0) & (b != 0)
    count = int(shared.sum())
    return float(((a.sign() != b.sign()) & shared).sum()) / count if count else 0.0


def support_jaccard(a: Tensor, b: Tensor) -> float:
    """|moved by both| / |moved by either|."""
    either = int(((a != 0) | (b != 0)).sum())
    return int(((a != 0) & (b != 0)).sum()) / either if either else 0.0


def unique_share(a: Tensor, b: Tensor) -> float:
    """Share of the entries that `a` moves which `b` leaves."""
    moved = int((a != 0).sum())
    return int(((a != 0) & (b == 0)).sum()) / moved if moved else 0.0


def subspace_overlap(a: Tensor, b: Tensor) -> float:
    """‖U_aᵀ U_b‖² / k: 1 for equal subspaces, k/d in expectation for random ones of ℝ^d.

    Args:
        a, b: (d, k), orthonormal columns.
    """
    return float((a.T @ b).square().sum()) / a.shape[1]


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.to(torch.float64)))
