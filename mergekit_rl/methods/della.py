"""DELLA: keep entries at random, large ones rather, and let the rest vote as TIES does."""

from torch import Tensor

from mergekit_rl.methods.consensus import Vote, elected
from mergekit_rl.methods.sparsify import check_magprune, magprune, rescaled
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), check=check_magprune, scratch=(0, 0.25))
def della(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    epsilon: PerModel[Share] = 0.15,
    normalize: bool = True,
    lambda_: float = 1.0,
    rescale: bool = True,
    vote: Vote = "weighted",
    ctx: Context,
) -> Tensor:
    """Drop small entries rather than large ones at random, rescale, elect signs, merge.

    b + λΣmᵢwᵢsᵢ / Σmᵢwᵢ with sᵢ = dᵢ where a draw keeps the entry, 0 elsewhere, rescaled to keep
    Σ|dᵢ|, and mᵢ = 1 where wᵢsᵢ has the sign of Σwᵢsᵢ. The probability is linear in the rank of an
    entry's magnitude in its row.

    Args:
        weight: factor on each delta.
        density: mean probability with which an entry is kept; 1 keeps all, whatever ε.
        epsilon: the probability runs from density − ε for the smallest entry of a row (the last
            dim) to density + ε for the largest.
        normalize: divide by the weights that agreed: an average; else a sum.
        lambda_: factor on the merged delta.
        rescale: keep each delta's sum of magnitudes.
        vote: whether the sign is that of Σwᵢsᵢ, or as in TIES' paper that of Σsᵢ.

    Raises:
        EditError: density ± ε is not within 0 and 1.

    Source: DELLA (Deep et al., 2024, arXiv:2406.11617).
    """
    check_magprune(density=density, epsilon=epsilon)
    given = enumerate(zip(deltas, density, epsilon, strict=True))
    parts = [magprune(delta, share, half, ctx.key(i)) for i, (delta, share, half) in given]
    if rescale:
        parts = [rescaled(part) for part in parts]
    return elected(
        base, parts, weight, normalize=normalize, lambda_=lambda_, vote=vote, out=ctx.out
    )
