"""The rewiring against the golden file, an fp64 oracle, and its own algebra."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from mergekit_rl.spectral.projection import Projector
from mergekit_rl.spectral.truncation import rank_for_energy, truncate

GOLDEN = Path(__file__).parent / "golden_sar.safetensors"
CASES = json.loads(safe_open(GOLDEN, "pt").metadata()["cases"])


def rewire(w0, update, scale=1.0, **settings):
    return Projector(w0, **settings).rewire(update, scale)


def run(w0, w1, k, **settings):
    svd = settings.pop("svd", "auto")
    delta = w1.double() - w0.double()
    found = rewire(w0, truncate(delta, k, svd=svd), **settings)
    return found, found.B.double() @ found.A.double()


def oracle(w0, w1, k, b=None):
    """Δ* in fp64 from two full SVDs, on the numerical column and row spaces."""
    w0, w1 = w0.double().numpy(), w1.double().numpy()
    u, s, vh = np.linalg.svd(w1 - w0, full_matrices=False)
    gap = 1 - s[k] / s[k - 1] if k < len(s) else 1.0
    cut = (u[:, :k] * s[:k]) @ vh[:k]
    u, s, vh = np.linalg.svd(w0, full_matrices=False)
    alive = s > np.finfo(np.float32).eps * max(w0.shape) * s[0]
    if b is not None:
        alive &= np.arange(len(s)) < b
    u, vh = u[:, alive], vh[alive]
    return u @ (u.T @ cut @ vh.T) @ vh, gap


def pair(m, n, seed=0, size=1e-3, rank=None):
    rng = np.random.default_rng(seed)
    w0 = rng.standard_normal((m, rank or n)) @ (
        rng.standard_normal((rank, n)) if rank else np.eye(n)
    )
    return torch.from_numpy(w0).float(), torch.from_numpy(
        w0 + size * rng.standard_normal((m, n))
    ).double()


@pytest.mark.parametrize("svd", ["auto", "exact", "gram", "krylov"])
@pytest.mark.parametrize("case", CASES)
def test_golden_case_agrees(case, svd):
    golden = load_file(GOLDEN)
    base, rl, expected = (golden[f"{case}.{part}"].float() for part in ("base", "rl", "expected"))
    k = max(1, int(CASES[case]["delta_fraction"] * min(base.shape)))
    _, delta = run(base, rl, k, base_rank=CASES[case]["base_rank"], svd=svd)
    error = (base + delta - expected).norm()
    assert error <= 2e-5 * (expected - base).norm()


@pytest.mark.parametrize("shape", [(64, 64), (120, 64), (64, 120), (300, 256), (256, 256)])
@pytest.mark.parametrize("rank", [None, 40])
@pytest.mark.parametrize("b", [None, 9])
def test_agrees_with_the_fp64_oracle(shape, rank, b):
    w0, w1 = pair(*shape, rank=rank)
    for k in (1, 3, 12):
        expected, gap = oracle(w0, w1, k, b)
        _, found = run(w0, w1, k, base_rank=b)
        error = np.linalg.norm(found.numpy() - expected)
        # b < r cuts the base's spectrum too, at whatever gap it has there
        assert error <= 1e-5 * max(1.0, 1e-3 / gap) * np.linalg.norm(expected) * (10 if b else 1)


def test_full_ranks_return_the_expert_for_square_weights():
    w0, w1 = pair(80, 80, size=1e-2)
    for dtype in (torch.float32, torch.bfloat16):
        base, expert = w0.to(dtype), w1.to(dtype)
        found, _ = run(base, expert, 80)
        edited = (base.float() + found.B @ found.A).to(dtype)
        # At the larger of the two: a weight that the update brings near 0 keeps W₀'s last place.
        ulp = torch.finfo(dtype).eps * torch.maximum(expert.float().abs(), base.float().abs())
        assert ((edited.float() - expert.float()).abs() <= ulp).all()


def test_full_rank_truncation_is_exact():
    delta = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    found = rewire(torch.ones(30, 50), truncate(delta, 999), projection="none")
    assert torch.equal(found.B @ found.A, delta)


@pytest.mark.parametrize("shape", [(40, 40), (60, 40), (40, 60)])
def test_zero_update_keeps_the_base_bit_for_bit(shape):
    w0, _ = pair(*shape)
    found, delta = run(w0, w0, 5)
    assert float(delta.abs().max()) == 0.0
    assert torch.equal(w0 + found.B @ found.A, w0)


def test_sign_flips_and_rotated_degenerate_clusters_change_nothing():
    rng = np.random.default_rng(3)
    u = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    v = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    s = np.concatenate([np.full(5, 3.0), np.full(7, 1.0), np.linspace(0.5, 0.1, 48)])
    turn = np.eye(60)
    turn[:5, :5] = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    turn[5:12, 5:12] = np.linalg.qr(rng.standard_normal((7, 7)))[0]
    flip = np.diag(np.where(np.arange(60) % 2, -1.0, 1.0))
    bases = [(u * s) @ v.T, (u @ turn @ flip * s) @ (v @ turn @ flip).T]
    delta = torch.from_numpy(1e-3 * (u * s) @ v.T)
    results = []
    for base in bases:
        found = rewire(torch.from_numpy(base).float(), truncate(delta, 5), base_rank=12)
        results.append(found.B.double() @ found.A.double())
    assert (results[0] - results[1]).norm() <= 1e-5 * results[0].norm()


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(48, 48), (70, 48), (48, 70), (200, 180)]),
    st.floats(1e-6, 1e3),
    st.integers(0, 50),
    st.sampled_from([None, 6]),
)
def test_projection_is_homogeneous(shape, c, seed, b):
    w0, w1 = pair(*shape, seed)
    delta = w1 - w0.double()
    plain, scaled = (rewire(w0, truncate(x, 4), base_rank=b) for x in (delta, c * delta))
    expected = c * (plain.B.double() @ plain.A.double())
    error = (scaled.B.double() @ scaled.A.double() - expected).norm()
    assert error <= 1e-6 * expected.norm()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40), st.integers(0, 20))
def test_projecting_never_adds_energy_and_is_idempotent(m, n, k, seed):
    w0, w1 = pair(m, n, seed)
    found, delta = run(w0, w1, k, base_rank=max(1, min(m, n) // 2))
    cut = truncate(w1 - w0.double(), k)
    assert found.kept <= cut.kept * (1 + 1e-9)
    assert found.base_rank <= min(m, n)
    again = rewire(w0, truncate(delta, k), base_rank=max(1, min(m, n) // 2))
    assert (again.B.double() @ again.A.double() - delta).norm() <= 1e-4 * delta.norm() + 1e-12


def test_kept_energies_are_those_of_the_products():
    w0, w1 = pair(90, 50)
    found, delta = run(w0, w1, 6)
    cut = truncate(w1 - w0.double(), 6)
    assert found.kept == pytest.approx(float(delta.norm()) ** 2, rel=1e-5)
    assert cut.kept == pytest.approx(float((cut.left.T @ cut.right).norm()) ** 2, rel=1e-9)
    assert cut.energy == pytest.approx(float((w1 - w0.double()).norm()) ** 2, rel=1e-9)


def test_chance_is_what_random_subspaces_keep():
    w0, w1 = pair(40, 24, size=1.0)
    cut = truncate(w1 - w0.double(), 3)
    found = rewire(w0, cut, base_rank=6)
    rng = np.random.default_rng(0)
    delta = (cut.left.T @ cut.right).numpy()
    shares = []
    for _ in range(400):
        u = np.linalg.qr(rng.standard_normal((40, 6)))[0]
        v = np.linalg.qr(rng.standard_normal((24, 6)))[0]
        shares.append(np.linalg.norm(u.T @ delta @ v) ** 2 / np.linalg.norm(delta) ** 2)
    assert abs(np.mean(shares) - found.chance) <= 3 * np.std(shares) / np.sqrt(len(shares))


def test_scale_multiplies_the_product_and_not_the_kept_energy():
    w0, w1 = pair(30, 40)
    (one, a), (three, b) = (run(w0, w1, 4, scale=scale) for scale in (1.0, -3.0))
    assert torch.allclose(-3.0 * a, b, rtol=1e-6)
    assert one.kept == three.kept


def test_factors_have_the_smaller_of_both_ranks():
    w0, w1 = pair(30, 40)
    found, _ = run(w0, w1, 10, base_rank=4)
    assert found.B.shape == (30, 4) and found.A.shape == (4, 40)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999, 1.0])
def test_rank_for_energy_is_the_least_that_keeps_the_share(share):
    _, delta = pair(50, 35, seed=4)
    k = rank_for_energy(delta, share)
    s = np.linalg.svd(delta.numpy(), compute_uv=False) ** 2
    running = np.cumsum(s) / s.sum()
    assert running[k - 1] >= share - 1e-9
    assert k == 1 or running[k - 2] < share
