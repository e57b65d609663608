"""Task arithmetic: a weighted sum of deltas."""

from torch import Tensor

from mergekit_rl.methods.consensus import added
from mergekit_rl.methods.sparsify import whole
from mergekit_rl.registry import Context, PerModel, method


@method(takes="deltas", ignores=("int8_mask", "density", "rescale"), elementwise=True)
def task_arithmetic(
    base: Tensor,
    deltas: list[Tensor],
    *,
    weight: PerModel[float],
    normalize: bool = False,
    lambda_: float = 1.0,
    ctx: Context,
) -> Tensor:
    """Add the weighted deltas to the base: b + λΣwᵢdᵢ, over Σwᵢ with `normalize`.

    Args:
        weight: factor on each delta.
        normalize: divide by the sum of the weights, where it is not 0.
        lambda_: factor on the sum.

    Source: task arithmetic (Ilharco et al., 2022, arXiv:2212.04089).
    """
    parts = [whole(delta) for delta in deltas]
    return added(base, parts, weight, normalize=normalize, lambda_=lambda_, out=ctx.out)
