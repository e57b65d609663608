"""TIES: trim, elect signs, merge what agrees."""

from torch import Tensor

from mergekit_rl.methods.consensus import Vote, elected
from mergekit_rl.methods.sparsify import magnitude, rescaled
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), scratch=(0.5, 0))
def ties(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    normalize: bool = True,
    lambda_: float = 1.0,
    rescale: bool = False,
    vote: Vote = "weighted",
    ctx: Context,
) -> Tensor:
    """Trim each delta, elect one sign per entry, sum the entries that agree.

    b + λΣmᵢwᵢsᵢ / Σmᵢwᵢ with sᵢ the `density` share of largest magnitude of dᵢ and mᵢ = 1 where
    wᵢsᵢ has the sign of Σwᵢsᵢ.

    Args:
        weight: factor on each delta.
        density: share of each delta's entries that is kept, one at least.
        normalize: divide by the weights that agreed: an average; else a sum.
        lambda_: factor on the merged delta.
        rescale: keep each delta's sum of magnitudes.
        vote: whether the sign is that of Σwᵢsᵢ, or as in the paper that of Σsᵢ.

    Source: TIES-Merging (Yadav et al., 2023, arXiv:2306.01708).
    """
    parts = [magnitude(delta, share) for delta, share in zip(deltas, density, strict=True)]
    if rescale:
        parts = [rescaled(part) for part in parts]
    return elected(
        base, parts, weight, normalize=normalize, lambda_=lambda_, vote=vote, out=ctx.out
    )
