"""RAM+ by tensor: entries that one expert alone changed count for more."""

import torch
from torch import Tensor

from mergekit_rl.methods.gram import root_mean_square
from mergekit_rl.methods.ram import merge_active
from mergekit_rl.methods.sparsify import pieces
from mergekit_rl.registry import Context, NonNegative, method


@method(takes="deltas", ignores=("weight",))
def ramplus_tl(
    base: Tensor,
    deltas: list[Tensor],
    *,
    epsilon: NonNegative = 1e-5,
    r: float = 0.1,
    alpha: NonNegative = 0.2,
    relative: bool = False,
    ctx: Context,
) -> Tensor:
    """Average shared entries over the experts that changed them, amplify unique ones.

    As `ram`; where expert i alone is active, its delta times 1 + r·min(α, sharedᵢ/uniqueᵢ), with
    sharedᵢ and uniqueᵢ the tensor's entries where i is active together with others and alone.

    Args:
        epsilon: change up to which an entry counts as unchanged.
        r: how much more unique entries count for.
        alpha: the most that the ratio of shared to unique entries counts.
        relative: ε counts in units of the tensor's root mean square delta over all experts.

    Source: Reinforced Agent Merging (arXiv:2601.13572, 2026).
    """
    if relative:
        epsilon *= root_mean_square(deltas)
    active, unique = _counts([delta.reshape(-1) for delta in deltas], epsilon)
    ratios = [(a - u) / u if u else 0.0 for a, u in zip(active, unique, strict=True)]
    return merge_active(base, deltas, epsilon, [1 + r * min(alpha, ratio) for ratio in ratios])


def _counts(flat: list[Tensor], epsilon: float) -> tuple[list[int], list[int]]:
    """Of each delta, how many entries are active, and how many of these alone."""
    active, unique = [0] * len(flat), [0] * len(flat)
    for start, stop, (count, *found) in pieces(flat[0], 1 + len(flat)):
        count.zero_()
        for i, (delta, here) in enumerate(zip(flat, found, strict=True)):
            torch.hardshrink(delta[start:stop], epsilon, out=here).ne_(0)
            count.add_(here)
            active[i] += int(here.sum(dtype=torch.float64))
        count.eq_(1)
        for i, here in enumerate(found):
            unique[i] += int(here.mul_(count).sum(dtype=torch.float64))
    return active, unique
