"""One model's tensors, scaled or as they are."""

from torch import Tensor

from mergekit_rl.registry import Context, PerModel, method


@method(takes="tensors", base="input", models=(1, 1), elementwise=True)
def passthrough(
    base: Tensor | None,
    tensors: list[Tensor],
    *,
    scale: PerModel[float] = 1.0,
    ctx: Context,
) -> Tensor:
    """Pass one model's tensor through, times `scale`: with slices, layers are stacked.

    Args:
        scale: factor on the tensor.

    Source: depth up-scaling (Kim et al., 2023, arXiv:2312.15166) stacks layers so.
    """
    return tensors[0] * scale[0]
