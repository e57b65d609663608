"""RAM: each entry from the experts that changed it."""

import torch
from torch import Tensor

from mergekit_rl.methods.gram import root_mean_square
from mergekit_rl.methods.sparsify import pieces
from mergekit_rl.registry import Context, NonNegative, method


@method(takes="deltas", ignores=("weight",))
def ram(
    base: Tensor,
    deltas: list[Tensor],
    *,
    epsilon: NonNegative = 1e-5,
    relative: bool = False,
    ctx: Context,
) -> Tensor:
    """Average each entry over the experts that changed it, not over all.

    b + Σaᵢdᵢ / max(1, Σaᵢ) with aᵢ = 1 where |dᵢ| > ε: where one expert is active, its delta.

    Args:
        epsilon: change up to which an entry counts as unchanged.
        relative: ε counts in units of the tensor's root mean square delta over all experts.

    Source: Reinforced Agent Merging (arXiv:2601.13572, 2026).
    """
    if relative:
        epsilon *= root_mean_square(deltas)
    return merge_active(base, deltas, epsilon, [1.0] * len(deltas))


def merge_active(base: Tensor, deltas: list[Tensor], epsilon: float, factor: list[float]) -> Tensor:
    """b + the mean of the active deltas; where one alone is active, its delta times its factor."""
    start_from, flat = base.reshape(-1), [delta.reshape(-1) for delta in deltas]
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    merged = out.view(-1)
    plain = all(one == 1 for one in factor)
    for start, stop, (total, extra, count, scratch, alone) in pieces(out, 5):
        for empty in (total, extra, count):
            empty.zero_()
        for delta, one in zip(flat, factor, strict=True):
            torch.hardshrink(delta[start:stop], epsilon, out=scratch)
            total.add_(scratch)
            if not plain:
                extra.add_(scratch, alpha=one - 1)
            count.add_(scratch.ne_(0))
        if not plain:
            total.addcmul_(extra, torch.eq(count, 1, out=alone))
        total.div_(count.clamp_min_(1))
        torch.sub(start_from[start:stop], torch.sub(extra.zero_(), total), out=merged[start:stop])
    return out
