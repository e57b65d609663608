"""The largest entries of a delta."""

from torch import Tensor

from mergekit_rl.methods.sparsify import magnitude
from mergekit_rl.registry import Context, Share, stage


@stage("preprocess")
def trim(base: Tensor, delta: Tensor, *, density: Share, model: int, ctx: Context) -> Tensor:
    """Keep the entries of largest magnitude, the `density` share of each tensor.

    Of equal magnitudes, those that come first; one entry at least.

    Args:
        density: share of the entries that is kept.

    Source: the trimming of TIES-Merging (Yadav et al., 2023, arXiv:2306.01708).
    """
    return magnitude(delta, density).whole().reshape(delta.shape)
