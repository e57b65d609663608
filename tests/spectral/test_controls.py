"""Masks, orders and control projections against fp64 NumPy."""

import numpy as np
import pytest
import torch

from mergekit_rl.spectral.projection import Projector
from mergekit_rl.spectral.truncation import truncate, truncations

SHAPES = [(30, 30), (50, 30), (30, 50)]


def pair(m, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, n)), 1e-3 * rng.standard_normal((m, n))


def low(delta, k):
    u, s, vh = np.linalg.svd(delta, full_matrices=False)
    return (u[:, :k] * s[:k]) @ vh[:k]


def product(found):
    return (found.B.double() @ found.A.double()).numpy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("b", [None, 1, 7])
@pytest.mark.parametrize("mask", ["full", "diagonal", "off-diagonal"])
def test_mask_keeps_its_part_of_the_rewiring_matrix(shape, b, mask):
    w0, delta = pair(*shape)
    u, _, vh = np.linalg.svd(w0, full_matrices=False)
    u, vh = u[:, : b or 30], vh[: b or 30]
    m = u.T @ low(delta, 4) @ vh.T
    diagonal = np.diag(np.diag(m))
    kept = {"full": m, "diagonal": diagonal, "off-diagonal": m - diagonal}[mask]
    expected = u @ kept @ vh
    projector = Projector(torch.from_numpy(w0), base_rank=b, mask=mask)
    found = projector.rewire(truncate(torch.from_numpy(delta), 4))
    # Relative to the whole projection: what a mask keeps can be next to nothing.
    error = np.linalg.norm(product(found) - expected) / np.linalg.norm(m)
    assert error <= 2e-5
    assert found.kept == pytest.approx(np.linalg.norm(kept) ** 2, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_diagonal_and_off_diagonal_add_up_to_the_full_projection(shape):
    w0, delta = (torch.from_numpy(x) for x in pair(*shape))
    parts = {
        mask: product(Projector(w0, base_rank=8, mask=mask).rewire(truncate(delta, 3)))
        for mask in ("full", "diagonal", "off-diagonal")
    }
    total = parts["diagonal"] + parts["off-diagonal"]
    assert np.allclose(total, parts["full"], atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("b", [None, 9])
def test_project_first_is_the_best_of_its_rank_in_the_bases_space(shape, b):
    w0, delta = pair(*shape)
    u, _, vh = np.linalg.svd(w0, full_matrices=False)
    u, vh = u[:, : b or 30], vh[: b or 30]
    expected = low(u @ (u.T @ delta @ vh.T) @ vh, 4)
    projected = Projector(torch.from_numpy(w0), base_rank=b).project(torch.from_numpy(delta))
    found = truncate(projected, 4)
    error = (found.left.T @ found.right).numpy() - expected
    assert np.linalg.norm(error) <= 2e-5 * np.linalg.norm(expected)
    first = Projector(torch.from_numpy(w0), base_rank=b).rewire(
        truncate(torch.from_numpy(delta), 4)
    )
    assert found.kept >= first.kept * (1 - 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_subspaces_have_the_bases_dimensions_and_keep_chance(shape):
    w0, delta = (torch.from_numpy(x) for x in pair(*shape))
    shares = []
    for seed in range(80):
        generator = torch.Generator().manual_seed(seed)
        projector = Projector(w0, base_rank=6, projection="random", generator=generator)
        cut = truncate(delta, 3)
        found = projector.rewire(cut)
        assert found.base_rank == 6 and found.B.shape[1] == 3
        shares.append(found.kept / cut.kept)
    error = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - 36 / w0.numel()) <= 3 * error


def test_random_subspaces_are_those_of_the_seed_and_never_the_bases():
    w0, delta = (torch.from_numpy(x) for x in pair(50, 30))
    cut = truncate(delta, 3)
    one, same, other = (
        product(
            Projector(
                w0, projection="random", generator=torch.Generator().manual_seed(seed)
            ).rewire(cut)
        )
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)
    assert not np.allclose(one, product(Projector(w0).rewire(cut)))


@pytest.mark.parametrize("shape", [*SHAPES, (300, 200)])
def test_several_truncations_from_one_decomposition_are_each_the_best(shape):
    _, delta = pair(*shape)
    ranks = [1, 5, min(shape), 12, 999]
    for k, found in zip(ranks, truncations(torch.from_numpy(delta), ranks), strict=True):
        expected = low(delta, k)
        error = np.linalg.norm((found.left.T @ found.right).numpy() - expected)
        assert error <= 1e-5 * np.linalg.norm(expected)
        assert found.kept == pytest.approx(np.linalg.norm(expected) ** 2, rel=1e-6)
        assert found.rank == min(k, *shape)
