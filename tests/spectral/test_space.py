"""Projectors onto a base's column and row spaces against a full SVD in fp64."""

import numpy as np
import pytest
import torch

from mergekit_rl.spectral.space import base_spaces


def weight(m, n, s, seed=0):
    """(m, n) in fp32 with singular values `s`."""
    rng = np.random.default_rng(seed)
    u = np.linalg.qr(rng.standard_normal((m, len(s))))[0]
    v = np.linalg.qr(rng.standard_normal((n, len(s))))[0]
    return torch.from_numpy(((u * s) @ v.T).astype(np.float32))


def reference(w, rank=None):
    """The orthogonal projectors (m, m) and (n, n), with the numerical rank of fp32 data."""
    u, s, vh = np.linalg.svd(w.double().numpy(), full_matrices=False)
    alive = s > np.finfo(np.float32).eps * max(w.shape) * s[0]
    if rank is not None:
        alive &= np.arange(len(s)) < rank
    u, vh = u[:, alive], vh[alive]
    return u @ u.T, vh.T @ vh, int(alive.sum())


def check(w, rank=None, tolerance=2e-6):
    column, row = base_spaces(w, rank)
    left, right, dim = reference(w, rank)
    assert (column.dim, row.dim) == (dim, dim)
    for space, expected in ((column, left), (row, right)):
        probe = torch.randn(5, space.size, generator=torch.Generator().manual_seed(1)).double()
        error = space.project(probe).numpy() - probe.numpy() @ expected
        assert np.linalg.norm(error) <= tolerance * np.linalg.norm(probe.numpy())


@pytest.mark.parametrize("shape", [(150, 150), (400, 150), (150, 400), (300, 299), (5, 1), (1, 5)])
@pytest.mark.parametrize("condition", [1.0, 10.0, 300.0, 3000.0])
def test_full_rank_spaces_are_those_of_the_svd(shape, condition):
    r = min(shape)
    check(weight(*shape, np.geomspace(1.0, 1.0 / condition, r) if r > 1 else [1.0]))


@pytest.mark.parametrize("shape", [(200, 200), (300, 200), (200, 300)])
@pytest.mark.parametrize("lost", [1, 3, 60])
def test_directions_beyond_the_numerical_rank_are_left_out(shape, lost):
    s = np.linspace(1.0, 0.1, 200)
    s[200 - lost :] = 0.0
    check(weight(*shape, s), tolerance=2e-5)


def test_singular_values_around_the_cutoff_are_told_apart():
    cutoff = np.finfo(np.float32).eps * 256
    s = np.concatenate([np.linspace(1.0, 0.1, 250), cutoff * np.array([40, 8, 2, 0.5, 0.1, 0.02])])
    w = weight(256, 256, s).double()
    check(w, tolerance=1e-4)


@pytest.mark.parametrize("shape", [(60, 60), (90, 60), (60, 90), (500, 400)])
@pytest.mark.parametrize("rank", [1, 7, 59])
def test_leading_spaces_are_those_of_the_leading_singular_vectors(shape, rank):
    check(weight(*shape, np.linspace(2.0, 0.5, min(shape))), rank, tolerance=1e-4)


def test_a_rank_beyond_the_matrix_is_all_of_it():
    w = weight(50, 30, np.linspace(2.0, 0.5, 30))
    assert base_spaces(w, 10**6)[0].dim == 30


@pytest.mark.parametrize("shape", [(6, 6), (8, 6), (6, 8), (200, 200), (300, 200)])
def test_a_zero_weight_spans_nothing(shape):
    column, row = base_spaces(torch.zeros(shape))
    assert (column.dim, row.dim) == (0, 0)
    assert float(column.project(torch.ones(2, shape[0]).double()).abs().max()) == 0.0
    assert float(row.project(torch.ones(2, shape[1]).double()).abs().max()) == 0.0
