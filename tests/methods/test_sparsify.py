"""Which entries are kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods.drawing import place

from mergekit_rl.methods import selection, sparsify

N = 300_000  # more than are selected among without a bracket


def values_of(kind):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(N)
    if kind == "coarse":
        values = np.round(values * 8) / 8
    elif kind == "mostly zero":
        values *= rng.random(N) < 0.2
    elif kind == "two values":
        values = np.where(values > 0.3, 2.0, -1.0)
    elif kind == "one value":
        values = np.full(N, -0.5)
    elif kind == "columns":
        values = values * np.tile(np.logspace(0, 4, 100), N // 100)
    elif kind == "rows":
        values = values * np.repeat(np.logspace(0, 4, 100), N // 100)
    return values


def kept_by(cut, values):
    out = torch.empty_like(values)
    return cut.fill(values, 0, out)


def expected(values, k):
    kept = np.zeros_like(values)
    places = np.argsort(-np.abs(values), kind="stable")[:k]
    kept[places] = values[places]
    return kept


@pytest.mark.parametrize(
    "kind", ["smooth", "coarse", "mostly zero", "two values", "one value", "columns", "rows"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_largest_are_those_of_a_stable_sort(kind, dtype):
    values = torch.tensor(values_of(kind), dtype=dtype)
    for k in (0, 1, 2, 77, N // 10, N // 2, N - 5, N - 1, N):
        cut = selection.largest(values, k)
        assert np.array_equal(kept_by(cut, values).numpy(), expected(values.numpy(), k)), k


def test_largest_are_found_where_the_bracket_misses(monkeypatch):
    values = torch.tensor(values_of("coarse"), dtype=torch.float32)
    want = expected(values.numpy(), N // 3)
    for bracket in ((50.0, 60.0), (0.0, 0.0), (0.0, 1e-3), (7.0, 7.0)):
        found = tuple(map(np.float32, bracket))
        monkeypatch.setattr(selection, "_bracket", lambda values, k, found=found: found)
        cut = selection.largest(values, N // 3)
        assert np.array_equal(kept_by(cut, values).numpy(), want)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-42, 2e-45]), max_size=40),
    st.data(),
)
def test_devices_select_as_the_cpu_does(numbers, data):
    values = torch.tensor(numbers, dtype=torch.float32)
    k = data.draw(st.integers(0, len(numbers)))
    want = expected(values.numpy(), k)
    assert np.array_equal(kept_by(selection.largest(values, k), values).numpy(), want)
    if 0 < k < len(numbers):
        cut = selection._largest_on_device(values, k)
        assert np.array_equal(kept_by(cut, values).numpy(), want)


def test_pieces_keep_what_the_whole_does():
    values = torch.tensor(values_of("coarse"), dtype=torch.float32)
    cut = selection.largest(values, N // 3)
    whole = kept_by(cut, values)
    parts = [cut.fill(values[a : a + 999], a, torch.empty(999)[: N - a]) for a in range(0, N, 999)]
    assert torch.equal(torch.cat(parts), whole)


def test_bernoulli_keeps_its_density():
    delta = torch.ones(N)
    for density in (0.1, 0.5, 0.9):
        mask = sparsify.dare(delta, density, 1, None).mask.double()
        error = (density * (1 - density) / N) ** 0.5
        assert abs(float(mask.mean()) - density) <= 4 * error
    assert sparsify.dare(delta, 1.0, 1, None).mask is None
    assert not sparsify.dare(delta, 0.0, 1, None).mask.any()


def test_magprune_keeps_larger_entries_more_often():
    rows, width = 3000, 101
    delta = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    mask = sparsify.magprune(delta, 0.5, 0.3, 1).mask.reshape(rows, width)
    kept = mask.gather(1, delta.abs().argsort(1)).double().mean(0)  # by rank
    probability = torch.linspace(0.2, 0.8, width, dtype=torch.float64)
    error = (probability * (1 - probability) / rows).sqrt()
    assert ((kept - probability).abs() <= 4.5 * error).all()
    assert abs(float(mask.double().mean()) - 0.5) <= 4 * (0.25 / mask.numel()) ** 0.5


def test_magprune_ranks_as_a_stable_sort_does():
    rows = torch.tensor(values_of("coarse"), dtype=torch.float32).reshape(1000, -1)
    order = sparsify._ascending(rows)
    assert np.array_equal(order, np.argsort(np.abs(rows.numpy()), axis=1, kind="stable"))
    assert np.array_equal(order, sparsify._ascending(rows.double()))


@pytest.mark.parametrize("draw", [sparsify.dare, sparsify.magprune])
def test_mask_depends_on_seed_tensor_matrix_and_model_alone(draw):
    delta = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    more = (None,) if draw is sparsify.dare else ()

    def mask(ctx, model):
        given = (delta, 0.5, ctx.key(model), *more)
        if draw is sparsify.magprune:
            given = (delta, 0.5, 0.1, ctx.key(model))
        return draw(*given).mask

    one = mask(place("ab"), 1)
    assert torch.equal(one, mask(place("ab"), 1))
    assert torch.equal(one, mask(place("bca"), 0))
    for other in (place("ac"), place("ab", seed=1), place("ab", name="x"), place("ab", index=1)):
        assert not torch.equal(one, mask(other, 1))


def test_rescaling_restores_the_sum_of_magnitudes():
    delta = torch.randn(N, generator=torch.Generator().manual_seed(0))
    for part in (
        sparsify.magnitude(delta, 0.3),
        sparsify.outliers(delta, 0.3, 0.1),
        sparsify.dare(delta, 0.3, 1, None),
    ):
        sizes = sparsify.rescaled(part).whole().double().abs().sum()
        assert abs(sizes / delta.double().abs().sum() - 1) < 1e-5
    assert sparsify.dare(delta, 0.25, 1, "density").factor == 4.0


def test_outliers_drop_fewer_of_the_largest_where_not_enough_follow():
    delta = torch.arange(1.0, 11.0)
    kept = sparsify.outliers(delta, 0.8, 0.5).whole()
    assert kept.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]
    kept = sparsify.outliers(delta, 0.4, 0.2).whole()
    assert kept.tolist() == [0, 0, 0, 0, 5, 6, 7, 8, 0, 0]
