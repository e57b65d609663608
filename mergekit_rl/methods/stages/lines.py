"""Updates that grow with the depth."""

from torch import Tensor

from mergekit_rl.registry import Context, stage

_EMBEDDINGS = ("embed", "wte", "wpe")


@stage("postprocess")
def lines(
    base: Tensor,
    delta: Tensor,
    deltas: list[Tensor],
    *,
    alpha: float,
    beta: float,
    ctx: Context,
) -> Tensor:
    """Scale the merged delta by layer, linearly from α in the first to α + β in the last.

    (α + β·l/(L−1))·d in layer l = 0 … L−1. Embeddings come before the first layer and get α; a
    single layer, and what stands outside the layers and is no embedding (the last norm, the
    head), α + β.

    Args:
        alpha: factor in the first layer.
        beta: what is added to it up to the last.

    Source: LiNeS (Wang et al., 2024, arXiv:2410.17146).
    """
    if ctx.layer is not None:
        depth = ctx.layer / (ctx.layers - 1) if ctx.layers > 1 else 1.0
    else:
        depth = 0.0 if any(word in ctx.name for word in _EMBEDDINGS) else 1.0
    return delta * (alpha + beta * depth)
