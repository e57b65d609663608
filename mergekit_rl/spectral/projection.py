"""SAR: the part of an RL update that lies in the base's spectral space, and its controls."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from mergekit_rl.spectral.space import Space, base_spaces, random_space, whole
from mergekit_rl.spectral.svd import truncated_svd
from mergekit_rl.spectral.thin import times
from mergekit_rl.spectral.truncation import Truncation

Projection = Literal["spectral", "random", "none"]
PROJECTIONS: tuple[str, ...] = get_args(Projection)
Mask = Literal["full", "diagonal", "off-diagonal"]
MASKS: tuple[str, ...] = get_args(Mask)


@dataclass(frozen=True)
class Rewiring:
    """One edited matrix: Δ* = B A, and what it kept.

    Attributes:
        B, A: fp32 factors (m, k) and (k, n); their product, not either alone, is what they mean.
        base_rank: dimension b of the base's spectral space that was projected on, at most r.
        kept: ‖Δ*‖², before `scale`.
        chance: the share of ‖Δ_k‖² that random subspaces of the same dimensions would keep; None
            where that is not known.
        scale: the factor that B carries.
    """

    B: Tensor
    A: Tensor
    base_rank: int
    kept: float
    chance: float | None
    scale: float = 1.0


class Projector:
    """Rewires updates of one weight: what has to be known of W₀ is computed once.

    With the `spectral` projection Δ* = scale · U_b M V_bᵀ, M = U_bᵀ Δ_k V_b, where U_b and V_b are
    the leading singular vectors of W₀. With b full and W₀ square of full rank that is Δ_k itself;
    with W₀ tall only the left side acts, with W₀ wide only the right. The controls: `random` takes
    Haar-random subspaces of the same dimensions instead, `none` does not project.

    A mask keeps of M the diagonal (existing directions are rescaled) or the rest (they are
    re-routed); its factors have rank b, not k.

    Args:
        w0: the base's weight W₀, (m, n), any float dtype.
        base_rank: b, ≥ 1; None or anything from r up is all of W₀'s numerical rank.
        generator: CPU generator of the random subspaces.

    Source: Subspace-Aligned Rewiring (Zhang et al., 2026, arXiv:2607.03065).
    """

    def __init__(
        self,
        w0: Tensor,
        *,
        base_rank: int | None = None,
        projection: Projection = "spectral",
        mask: Mask = "full",
        generator: torch.Generator | None = None,
    ) -> None:
        self._w0 = w0
        self._base_rank = base_rank
        self._projection = projection
        self._mask = mask
        self._generator = generator

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """The column space and the row space projected on."""
        if self._projection == "none":
            return whole(self._w0.shape[0]), whole(self._w0.shape[1])
        if self._mask != "full":
            u, vh = self._basis
            return Space.spanned_by(u), Space.spanned_by(vh)
        column, row = base_spaces(self._w0, self._base_rank)
        if self._projection == "spectral":
            return column, row
        generator = self._generator or torch.Generator().manual_seed(0)
        device = self._w0.device
        return random_space(column, generator, device), random_space(row, generator, device)

    def rewire(self, update: Truncation, scale: float = 1.0) -> Rewiring:
        """Δ* of an update of W₀.

        >>> from mergekit_rl.spectral.truncation import truncate
        >>> update = truncate(torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])), 2)
        >>> found = Projector(torch.eye(4)).rewire(update)
        >>> [round(x, 4) for x in (found.B @ found.A).diagonal().tolist()]
        [4.0, 3.0, 0.0, 0.0]
        """
        left, right = update.left, update.right
        if update.energy == 0.0:
            b = min(self._w0.shape)
            if self._projection != "none" and self._base_rank is not None:
                b = min(self._base_rank, b)
            return _rewiring(left[:b], right[:b], b, 1.0, 1.0)
        column, row = self.spaces
        if self._mask != "full":
            b = min(column.dim, row.dim)
            left, right = self._masked(left, right)
            count = b if self._mask == "diagonal" else b * b - b
            return _rewiring(left, right, b, count / self._w0.numel(), scale)
        left, right = column.project(left), row.project(right)
        return self._projected(left, right, scale)

    def rewire_all(self, updates: Sequence[Truncation]) -> list[Rewiring]:
        """Δ* of each of several Δ_k as `truncations` returns them, of one Δ: the rows of each are
        the first rows of the widest one's, so those alone are projected."""
        cut = [update for update in updates if update.method != "none"]
        if self._mask != "full" or len(cut) < 2:
            return [self.rewire(update) for update in updates]
        widest = max(cut, key=lambda update: update.rank)
        column, row = self.spaces
        left, right = column.project(widest.left), row.project(widest.right)
        return [
            self._projected(left[: update.rank], right[: update.rank])
            if update.method != "none"
            else self.rewire(update)
            for update in updates
        ]

    def project(self, delta: Tensor) -> Tensor:
        """P_U Δ P_V whole, (m, n) in fp64: what `project-first` truncates."""
        column, row = self.spaces
        delta = delta.to(torch.float64)
        return row.project(column.project(delta.T).T)

    def _projected(self, left: Tensor, right: Tensor, scale: float = 1.0) -> Rewiring:
        column, row = self.spaces
        b = min(column.dim, row.dim)
        if b < left.shape[0]:
            left, right = _recompress(left, right, b)
        return _rewiring(left, right, b, column.share * row.share, scale)

    @cached_property
    def _basis(self) -> tuple[Tensor, Tensor]:
        """The base's singular vectors as rows (b, m) and (b, n)."""
        r = min(self._w0.shape)
        b = r if self._base_rank is None else min(self._base_rank, r)
        svd = truncated_svd(self._w0, b, method="exact" if b == r else "auto")
        cutoff = torch.finfo(torch.float32).eps * max(self._w0.shape) * svd.S[0]
        alive = svd.S > cutoff
        return svd.U.T[alive], svd.Vh[alive]

    def _masked(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        u, vh = self._basis
        m = times(u, left.T) @ times(right, vh.T)  # (b, b)
        diagonal = torch.diag(m.diagonal())
        m = diagonal if self._mask == "diagonal" else m - diagonal
        return m.T @ u, vh


def _rewiring(left: Tensor, right: Tensor, b: int, chance: float, scale: float) -> Rewiring:
    return Rewiring(
        (left.T * scale).to(torch.float32).contiguous(),
        right.to(torch.float32).contiguous(),
        b,
        float(((left @ left.T) * (right @ right.T)).sum()),
        chance,
        scale,
    )


def _recompress(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The same product LᵀR from `rank` rows instead of k."""
    ql, rl = torch.linalg.qr(left.T)
    qr, rr = torch.linalg.qr(right.T)
    u, s, vh = torch.linalg.svd(rl @ rr.T, full_matrices=False)
    root = s[:rank].sqrt()
    return (ql @ (u[:, :rank] * root)).T, (root[:, None] * vh[:rank]) @ qr.T
