"""SCE: select the entries that vary, calculate weights, erase minority signs."""

import torch
from torch import Tensor

from mergekit_rl.methods.consensus import elected
from mergekit_rl.methods.selection import largest
from mergekit_rl.methods.sparsify import Part, pieces
from mergekit_rl.registry import Context, Share, method


@method(takes="deltas", ignores=("int8_mask",), scratch=(1.3, 0))
def sce(base: Tensor, deltas: list[Tensor], *, select_topk: Share = 1.0, ctx: Context) -> Tensor:
    """Select the entries that vary most, weigh deltas by energy, sum what agrees in sign.

    b + Σωᵢmᵢsᵢ / max(Σωᵢmᵢ, 1e-6): sᵢ is dᵢ at the ⌊select_topk·v⌋ positions of largest variance
    across the deltas, v the positions whose variance is not 0; ωᵢ ∝ Σsᵢ², Σωᵢ = 1; mᵢ = 1 where sᵢ
    has the sign of Σsᵢ.

    Args:
        select_topk: share of the positions that is selected; 1 takes all, those that do not vary
            too.

    Source: FuseChat (Wan et al., 2024, arXiv:2408.07990).
    """
    flat = [delta.reshape(-1) for delta in deltas]
    mask = _selected(flat, select_topk) if select_topk < 1 else None
    parts = [Part(delta, mask=mask) for delta in flat]
    energy = [_energy(part) for part in parts]
    total = sum(energy)
    weight = [one / total if total > 0 else 1 / len(parts) for one in energy]
    return elected(base, parts, weight, normalize=True, vote="unweighted", floor=1e-6, out=ctx.out)


def _selected(flat: list[Tensor], share: float) -> Tensor:
    """(n,) of uint8, 1 at the positions of largest variance."""
    count, varying = len(flat), 0
    variance = torch.empty_like(flat[0])
    for start, stop, (total, apart) in pieces(variance, 2):
        # N²·variance = N·Σe² − (Σe)² with e against the first: little cancels, as Σe² or more is
        # left, and what is the same everywhere varies by nothing at all.
        first, here = flat[0][start:stop], variance[start:stop].zero_()
        total.zero_()
        for delta in flat[1:]:
            total.add_(torch.sub(delta[start:stop], first, out=apart))
            here.addcmul_(apart, apart, value=count)
        here.addcmul_(total, total, value=-1)
        varying += int(torch.count_nonzero(here))
    cut = largest(variance, int(share * varying))
    mask = torch.empty(variance.shape, dtype=torch.uint8, device=variance.device)
    for start, stop, (kept,) in pieces(variance, 1):
        mask[start:stop].copy_(cut.fill(variance[start:stop], start, kept).ne_(0))
    return mask


def _energy(part: Part) -> float:
    total = 0.0
    for start, _, (scratch, spare) in pieces(part.delta, 2):
        kept = part.piece(start, scratch, spare)
        total += float(torch.dot(kept, kept))
    return total
