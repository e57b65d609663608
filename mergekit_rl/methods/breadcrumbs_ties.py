"""Model Breadcrumbs with the vote of TIES."""

from torch import Tensor

from mergekit_rl.methods.consensus import Vote, elected
from mergekit_rl.methods.sparsify import outliers, rescaled
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), scratch=(0.5, 0))
def breadcrumbs_ties(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    gamma: PerModel[Share] = 0.01,
    normalize: bool = False,
    lambda_: float = 1.0,
    rescale: bool = False,
    vote: Vote = "weighted",
    ctx: Context,
) -> Tensor:
    """Drop the largest and smallest entries, elect one sign per entry, sum what agrees.

    b + λΣmᵢwᵢsᵢ with sᵢ the ⌊density·n⌋ entries of dᵢ that follow the ⌊γn⌋ of largest magnitude,
    and mᵢ = 1 where wᵢsᵢ has the sign of Σwᵢsᵢ.

    Args:
        weight: factor on each delta.
        density: share of each delta's entries that is kept.
        gamma: share of the largest that is dropped; less where density + γ is above 1.
        normalize: divide by the weights that agreed: an average; else a sum.
        lambda_: factor on the merged delta.
        rescale: keep each delta's sum of magnitudes.
        vote: whether the sign is that of Σwᵢsᵢ, or as in TIES' paper that of Σsᵢ.

    Source: Model Breadcrumbs (Davari & Belilovsky, 2023, arXiv:2312.06795), TIES-Merging (Yadav et
    al., 2023, arXiv:2306.01708).
    """
    given = zip(deltas, density, gamma, strict=True)
    parts = [outliers(delta, share, top) for delta, share, top in given]
    if rescale:
        parts = [rescaled(part) for part in parts]
    return elected(
        base, parts, weight, normalize=normalize, lambda_=lambda_, vote=vote, out=ctx.out
    )
