"""The truncated SVD against fp64 LAPACK, and its certificate against the error it claims."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mergekit_rl.spectral.svd import METHODS, gram, truncated_svd

SHAPES = [(96, 96), (160, 96), (96, 160), (300, 200), (1, 7), (7, 1), (1, 1), (2, 3)]


def matrix(m, n, seed=0, decay=None):
    """A matrix with singular values exp(−decay·i), or a Gaussian one."""
    rng = np.random.default_rng(seed)
    if decay is None:
        return rng.standard_normal((m, n))
    r = min(m, n)
    u = np.linalg.qr(rng.standard_normal((m, r)))[0]
    v = np.linalg.qr(rng.standard_normal((n, r)))[0]
    return (u * np.exp(-decay * np.arange(r))) @ v.T


def best(a, k):
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    gap = 1.0 - s[k] / s[k - 1] if k < len(s) else 1.0
    return (u[:, :k] * s[:k]) @ vh[:k], s, gap


def product(svd):
    return ((svd.U * svd.S) @ svd.Vh).numpy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_and_captured_energy_stay_within_the_stated_bounds(shape, method):
    for seed, decay in enumerate((None, 0.02, 0.3)):
        a = matrix(*shape, seed, decay)
        for k in {1, min(shape) // 20 + 1, min(shape)}:
            expected, s, gap = best(a, k)
            found = truncated_svd(torch.from_numpy(a), k, method=method)
            error = np.linalg.norm(product(found) - expected) / np.linalg.norm(expected)
            assert error <= 1e-5 * max(1.0, 1e-3 / max(gap, 1e-16))
            assert float((found.S**2).sum()) >= (1 - 1e-6) * (s[:k] ** 2).sum()


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 3e-3, 1e-3])
def test_krylov_meets_the_bound_at_a_small_gap_in_a_flat_spectrum(gap):
    r, k = 400, 5
    rng = np.random.default_rng(1)
    u = np.linalg.qr(rng.standard_normal((600, r)))[0]
    v = np.linalg.qr(rng.standard_normal((r, r)))[0]
    s = np.linspace(1.0, 0.5, r)
    s[:k] = np.linspace(2.0, s[k] / (1 - gap), k)
    a = (u * s) @ v.T
    found = truncated_svd(torch.from_numpy(a), k, method="krylov")
    expected = best(a, k)[0]
    error = np.linalg.norm(product(found) - expected) / np.linalg.norm(expected)
    assert error <= 1e-5


def test_krylov_certificate_is_no_smaller_than_a_third_of_the_true_error():
    for seed in range(5):
        a = matrix(500, 400, seed)
        found = truncated_svd(torch.from_numpy(a), 6, method="krylov", tolerance=1e-4)
        if found.method != "krylov":
            continue
        expected = best(a, 6)[0]
        error = np.linalg.norm(product(found) - expected) / np.linalg.norm(expected)
        assert error <= 3 * found.error + 1e-9


def test_auto_iterates_where_k_is_small_and_not_where_it_is_large():
    a = torch.from_numpy(matrix(400, 400, 0, 0.05))
    assert truncated_svd(a, 4).method == "krylov"
    assert truncated_svd(a, 300).method == "gram"


def test_a_flat_spectrum_makes_krylov_give_way_to_gram():
    a = torch.linalg.qr(torch.randn(200, 200, dtype=torch.float64))[0]
    found = truncated_svd(a, 20, method="krylov")
    assert found.method == "gram"
    assert torch.allclose(found.S, torch.ones(20, dtype=torch.float64))


def test_same_seed_gives_the_same_bits_and_another_seed_the_same_matrix():
    a = torch.from_numpy(matrix(300, 300, 2, 0.05))
    first, second, other = (
        truncated_svd(a, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first.U, second.U) and torch.equal(first.Vh, second.Vh)
    assert np.linalg.norm(product(first) - product(other)) <= 1e-5 * np.linalg.norm(product(first))


def test_rank_deficient_matrix_gets_zero_singular_values_beyond_its_rank():
    a = torch.from_numpy(matrix(40, 3, 0) @ matrix(3, 30, 1))
    for method in METHODS:
        found = truncated_svd(a, 6, method=method)
        assert float(found.S[3:].max()) <= 1e-7 * float(found.S[0])
        assert torch.isfinite(found.U).all() and torch.isfinite(found.Vh).all()


def test_zero_matrix_has_zero_singular_values():
    for method in METHODS:
        found = truncated_svd(torch.zeros(300, 200), 3, method=method)
        assert float(found.S.abs().max()) == 0.0
        assert float(found.U.abs().max()) == 0.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99), st.floats(1e-12, 1e12))
def test_scaling_a_matrix_scales_its_singular_values(m, n, seed, c):
    a = torch.from_numpy(matrix(m, n, seed))
    k = max(1, min(m, n) // 2)
    plain, scaled = truncated_svd(a, k), truncated_svd(a * c, k)
    assert torch.allclose(plain.S * c, scaled.S, rtol=1e-9, atol=0)


@pytest.mark.parametrize("k", [0, 4, -1])
def test_a_rank_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match=rf"k is {k}, expected 1 to 3 for a matrix of shape"):
        truncated_svd(torch.ones(3, 5), k)


@pytest.mark.parametrize("shape", [(5, 3), (700, 300), (300, 300), (3000, 260)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gram_is_the_product_in_fp64_whatever_the_storage(shape, dtype):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = a.double().T @ a.double()
    assert torch.allclose(gram(a, torch.float64), expected, rtol=1e-12, atol=1e-9)
