"""Steps towards another model of a bounded size."""

import torch
from torch import Tensor

from mergekit_rl.methods.gram import root_mean_square
from mergekit_rl.registry import Context, NonNegative, method


@method(takes="deltas", models=(1, 1), scratch=(3, 0))
def nearswap(
    base: Tensor,
    deltas: list[Tensor],
    *,
    t: NonNegative,
    relative: bool = False,
    ctx: Context,
) -> Tensor:
    """Go from the base to the other model, by at most `t` in every entry.

    b + w·d with w = min(1, t / max(|d|, 1e-6)): where the models are nearer than t the other
    model's value is taken.

    Args:
        t: the most that an entry changes by.
        relative: t counts in units of the tensor's root mean square delta, and nothing is
            absolute.

    Source: NearSwap (alchemonaut, 2024, the merge QuartetAnemoi-70B).
    """
    (delta,) = deltas
    limit = t * root_mean_square(deltas) if relative else t
    change = delta.clamp(-limit, limit)
    if not relative and t < 1e-6:
        change = torch.where(delta.abs() < 1e-6, delta * (t / 1e-6), change)
    return base - (0.0 - change)
