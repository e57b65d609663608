"""Experts of the same strength."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from mergekit_rl.methods.gram import gram
from mergekit_rl.registry import Context, stage


def _squares(
    base: Tensor, deltas: list[Tensor], *, settings: Mapping[str, Any], ctx: Context
) -> list[float]:
    """Σdᵢ² of one tensor, for every expert."""
    return [float(gram([delta])[0, 0]) for delta in deltas]


@stage("preprocess", totals=_squares)
def norm_match(
    base: Tensor,
    delta: Tensor,
    *,
    to: Literal["mean", "min", "max"] = "mean",
    model: int,
    ctx: Context,
) -> Tensor:
    """Scale each expert's delta so that all have the same norm over the whole model.

    dᵢ·t/‖Δᵢ‖ with Δᵢ all of expert i's deltas and t the mean, least or largest of these norms. An
    expert that differs from the base in nothing stays as it is, and does not count.

    Args:
        to: which of the experts' norms they get.
    """
    norms = [math.sqrt(total) for total in ctx.totals]
    if norms[model] == 0:
        return delta
    present = [norm for norm in norms if norm > 0]
    targets = {"mean": sum(present) / len(present), "min": min(present), "max": max(present)}
    return delta * (targets[to] / norms[model])
