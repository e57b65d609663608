"""Random entries of a delta."""

from torch import Tensor

from mergekit_rl.methods import sparsify
from mergekit_rl.registry import Context, Share, stage


@stage("preprocess")
def dare(
    base: Tensor,
    delta: Tensor,
    *,
    density: Share,
    dare_rescale: sparsify.DareRescale = "l1",
    model: int,
    ctx: Context,
) -> Tensor:
    """Drop entries at random and rescale the others.

    Args:
        density: probability with which each entry is kept.
        dare_rescale: `l1` restores the sum of magnitudes; `density` divides by the density, as in
            the paper.

    Source: DARE (Yu et al., 2023, arXiv:2311.03099).
    """
    part = sparsify.dare(delta, density, ctx.key(model), dare_rescale)
    return part.whole().reshape(delta.shape)
