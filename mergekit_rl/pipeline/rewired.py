"""One matrix under the options of `sar`: truncated, projected, masked, scaled."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mergekit_rl.pipeline.kept import decomposing
from mergekit_rl.pipeline.options import SarOptions
from mergekit_rl.spectral.projection import Projector, Rewiring
from mergekit_rl.spectral.truncation import Truncation, truncations


def rewired(
    w0: Tensor,
    delta: Tensor,
    ranks: Sequence[int],
    options: SarOptions,
    start: torch.Generator,
    space: torch.Generator,
) -> list[tuple[Truncation, Rewiring]]:
    """For each rank, Δ_k and what the options keep of it, from one decomposition of Δ and one of
    W₀.

    Args:
        w0, delta: (m, n), fp32 or fp64, on one device.
        start, space: CPU generators, of the decomposition's start and of random subspaces: two,
            so that a random control does not depend on how Δ was decomposed.
    """
    b = options.base_rank.of(min(w0.shape))
    reference = options.norm_match
    if reference is not None:
        ranks = [*ranks, reference.of(min(w0.shape))]
    decompose = decomposing(options.cache)
    updates = truncations(delta, ranks, svd=options.svd, generator=start, decompose=decompose)
    projector = Projector(
        w0, base_rank=b, projection=options.projection, mask=options.mask, generator=space
    )
    norm = None
    if reference is not None:
        is_core = options.projection == "spectral" and options.mask == "full"
        core = projector if is_core else Projector(w0, base_rank=b)
        norm = core.rewire(updates.pop()).kept
    if options.order == "truncate-first":
        found = projector.rewire_all(updates)
    else:
        found = _project_first(
            delta, [update.rank for update in updates], projector, options, start
        )
    return [
        (update, _scaled(kept, norm, options.scale))
        for update, kept in zip(updates, found, strict=True)
    ]


def _project_first(
    delta: Tensor,
    ranks: list[int],
    projector: Projector,
    options: SarOptions,
    start: torch.Generator,
) -> list[Rewiring]:
    """The best rank-k parts of P_U Δ P_V: no rank-k matrix of the base's space is closer to Δ. What
    random subspaces would keep of it depends on Δ, so there is no `chance`."""
    column, row = projector.spaces
    dim = min(column.dim, row.dim)
    ranks = [min(k, max(1, dim)) for k in ranks]
    cut = truncations(projector.project(delta), ranks, svd=options.svd, generator=start)
    return [
        replace(
            Projector(delta, projection="none").rewire(part),
            base_rank=dim,
            chance=None,
        )
        for part in cut
    ]


def _scaled(found: Rewiring, norm: float | None, scale: float) -> Rewiring:
    if norm is not None:
        scale *= (norm / found.kept) ** 0.5 if found.kept > 0 else 0.0
    return found if scale == 1.0 else replace(found, B=found.B * scale, scale=scale)
