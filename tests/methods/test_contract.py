"""What every registered method promises, whatever it is."""

import pytest
import torch
from methods.drawing import SHAPES, exact, place, plain_settings, smooth

import mergekit_rl.methods  # noqa: F401
from mergekit_rl.registry import find_method, methods

METHODS = sorted(methods())
OVER_DELTAS = [name for name in METHODS if methods()[name].takes == "deltas"]
WEIGHTED = [name for name in OVER_DELTAS if "weight" in methods()[name].settings]
SCALED = [
    "task_arithmetic", "ties", "dare_linear", "dare_ties", "breadcrumbs", "breadcrumbs_ties",
    "della", "della_linear", "sce", "model_stock",
]  # fmt: skip
SPARSE = {"density": 0.5, "gamma": 0.1, "epsilon": 0.15, "select_topk": 0.5}


def count_of(method):
    """How many models to try it with."""
    most = method.models[1]
    return min(3, most) if most else 3


def settings_of(method, count, **changed):
    """Plain settings but those that are changed: one value, or one for each model."""
    found = plain_settings(method, count)
    for name, value in changed.items():
        if name in method.settings:
            each = method.settings[name].per_model and not isinstance(value, list)
            found[name] = [value] * count if each else value
    return found


def merged(method, base, deltas, ctx=None, **changed):
    """The method on some deltas, whatever it takes."""
    given = [base + delta for delta in deltas] if method.takes == "tensors" else deltas
    base = None if method.base == "input" else base
    values = settings_of(method, len(deltas), **changed)
    return method.call(base, given, **values, ctx=ctx or place())


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_result_has_the_inputs_shape_and_dtype_and_leaves_them_alone(name, dtype):
    method = find_method(name)
    for shape in SHAPES:
        base, deltas = exact(1, shape, count_of(method), dtype)
        given = [base + delta for delta in deltas] if method.takes == "tensors" else deltas
        before = [tensor.clone() for tensor in (base, *given)]
        for changed in ({}, SPARSE):
            values = settings_of(method, len(given), **changed)
            over = None if method.base == "input" else base
            found = method.call(over, given, **values, ctx=place())
            assert found.shape == shape and found.dtype == dtype
            assert torch.isfinite(found).all()
            assert not any(found.data_ptr() == t.data_ptr() for t in given if t.numel())
            if found.numel():
                found.fill_(9.0)
        for tensor, was in zip((base, *given), before, strict=True):
            assert torch.equal(tensor, was)


@pytest.mark.parametrize("name", METHODS)
def test_models_that_are_the_base_give_the_base(name):
    method = find_method(name)
    for shape in SHAPES:
        base, _ = exact(2, shape, 1, torch.float32)
        base = torch.where(base == 0, -0.0, base)
        if base.numel():
            base.view(-1)[0] = -0.0
        deltas = [torch.zeros(shape)] * count_of(method)
        weight = [1 / len(deltas)] * len(deltas)
        for values in ({}, SPARSE):
            found = merged(method, base, deltas, weight=weight, **values)
            if method.takes == "deltas":
                assert torch.equal(bits(found), bits(base))
            else:
                torch.testing.assert_close(found, base)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_zero_give_the_base_to_the_bit(name):
    method = find_method(name)
    for shape in SHAPES:
        base, deltas = smooth(3, shape, 3, torch.float32)
        if base.numel():
            base.view(-1)[0] = -0.0
        for values in ({}, SPARSE):
            found = merged(method, base, deltas, weight=[0.0, -0.0, 0.0], **values)
            assert torch.equal(bits(found), bits(base))


@pytest.mark.parametrize("name", [name for name in OVER_DELTAS if methods()[name].models[0] == 1])
def test_one_expert_alone_is_the_expert(name):
    method = find_method(name)
    for shape in SHAPES:
        base, (delta,) = smooth(4, shape, 1, torch.float32)
        expert = base + delta
        all_of_it = {"weight": 1.0, "gamma": 0.0, "epsilon": 0.0, "t": 10.0}
        found = merged(method, base, [expert - base], **all_of_it)
        size = torch.maximum(base.abs(), expert.abs())
        one = torch.nextafter(size, torch.tensor(torch.inf)) - size
        assert ((found - expert).abs() <= one).all()


@pytest.mark.parametrize("name", METHODS)
def test_order_of_the_models_does_not_matter(name):
    method = find_method(name)
    count = count_of(method)
    base, deltas = smooth(5, (4, 9), count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()[::-1]
    letters = tuple("abc"[:count])
    values = {"weight": [0.2, 0.5, 0.3][:count], "density": [0.5, 0.4, 0.6][:count]}
    shuffled = {key: [each[i] for i in order] for key, each in values.items()}
    one = merged(method, base, deltas, place(letters), **values)
    two = merged(
        method, base, [deltas[i] for i in order], place([letters[i] for i in order]), **shuffled
    )
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", METHODS)
def test_layout_in_memory_does_not_matter(name):
    method = find_method(name)
    base, deltas = smooth(6, (5, 8), count_of(method), torch.float32)
    one = merged(method, base, deltas, **SPARSE)
    two = merged(method, base.T.clone().T, [delta.T.clone().T for delta in deltas], **SPARSE)
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", [name for name in METHODS if methods()[name].elementwise])
def test_elementwise_method_gives_the_same_piece_by_piece(name):
    method = find_method(name)
    base, deltas = smooth(7, (100,), count_of(method), torch.float32)
    whole = merged(method, base, deltas)
    parts = [
        merged(method, base[at : at + 7], [delta[at : at + 7] for delta in deltas])
        for at in range(0, 100, 7)
    ]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("name", SCALED)
def test_merged_delta_scales_with_the_deltas(name):
    method = find_method(name)
    base = torch.zeros(40, 50)
    _, deltas = smooth(8, base.shape, 3, torch.float32)
    values = SPARSE | {"weight": [0.5, 0.3, 0.4]}
    one = merged(method, base, deltas, **values)
    exactly = merged(method, base, [delta * 2.0**-20 for delta in deltas], **values)
    assert torch.equal(exactly, one * 2.0**-20)
    nearly = merged(method, base, [delta * 1e-6 for delta in deltas], **values)
    size = sum(delta.abs() for delta in deltas)
    apart = (nearly - one * 1e-6).abs() > 1e-5 * 1e-6 * size
    assert apart.float().mean() <= 1e-3  # rounding may swap two entries at a cut-off


@pytest.mark.parametrize("name", ["ram", "ramplus_tl", "nearswap"])
def test_relative_threshold_scales_with_the_deltas(name):
    method = find_method(name)
    base = torch.zeros(40, 50)
    _, deltas = smooth(9, base.shape, count_of(method), torch.float32)
    values = {"relative": True, "epsilon": 0.5, "t": 0.5}
    one = merged(method, base, deltas, **values)
    exactly = merged(method, base, [delta * 2.0**-20 for delta in deltas], **values)
    assert torch.equal(exactly, one * 2.0**-20)
    assert not torch.equal(one, merged(method, base, deltas, **(values | {"relative": False})))
