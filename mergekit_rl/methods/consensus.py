"""Base plus the weighted sum of deltas, with or without a vote on the sign of every entry."""

from typing import Literal

import torch
from torch import Tensor

from mergekit_rl.methods.sparsify import Part, pieces

Vote = Literal["weighted", "unweighted"]

_SIGN = {torch.float32: (torch.int32, -(2**31)), torch.float64: (torch.int64, -(2**63))}


def added(
    base: Tensor,
    parts: list[Part],
    weight: list[float],
    *,
    normalize: bool = False,
    lambda_: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """b + λΣwᵢsᵢ, the sum over Σwᵢ with `normalize` where that is not 0 (below 1e-8); in `out`,
    which may be b itself."""
    total = sum(weight) if normalize else 1.0
    scale = -lambda_ / (total if abs(total) >= 1e-8 else 1.0)
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device) if out is None else out
    start_from, flat = base.reshape(-1), out.view(-1)
    for start, stop, (merged, scratch, spare) in pieces(base, 3):
        merged.zero_()
        for part, w in zip(parts, weight, strict=True):
            merged.add_(part.piece(start, scratch, spare), alpha=scale * w * part.factor)
        # A sum that begins with +0 is never −0, and b − (+0) is b to the bit where b is −0 too.
        torch.sub(start_from[start:stop], merged, out=flat[start:stop])
    return out


def elected(
    base: Tensor,
    parts: list[Part],
    weight: list[float],
    *,
    normalize: bool,
    lambda_: float = 1.0,
    vote: Vote = "weighted",
    floor: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """b + λΣmᵢwᵢsᵢ, the sum over Σmᵢwᵢ with `normalize`, where mᵢ is 1 where sᵢ has the sign that
    wins the vote and 0 elsewhere.

    The vote is the sign of Σwᵢsᵢ, against the signs of wᵢsᵢ; `unweighted`, of Σsᵢ, against those of
    sᵢ. A sum of zero is positive; an sᵢ of zero has no sign.

    Args:
        out: where the result goes, b itself or another; None for a new tensor.
        floor: the least Σmᵢwᵢ to divide by; None for any that is not 0 (1e-6 of Σ|wᵢ|), where it is
            not divided.
    """
    signs, bit = _SIGN[base.dtype]
    nought, bit = torch.tensor(0, dtype=base.dtype), torch.tensor(bit, dtype=signs)
    ballot = [
        part.factor * (w if vote == "weighted" else 1)
        for part, w in zip(parts, weight, strict=True)
    ]
    beside = [1.0 if vote == "weighted" else w for w in weight]  # of the weight, not in the ballot
    # A factor that all have in common is left to the end.
    common = ballot[0] if min(ballot) == max(ballot) > 0 else None
    final = -lambda_ * (common or 1.0)
    if floor is None and min(weight) >= 0:  # the sum is at least one weight, or the delta is 0
        floor = min((w for w in weight if w > 0), default=1.0) / 2
    nothing = 1e-6 * sum(map(abs, weight))
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device) if out is None else out
    start_from, flat = base.reshape(-1), out.view(-1)
    for start, stop, (merged, count, agrees, total, zero, *room) in pieces(base, 5 + len(parts)):
        if start == 0:
            zero.zero_()
        voters = []
        for part, factor, scratch in zip(parts, ballot, room, strict=True):
            kept = part.piece(start, scratch, merged)
            voters.append(kept if common else torch.mul(kept, factor, out=scratch))
        torch.add(voters[0], voters[1] if len(voters) > 1 else zero, out=total)
        for voter in voters[2:]:
            total.add_(voter)
        winner = total.view(signs).bitwise_and_(bit)
        merged.zero_()
        count.zero_()
        for voter, scratch, w, rest in zip(voters, room, weight, beside, strict=True):
            # Positive where the entry has the sign that wins.
            torch.bitwise_xor(voter.view(signs), winner, out=scratch.view(signs))
            if normalize:
                count.add_(torch.gt(scratch, nought, out=agrees), alpha=w)
            merged.add_(scratch.relu_(), alpha=rest)
        if normalize and floor is not None:
            merged.div_(count.clamp_min_(floor))
        elif normalize:
            merged.div_(count.masked_fill_(count.abs() <= nothing, 1.0))
        merged.view(signs).bitwise_xor_(winner)
        # A sum that begins with +0 is never −0, and b − (+0) is b to the bit where b is −0 too.
        torch.add(zero, merged, alpha=final, out=merged)
        torch.sub(start_from[start:stop], merged, out=flat[start:stop])
    return out
