"""SAR: the part of an RL update that lies in the base's spectral space."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mergekit_rl.spectral.space import base_spaces, whole
from mergekit_rl.spectral.svd import Method, gram, truncated_svd
from mergekit_rl.spectral.thin import energy

Projection = Literal["spectral", "none"]
PROJECTIONS: tuple[str, ...] = get_args(Projection)


@dataclass(frozen=True)
class Truncation:
    """The best rank-k approximation of an update, Δ_k = Lᵀ R.

    Attributes:
        left, right: fp64 rows (k, m) and (k, n), the singular values shared evenly.
        energy: ‖Δ‖²; `kept`: ‖Δ_k‖².
        method: what computed it, see `truncated_svd`; `none` where Δ is 0 or kept whole.
    """

    left: Tensor
    right: Tensor
    energy: float
    kept: float
    method: str


@dataclass(frozen=True)
class Rewiring:
    """One edited matrix: Δ* = B A, and what it kept.

    Attributes:
        B, A: fp32 factors (m, k) and (k, n); their product, not either alone, is what they mean.
        base_rank: dimension b of the base's spectral space that was projected on, at most r.
        kept: ‖P_U Δ_k P_V‖², before `scale`.
        chance: the share of ‖Δ_k‖² that random subspaces of the same dimensions would keep.
    """

    B: Tensor
    A: Tensor
    base_rank: int
    kept: float
    chance: float


def truncate(
    delta: Tensor, k: int, *, svd: Method = "auto", generator: torch.Generator | None = None
) -> Truncation:
    """Δ_k, the best rank-k approximation of an update.

    Args:
        delta: Δ = W₁ − W₀, (m, n), fp32 or fp64.
        k: rank, ≥ 1; what exceeds r = min(m, n) counts as r, and then Δ_k is Δ itself.
        svd: how Δ is decomposed, see `truncated_svd`.
        generator: CPU generator of the decomposition's random start.
    """
    m, n = delta.shape
    k = min(k, m, n)
    whole_energy = energy(delta)
    if whole_energy == 0.0 or k == min(m, n):
        eye = torch.eye(k, max(k, min(m, n)), dtype=torch.float64, device=delta.device)
        if whole_energy == 0.0:
            zeros = [eye.new_zeros(k, size) for size in (m, n)]
            return Truncation(*zeros, 0.0, 0.0, "none")
        delta = delta.to(torch.float64)
        sides = (delta.T, eye) if m >= n else (eye, delta)
        return Truncation(*sides, whole_energy, whole_energy, "none")
    found = truncated_svd(delta, k, method=svd, generator=generator)
    root = found.S.sqrt()
    kept = float((found.S**2).sum())
    return Truncation(
        (found.U * root).T, root[:, None] * found.Vh, whole_energy, kept, found.method
    )


def rewire(
    w0: Tensor,
    update: Truncation,
    *,
    base_rank: int | None = None,
    projection: Projection = "spectral",
    scale: float = 1.0,
) -> Rewiring:
    """Δ* = scale · U_b (U_bᵀ Δ_k V_b) V_bᵀ, with Δ_k the best rank-k approximation of the update
    and U_b, V_b the leading singular vectors of the base's weight.

    With b full and W₀ square of full rank the projection is the identity; with W₀ tall only the
    left side acts, with W₀ wide only the right. `projection="none"` is Δ_k itself.

    Args:
        w0: the base's weight W₀, (m, n), any float dtype.
        update: Δ_k, from `truncate`.
        base_rank: b, ≥ 1; None or anything from r up is all of W₀'s numerical rank.
        scale: factor on Δ*.

    Source: Subspace-Aligned Rewiring (Zhang et al., 2026, arXiv:2607.03065).

    >>> w0 = torch.eye(4)
    >>> found = rewire(w0, truncate(torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])), 2))
    >>> [round(x, 4) for x in (found.B @ found.A).diagonal().tolist()]
    [4.0, 3.0, 0.0, 0.0]
    """
    left, right = update.left, update.right
    k, m, n = left.shape[0], left.shape[1], right.shape[1]
    if projection == "none":
        column, row = whole(m), whole(n)
    elif update.energy == 0.0:
        b = min(m, n) if base_rank is None else min(base_rank, m, n)
        return Rewiring(left.T.to(torch.float32), right.to(torch.float32), b, 0.0, 1.0)
    else:
        column, row = base_spaces(w0, base_rank)
    left, right = column.project(left), row.project(right)
    b = min(column.dim, row.dim)
    if b < k:
        left, right = _recompress(left, right, b)
    return Rewiring(
        (left.T * scale).to(torch.float32).contiguous(),
        right.to(torch.float32).contiguous(),
        b,
        _product_energy(left, right),
        column.share * row.share,
    )


def rank_for_energy(delta: Tensor, share: float) -> int:
    """The smallest k with ‖Δ_k‖² ≥ share·‖Δ‖²; 1 where Δ is 0.

    Args:
        delta: (m, n), fp32 or fp64.
        share: 0 < share ≤ 1.
    """
    m, n = delta.shape
    tall = delta if m >= n else delta.T
    energies = torch.linalg.eigvalsh(gram(tall, torch.float64)).flip(0).clamp_min(0)
    running = energies.cumsum(0)
    if float(running[-1]) == 0.0:
        return 1
    # Rounding in the sum may not ask for one more rank than there is.
    return min(int((running < share * running[-1] * (1 - 1e-12)).sum()) + 1, energies.numel())


def _recompress(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The same product LᵀR from `rank` rows instead of k."""
    ql, rl = torch.linalg.qr(left.T)
    qr, rr = torch.linalg.qr(right.T)
    u, s, vh = torch.linalg.svd(rl @ rr.T, full_matrices=False)
    root = s[:rank].sqrt()
    return (ql @ (u[:, :rank] * root)).T, (root[:, None] * vh[:rank]) @ qr.T


def _product_energy(left: Tensor, right: Tensor) -> float:
    """‖Lᵀ R‖² from the k×k Gram matrices."""
    return float(((left @ left.T) * (right @ right.T)).sum())
