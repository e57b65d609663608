"""The leading singular triplets of a matrix, with a certificate of their accuracy."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from mergekit_rl.spectral.krylov import leading_right_vectors
from mergekit_rl.spectral.thin import divided, power_to_tame, times

Method = Literal["auto", "exact", "gram", "krylov"]
METHODS: tuple[str, ...] = get_args(Method)

TOLERANCE = 4e-6
"""Default bound on ‖Â_k − A_k‖ / ‖A_k‖ where the relative gap at the cut is at least 1e-3."""

_UPCAST = 2**22  # entries upcast at a time


@dataclass(frozen=True)
class TruncatedSVD:
    """The best rank-k approximation A_k = U diag(S) Vh of an (m, n) matrix, in fp64.

    Attributes:
        U: (m, k), columns orthonormal where S > 0 and zero where S is 0.
        S: (k,), descending; 0 beyond the numerical rank.
        Vh: (k, n), orthonormal rows.
        error: estimated ‖Â_k − A_k‖_F / ‖A_k‖_F; 0 where the method does not iterate.
        method: what computed it: `exact`, `gram` or `krylov`.
    """

    U: Tensor
    S: Tensor
    Vh: Tensor
    error: float
    method: str


def truncated_svd(
    a: Tensor,
    k: int,
    *,
    method: Method = "auto",
    tolerance: float = TOLERANCE,
    generator: torch.Generator | None = None,
) -> TruncatedSVD:
    """The k leading singular triplets of `a`.

    `krylov` runs block Lanczos on AᵀA (or AAᵀ, the smaller) in fp32 with full
    reorthogonalisation, then Rayleigh–Ritz steps in fp64 until the fp64 residuals certify
    `tolerance`; `gram` takes the eigenvectors of the Gram matrix of the smaller side in fp64;
    `exact` is a full fp64 SVD. `auto` is `krylov` where k is small against min(m, n), else `gram`.
    Where krylov would need a basis past half the smaller side, gram takes over: `.method` tells.

    Args:
        a: (m, n), any float dtype, no NaN or Inf.
        k: 1 ≤ k ≤ min(m, n).
        tolerance: bound on the relative error of A_k, > 0.
        generator: CPU generator for the random starting block; a fixed one where None.

    Raises:
        ValueError: k out of range or an unknown method.

    Source: block Krylov SVD (Musco & Musco, 2015, arXiv:1504.05477).

    >>> svd = truncated_svd(torch.diag(torch.tensor([3.0, 2.0, 1.0])), 2)
    >>> [round(value, 6) for value in svd.S.tolist()]
    [3.0, 2.0]
    """
    m, n = a.shape
    if not 1 <= k <= min(m, n):
        raise ValueError(f"k is {k}, expected 1 to {min(m, n)} for a matrix of shape {(m, n)}")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(METHODS)}")
    if m < n:
        t = truncated_svd(a.T, k, method=method, tolerance=tolerance, generator=generator)
        return TruncatedSVD(t.Vh.T, t.S, t.U.T, t.error, t.method)
    if a.dtype not in (torch.float32, torch.float64):
        a = a.to(torch.float32)
    power = power_to_tame(a)
    if power != 1.0:
        a = divided(a, power)
        t = truncated_svd(a, k, method=method, tolerance=tolerance, generator=generator)
        return replace(t, S=t.S * power)
    if method == "exact":
        u, s, vh = torch.linalg.svd(a.to(torch.float64), full_matrices=False)
        return _without_noise(u[:, :k], s[:k], vh[:k], 0.0, "exact")
    if method == "krylov" or (method == "auto" and krylov_pays(n, k)):
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        found = leading_right_vectors(a, k, tolerance, generator)
        if found is not None:
            return _from_right(*found, "krylov")
    rows = torch.linalg.eigh(gram(a, torch.float64))[1][:, -k:].T.flip(0)
    return _from_right(rows, times(rows, a.T), 0.0, "gram")


def krylov_pays(r: int, k: int) -> bool:
    """Whether block Krylov beats the eigenvectors of an r×r Gram matrix for k triplets, measured on
    RL updates: their flat spectra take a basis of about 3k + 60 vectors."""
    return 3 * k + 60 <= r // 2


def gram(a: Tensor, dtype: torch.dtype) -> Tensor:
    """AᵀA (n, n) of an (m, n) matrix in `dtype`: only its lower block triangle is multiplied out,
    and a narrower matrix is upcast by row blocks."""
    m, n = a.shape
    out = torch.zeros(n, n, dtype=dtype, device=a.device)
    rows = m if a.dtype == dtype else max(1, min(m, max(n, _UPCAST // max(1, n))))
    step = n if n < 256 else -(-n // 4)
    for at in range(0, m, max(1, rows)):
        piece = a[at : at + rows].to(dtype)
        for start in range(0, n, step):
            block = slice(start, min(start + step, n))
            out[block, : block.stop] += piece[:, block].T @ piece[:, : block.stop]
    for start in range(0, n, step):
        block = slice(start, min(start + step, n))
        out[: block.start, block] = out[block, : block.start].T
    return out


def _from_right(rows: Tensor, image: Tensor, error: float, method: str) -> TruncatedSVD:
    """The triplets from the leading right singular vectors V as rows (k, n) and their images
    (A V)ᵀ (k, m), by QR, so that U is orthonormal for small singular values too."""
    q, r = torch.linalg.qr(image.T)
    u, s, wh = torch.linalg.svd(r)
    return _without_noise(q @ u, s, wh @ rows, error, method)


def _without_noise(u: Tensor, s: Tensor, vh: Tensor, error: float, method: str) -> TruncatedSVD:
    """Singular values below what fp64 resolves are 0, and their U with them."""
    dead = s <= 1e-13 * s[0]
    return TruncatedSVD(u.masked_fill(dead, 0.0), s.masked_fill(dead, 0.0), vh, error, method)
