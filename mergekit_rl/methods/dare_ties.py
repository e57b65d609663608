"""DARE with the vote of TIES."""

from torch import Tensor

from mergekit_rl.methods.consensus import Vote, elected
from mergekit_rl.methods.sparsify import DareRescale, dare
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), scratch=(0, 0.25))
def dare_ties(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    normalize: bool = False,
    lambda_: float = 1.0,
    rescale: bool = True,
    dare_rescale: DareRescale = "l1",
    vote: Vote = "weighted",
    ctx: Context,
) -> Tensor:
    """Drop entries at random, rescale the others, elect one sign per entry, sum what agrees.

    b + λΣmᵢwᵢsᵢ with sᵢ = dᵢ where a draw under `density` keeps the entry, 0 elsewhere, rescaled,
    and mᵢ = 1 where wᵢsᵢ has the sign of Σwᵢsᵢ.

    Args:
        weight: factor on each delta.
        density: probability with which each entry is kept.
        normalize: divide by the weights that agreed: an average; else a sum.
        lambda_: factor on the merged delta.
        rescale: whether what is kept is rescaled at all.
        dare_rescale: `l1` restores each delta's sum of magnitudes; `density` divides by the
            density, as in the paper.
        vote: whether the sign is that of Σwᵢsᵢ, or as in TIES' paper that of Σsᵢ.

    Source: DARE (Yu et al., 2023, arXiv:2311.03099), TIES-Merging (Yadav et al., 2023,
    arXiv:2306.01708).
    """
    how = dare_rescale if rescale else None
    drawn = enumerate(zip(deltas, density, strict=True))
    parts = [dare(delta, share, ctx.key(i), how) for i, (delta, share) in drawn]
    return elected(
        base, parts, weight, normalize=normalize, lambda_=lambda_, vote=vote, out=ctx.out
    )
