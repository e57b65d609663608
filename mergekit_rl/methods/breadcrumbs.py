"""Model Breadcrumbs: deltas without their largest and smallest entries, added."""

from torch import Tensor

from mergekit_rl.methods.consensus import added
from mergekit_rl.methods.sparsify import outliers, rescaled
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), scratch=(0.5, 0))
def breadcrumbs(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    gamma: PerModel[Share] = 0.01,
    normalize: bool = False,
    lambda_: float = 1.0,
    rescale: bool = False,
    ctx: Context,
) -> Tensor:
    """Drop the largest and the smallest entries of each delta, add the weighted deltas.

    b + λΣwᵢsᵢ with sᵢ the ⌊density·n⌋ entries of dᵢ that follow the ⌊γn⌋ of largest magnitude.

    Args:
        weight: factor on each delta.
        density: share of each delta's entries that is kept.
        gamma: share of the largest that is dropped; less where density + γ is above 1.
        normalize: divide by the sum of the weights, where it is not 0.
        lambda_: factor on the sum.
        rescale: keep each delta's sum of magnitudes.

    Source: Model Breadcrumbs (Davari & Belilovsky, 2023, arXiv:2312.06795).
    """
    given = zip(deltas, density, gamma, strict=True)
    parts = [outliers(delta, share, top) for delta, share, top in given]
    if rescale:
        parts = [rescaled(part) for part in parts]
    return added(base, parts, weight, normalize=normalize, lambda_=lambda_, out=ctx.out)
