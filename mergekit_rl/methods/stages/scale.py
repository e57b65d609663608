"""A longer or shorter update."""

from torch import Tensor

from mergekit_rl.registry import Context, stage


@stage("postprocess")
def scale(
    base: Tensor, delta: Tensor, deltas: list[Tensor], *, factor: float, ctx: Context
) -> Tensor:
    """Multiply the merged delta by a factor; above 1 it extrapolates.

    Args:
        factor: on the merged delta.

    Source: ExPO (Zheng et al., 2024, arXiv:2404.16792).
    """
    return delta * factor
