"""DELLA without the vote: keep entries at random, large ones rather, and add."""

from torch import Tensor

from mergekit_rl.methods.consensus import added
from mergekit_rl.methods.sparsify import check_magprune, magprune, rescaled
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), check=check_magprune, scratch=(0, 0.25))
def della_linear(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    epsilon: PerModel[Share] = 0.15,
    normalize: bool = False,
    lambda_: float = 1.0,
    rescale: bool = True,
    ctx: Context,
) -> Tensor:
    """Drop small entries rather than large ones at random, rescale, add the weighted deltas.

    b + λΣwᵢsᵢ with sᵢ = dᵢ where a draw keeps the entry, 0 elsewhere, rescaled to keep Σ|dᵢ|. The
    probability is linear in the rank of an entry's magnitude in its row.

    Args:
        weight: factor on each delta.
        density: mean probability with which an entry is kept; 1 keeps all, whatever ε.
        epsilon: the probability runs from density − ε for the smallest entry of a row (the last
            dim) to density + ε for the largest.
        normalize: divide by the sum of the weights, where it is not 0.
        lambda_: factor on the sum.
        rescale: keep each delta's sum of magnitudes.

    Raises:
        EditError: density ± ε is not within 0 and 1.

    Source: DELLA (Deep et al., 2024, arXiv:2406.11617).
    """
    check_magprune(density=density, epsilon=epsilon)
    given = enumerate(zip(deltas, density, epsilon, strict=True))
    parts = [magprune(delta, share, half, ctx.key(i)) for i, (delta, share, half) in given]
    if rescale:
        parts = [rescaled(part) for part in parts]
    return added(base, parts, weight, normalize=normalize, lambda_=lambda_, out=ctx.out)
