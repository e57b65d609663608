"""Every measure against a reference in fp64 NumPy and SciPy written from its formula."""

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from mergekit_rl.spectral import measures
from mergekit_rl.spectral.projection import Projector
from mergekit_rl.spectral.truncation import truncate

SHAPES = [(20, 20), (30, 18), (18, 30), (1, 6), (6, 1)]


def sample(shape, seed=0, size=1e-2, sparse=0.4):
    """W₀ in bf16 values, and W₁ = W₀ + Δ with a share of the entries unmoved."""
    rng = np.random.default_rng(seed)
    w0 = torch.from_numpy(rng.standard_normal(shape)).bfloat16().double().numpy()
    delta = size * rng.standard_normal(shape) * (rng.random(shape) > sparse)
    return w0, w0 + delta


def tensors(*arrays):
    return [torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("shape", SHAPES)
def test_spectrum_measures(shape):
    w0, w1 = sample(shape)
    s = np.linalg.svd(w1 - w0, compute_uv=False)
    energies = np.array([np.sum(s[: k + 1] ** 2) for k in range(len(s))]) / np.sum(s**2)
    p = s**2 / np.sum(s**2)
    t = torch.from_numpy(s)
    np.testing.assert_allclose(measures.truncation_energy(t), energies, rtol=1e-12)
    assert measures.stable_rank(t) == pytest.approx(
        np.linalg.norm(w1 - w0) ** 2 / np.linalg.norm(w1 - w0, 2) ** 2, rel=1e-10
    )
    assert measures.effective_rank(t) == pytest.approx(np.exp(scipy.stats.entropy(p)), rel=1e-10)
    assert measures.relative_size(*tensors(w0, w1 - w0)) == pytest.approx(
        np.linalg.norm(w1 - w0) / np.linalg.norm(w0), rel=1e-12
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_rewiring_measures(shape):
    w0, w1 = sample(shape)
    delta = w1 - w0
    u, _, vh = np.linalg.svd(w0, full_matrices=False)
    m = u.T @ delta @ vh.T
    found = measures.rewiring(measures.decompose(torch.from_numpy(w0)), torch.from_numpy(delta))
    total = np.linalg.norm(delta) ** 2
    # Signs of singular vectors are free, squares are not.
    np.testing.assert_allclose(found**2, m**2, rtol=1e-8, atol=1e-18)
    expected = [np.linalg.norm(m[:j, :j]) ** 2 / total for j in range(1, min(shape) + 1)]
    np.testing.assert_allclose(measures.block_energy(found, total), expected, rtol=1e-9)
    assert measures.diagonal_share(found) == pytest.approx(
        np.sum(np.diag(m) ** 2) / np.sum(m**2), rel=1e-9
    )


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-5, 0.1, 0.8, 1.3, np.pi / 2])
def test_principal_angles_are_exact_from_tiny_to_right(angle):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((12, 4)))[0]
    a = q[:, :2]
    b = np.stack([np.cos(angle) * q[:, 0] + np.sin(angle) * q[:, 2], q[:, 1]], 1)
    found = measures.principal_angles(*tensors(a, b)).numpy()
    np.testing.assert_allclose(found, [0, angle], rtol=1e-6, atol=1e-15)


def test_principal_angles_agree_with_scipy():
    rng = np.random.default_rng(1)
    a, b = (np.linalg.qr(rng.standard_normal((40, 7)))[0] for _ in range(2))
    expected = np.sort(scipy.linalg.subspace_angles(a, b))
    np.testing.assert_allclose(measures.principal_angles(*tensors(a, b)), expected, rtol=1e-9)


def test_spectral_shift():
    w0, w1 = sample((20, 14))
    s0, s1 = (np.linalg.svd(w, compute_uv=False) for w in (w0, w1))
    assert measures.spectral_shift(*tensors(s0, s1)) == pytest.approx(
        np.linalg.norm(s1 - s0) / np.linalg.norm(s0), rel=1e-12
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_sparsity_measures(shape):
    w0, w1 = sample(shape, size=2e-3)
    t0, t1 = tensors(w0, w1)
    near = np.abs(w0 - w1) <= 1e-3 * np.maximum(np.abs(w0), np.abs(w1))
    assert measures.unchanged_share(t0, t1) == np.mean(w0 == w1)
    assert measures.bf16_unchanged_share(t0, t1) == np.mean(near)
    np.testing.assert_array_equal(measures.update_mask(t0, t1), ~near)
    for dtype, numpy in ((torch.float16, np.float16), (torch.float32, np.float32)):
        expected = np.mean(w0.astype(numpy) != w1.astype(numpy))
        assert measures.visible_share(t0, t1, dtype) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_masks_and_overlaps(share):
    w0, w1 = sample((20, 30))
    base = measures.decompose(torch.from_numpy(w0))
    u, s, vh = np.linalg.svd(w0, full_matrices=False)
    count = int(np.ceil(share * 600 - 1e-9))
    for mask, score in (
        (measures.principal_mask(base, 3, share), np.abs((u[:, :3] * s[:3]) @ vh[:3])),
        (measures.low_magnitude_mask(torch.from_numpy(w0), share), -np.abs(w0)),
    ):
        order = np.argsort(-score.ravel(), kind="stable")[:count]
        expected = np.zeros(600, bool)
        expected[order] = True
        np.testing.assert_array_equal(mask.reshape(-1), expected)
        moved = np.abs(w0 - w1) > 1e-3 * np.maximum(np.abs(w0), np.abs(w1))
        hit, chance = measures.mask_overlap(torch.from_numpy(moved), mask)
        assert hit == pytest.approx((moved.ravel() & expected).sum() / moved.sum())
        assert chance == pytest.approx(count / 600)


def test_equal_scores_go_to_the_lowest_index():
    mask = measures.top_mask(torch.tensor([[1.0, 2.0], [2.0, 2.0]]), 0.5)
    assert mask.tolist() == [[False, True], [True, False]]


def test_expert_against_expert():
    w0, a = sample((20, 30), 1)
    b = w0 + 1e-2 * np.random.default_rng(5).standard_normal((20, 30)) * (a != w0).T.reshape(20, 30)
    a, b = a - w0, b - w0
    ta, tb = tensors(a, b)
    ma, mb = a != 0, b != 0
    assert measures.cosine(ta, tb) == pytest.approx(
        np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-10
    )
    assert measures.sign_conflict(ta, tb) == pytest.approx(
        np.sum((np.sign(a) != np.sign(b)) & ma & mb) / np.sum(ma & mb)
    )
    assert measures.support_jaccard(ta, tb) == pytest.approx(np.sum(ma & mb) / np.sum(ma | mb))
    assert measures.unique_share(ta, tb) == pytest.approx(np.sum(ma & ~mb) / np.sum(ma))


def test_subspace_overlap_of_random_subspaces_is_its_chance():
    rng = np.random.default_rng(0)
    found = [
        measures.subspace_overlap(
            *tensors(*(np.linalg.qr(rng.standard_normal((30, 4)))[0] for _ in range(2)))
        )
        for _ in range(300)
    ]
    assert abs(np.mean(found) - 4 / 30) <= 3 * np.std(found) / np.sqrt(300)


def test_measures_of_a_zero_update_are_zero():
    zero, w0 = torch.zeros(5, 4), torch.ones(5, 4)
    s = torch.zeros(4, dtype=torch.float64)
    assert measures.stable_rank(s) == measures.effective_rank(s) == 0
    assert float(measures.truncation_energy(s).abs().max()) == 0
    assert measures.cosine(zero, w0) == measures.unique_share(zero, w0) == 0
    assert measures.sign_conflict(zero, w0) == measures.relative_size(w0, zero) == 0
    assert measures.mask_overlap(zero.bool(), w0.bool()) == (0.0, 1.0)


@pytest.mark.parametrize("b", [None, 6])
def test_enrichment_is_high_for_an_aligned_update_and_one_for_a_haar_random_one(b):
    m, n, k = 80, 30, 3
    rng = np.random.default_rng(2)
    shares = {"aligned": [], "random": []}
    chance = 0.0
    for _ in range(60):
        w0 = rng.standard_normal((m, n))
        u, _, vh = np.linalg.svd(w0, full_matrices=False)
        dim = b or n
        core = rng.standard_normal((dim, k)) @ rng.standard_normal((k, dim))
        inside = u[:, :dim] @ core @ vh[:dim]
        qu, qv = (np.linalg.qr(rng.standard_normal((size, k)))[0] for size in (m, n))
        for kind, delta in (("aligned", inside), ("random", (qu * [3, 2, 1]) @ qv.T)):
            cut = truncate(torch.from_numpy(delta), k)
            found = Projector(torch.from_numpy(w0), base_rank=b).rewire(cut)
            shares[kind].append(found.kept / cut.kept)
            chance = found.chance
    assert np.mean(shares["aligned"]) / chance > 2
    assert np.mean(shares["aligned"]) == pytest.approx(1.0, abs=1e-5)
    enrichment = np.mean(shares["random"]) / chance
    error = np.std(shares["random"]) / chance / np.sqrt(60)
    assert abs(enrichment - 1) <= max(0.05, 3 * error)
