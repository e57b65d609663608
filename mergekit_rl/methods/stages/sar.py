"""The core of an update, in place of the update."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Context, Parsed, stage
from mergekit_rl.spectral.projection import Mask, Projection, Projector
from mergekit_rl.spectral.randomness import keyed_generator
from mergekit_rl.spectral.rank import Rank
from mergekit_rl.spectral.truncation import rank_for_energy, truncate

Kept = Annotated[Rank, Parsed(Rank.parse, "a share (0.01), a number (8), energy:0.9 or full")]


def _fixed(value: object, name: str) -> Rank:
    rank = Rank.parse(value, name)
    if rank.energy is not None:
        raise EditError(f"{name} is {value}, expected a share, a number or full")
    return rank


@stage("preprocess")
def sar(
    base: Tensor,
    delta: Tensor,
    *,
    rank: Kept = Rank(ratio=0.01),  # noqa: B008  a constant
    base_rank: Annotated[Rank, Parsed(_fixed, "a share (0.5), a number (8) or full")] = Rank(),  # noqa: B008
    projection: Projection = "spectral",
    mask: Mask = "full",
    rest: Literal["base", "keep"] = "base",
    model: int,
    ctx: Context,
) -> Tensor:
    """Keep the core of the update: its rank-k part in the base's spectral space.

    As `rledit sar` does to the projections of attention and MLP; what a model learnt elsewhere is
    dropped with `rest: base` and kept with `rest: keep`.

    Source: Subspace-Aligned Rewiring (Zhang et al., 2026, arXiv:2607.03065).
    """
    if not ctx.projection:
        return delta if rest == "keep" else torch.zeros_like(delta)
    if not bool(delta.any()):
        return delta
    k = rank.of(min(delta.shape))
    if rank.energy is not None:
        k = rank_for_energy(delta, rank.energy)
    cut = truncate(delta, k, generator=keyed_generator(ctx.seed, ctx.name, ctx.index))
    projector = Projector(
        base,
        base_rank=base_rank.of(min(base.shape)),
        projection=projection,
        mask=mask,
        generator=keyed_generator(ctx.seed, f"{ctx.name} space", ctx.index),
    )
    kept = projector.rewire(cut)
    return (kept.B @ kept.A).to(delta.dtype)
