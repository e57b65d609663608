"""DARE: drop entries at random, rescale what is left, add."""

from torch import Tensor

from mergekit_rl.methods.consensus import added
from mergekit_rl.methods.sparsify import DareRescale, dare
from mergekit_rl.registry import Context, PerModel, Share, method


@method(takes="deltas", ignores=("int8_mask",), scratch=(0, 0.25))
def dare_linear(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    density: PerModel[Share] = 1.0,
    normalize: bool = False,
    lambda_: float = 1.0,
    rescale: bool = True,
    dare_rescale: DareRescale = "l1",
    ctx: Context,
) -> Tensor:
    """Drop entries of each delta at random, rescale the others, add the weighted deltas.

    b + λΣwᵢsᵢ with sᵢ = dᵢ where a draw under `density` keeps the entry, 0 elsewhere, rescaled.

    Args:
        weight: factor on each delta.
        density: probability with which each entry is kept.
        normalize: divide by the sum of the weights, where it is not 0.
        lambda_: factor on the sum.
        rescale: whether what is kept is rescaled at all.
        dare_rescale: `l1` restores each delta's sum of magnitudes; `density` divides by the
            density, as in the paper.

    Source: DARE (Yu et al., 2023, arXiv:2311.03099).
    """
    how = dare_rescale if rescale else None
    drawn = enumerate(zip(deltas, density, strict=True))
    parts = [dare(delta, share, ctx.key(i), how) for i, (delta, share) in drawn]
    return added(base, parts, weight, normalize=normalize, lambda_=lambda_, out=ctx.out)
