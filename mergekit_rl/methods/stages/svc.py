"""Singular values that were counted more than once, divided."""

import torch
from torch import Tensor

from mergekit_rl.registry import Context, stage
from mergekit_rl.spectral.svd import truncated_svd


@stage("postprocess")
def svc(base: Tensor, delta: Tensor, deltas: list[Tensor], *, ctx: Context) -> Tensor:
    """Shrink the merged delta along directions that several experts share.

    Singular value σ_r of the merged Δ times K / Σᵢmax(1, sᵢ_r), with sᵢ_r = ⟨u_rᵀΔ, u_rᵀΔᵢ⟩ /
    ‖u_rᵀΔᵢ‖² and K experts Δᵢ; sᵢ_r is 0 where u_rᵀΔᵢ is. What is no matrix stays as it is.

    Source: singular value calibration (arXiv:2602.05536, 2026).
    """
    if delta.ndim != 2 or not bool(delta.any()):
        return delta
    svd = truncated_svd(delta, min(delta.shape), method="gram")
    rows = svd.S[:, None] * svd.Vh  # u_rᵀΔ, (r, n)
    calls = torch.zeros_like(svd.S)
    for expert in deltas:
        theirs = svd.U.T @ expert.to(svd.U.dtype)
        size = theirs.square().sum(1)
        share = (rows * theirs).sum(1) / size.masked_fill(size == 0, 1.0)
        calls += share.masked_fill(size == 0, 0.0).clamp_min(1.0)
    rows = rows * (len(deltas) / calls)[:, None]
    return (svd.U @ rows).to(delta.dtype)
