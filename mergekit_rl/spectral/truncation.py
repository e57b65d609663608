"""The best approximations of an update by matrices of low rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mergekit_rl.spectral.svd import Method, TruncatedSVD, gram, truncated_svd
from mergekit_rl.spectral.thin import energy

Decompose = Callable[..., TruncatedSVD]
"""Of the signature of `truncated_svd`."""


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

    @property
    def rank(self) -> int:
        """k."""
        return self.left.shape[0]


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
    return truncations(delta, [k], svd=svd, generator=generator)[0]


def truncations(
    delta: Tensor,
    ranks: Sequence[int],
    *,
    svd: Method = "auto",
    generator: torch.Generator | None = None,
    decompose: Decompose = truncated_svd,
) -> list[Truncation]:
    """Δ_k for each of several k, from one decomposition; arguments as in `truncate`.

    `decompose` does what `truncated_svd` does; how its results lie in memory changes nothing.
    """
    r = min(delta.shape)
    ranks = [min(k, r) for k in ranks]
    total = energy(delta)
    if total == 0.0:
        return [_zero(delta, k) for k in ranks]
    largest = max((k for k in ranks if k < r), default=0)
    found = decompose(delta, largest, method=svd, generator=generator) if largest else None
    if found is not None:
        root = found.S.sqrt()
        left, right = _laid_out((found.U * root).T), _laid_out(root[:, None] * found.Vh)
    kept = []
    for k in ranks:
        if k == r:
            kept.append(_whole(delta, total))
        else:
            share = float((found.S[:k] ** 2).sum())
            kept.append(Truncation(left[:k], right[:k], total, share, found.method))
    return kept


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


def _laid_out(rows: Tensor) -> Tensor:
    """The same row by row in memory: products of it round by how it lies."""
    return rows.clone(memory_format=torch.contiguous_format)


def _zero(delta: Tensor, k: int) -> Truncation:
    sides = [torch.zeros(k, size, dtype=torch.float64, device=delta.device) for size in delta.shape]
    return Truncation(*sides, 0.0, 0.0, "none")


def _whole(delta: Tensor, total: float) -> Truncation:
    """Δ itself, exactly: the identity on its short side."""
    m, n = delta.shape
    eye = torch.eye(min(m, n), dtype=torch.float64, device=delta.device)
    delta = delta.to(torch.float64)
    return Truncation(*((delta.T, eye) if m >= n else (eye, delta)), total, total, "none")
