"""Every method against its formula in fp64 NumPy; EXAMPLES sets how many draws of each."""

import os

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from methods.drawing import SHAPES, drawn_settings, exact, place, smooth
from methods.references import REFERENCES

import mergekit_rl.methods  # noqa: F401
from mergekit_rl.errors import EditError
from mergekit_rl.methods import sparsify
from mergekit_rl.registry import find_method, methods

# Where a rounding error decides whether an entry is taken, only numbers without ties compare.
SMOOTH = {"arcee_fusion", "slerp"}
UNSTABLE_IN_FP32 = {"arcee_fusion", "nuslerp", "multislerp", "karcher", "model_stock"}


def masks_of(method, deltas, values, ctx):
    """The entries that a random method keeps."""
    parts = []
    for i, delta in enumerate(deltas):
        if method.name.startswith("dare"):
            parts.append(sparsify.dare(delta, values["density"][i], ctx.key(i), None))
        elif method.name.startswith("della"):
            share, half = values["density"][i], values["epsilon"][i]
            parts.append(sparsify.magprune(delta, share, half, ctx.key(i)))
    whole = [np.ones(delta.shape) for delta in deltas]
    masks = [part.mask for part in parts] or [None] * len(deltas)
    return [
        one if mask is None else mask.numpy().reshape(one.shape)
        for mask, one in zip(masks, whole, strict=True)
    ]


@pytest.mark.parametrize("name", [name for name in methods() if name in REFERENCES])
@settings(max_examples=int(os.environ.get("EXAMPLES", "250")), deadline=None)
@given(data=st.data())
def test_method_is_its_formula(name, data):
    method = find_method(name)
    least, most = method.models
    count = data.draw(st.integers(least, most or 4))
    shape = data.draw(st.sampled_from(SHAPES))
    wide = name in UNSTABLE_IN_FP32 or data.draw(st.booleans())
    make = smooth if name in SMOOTH else exact
    dtype = torch.float64 if wide else torch.float32
    base, deltas = make(data.draw(st.integers(0, 10**6)), shape, count, dtype)
    values = data.draw(drawn_settings(method, count))
    try:
        if method.check is not None:
            method.check(**values)
    except EditError:
        assume(False)
    if method.base == "input" or (method.base == "optional" and data.draw(st.booleans())):
        base = None
    elif name in ("slerp", "arcee_fusion") and data.draw(st.booleans()):
        deltas = [delta * 200 for delta in deltas]
    tensors = [delta if base is None else base + delta for delta in deltas]
    ctx = place()
    found = method.call(base, deltas if method.takes == "deltas" else tensors, **values, ctx=ctx)
    expected = REFERENCES[name](
        None if base is None else base.double().numpy(),
        [tensor.double().numpy() for tensor in tensors],
        masks=masks_of(method, deltas, values, ctx),
        **values,
    )
    assert found.dtype == dtype and found.shape == shape
    bound = {"rtol": 1e-9, "atol": 1e-11} if wide else {"rtol": 2e-6, "atol": 2e-7}
    np.testing.assert_allclose(found.double().numpy(), expected, **bound)


def test_every_method_has_a_reference():
    shipped = {
        name
        for name, method in methods().items()
        if method.call.__module__.startswith("mergekit_rl.methods.")
    }
    assert shipped <= set(REFERENCES)


def test_vote_of_the_paper_ignores_weights():
    base = torch.zeros(1)
    deltas = [torch.tensor([3.0]), torch.tensor([-2.0])]
    ties = find_method("ties").call
    settings = {"weight": [1.0, 2.0], "density": [1.0, 1.0], "ctx": place()}
    assert ties(base, deltas, **settings).item() == -2.0
    assert ties(base, deltas, vote="unweighted", **settings).item() == 3.0


def test_sce_weighs_rl_sized_deltas():
    # One expert changed much, one little: absolute thresholds would give both the same weight.
    base = torch.zeros(1000)
    deltas = [4e-8 * torch.ones(1000), 1e-8 * torch.ones(1000)]
    merged = find_method("sce").call(base, deltas, ctx=place())
    torch.testing.assert_close(merged, torch.full((1000,), (16 * 4 + 1) / 17 * 1e-8))


def test_linear_average_of_cancelling_weights_is_refused():
    linear = find_method("linear")
    x = [torch.ones(2), torch.ones(2), torch.ones(2)]
    message = "the weights sum to zero, so there is no average"
    for weight in ([1.0, -1.0, 0.0], [0.1, 0.2, -0.3], [0.0, 0.0, 0.0]):
        with pytest.raises(EditError, match=message):
            linear.check(weight=weight, normalize=True)
        with pytest.raises(EditError, match=message):
            linear.call(None, x, weight=weight, ctx=place())
    linear.check(weight=[0.1, 0.2, -0.3], normalize=False)


@pytest.mark.parametrize("name", ["nuslerp", "multislerp"])
def test_shares_of_cancelling_weights_are_refused(name):
    method = find_method(name)
    values = {"weight": [0.5, -0.5], "normalize_weights": True}
    with pytest.raises(EditError, match="the weights sum to zero"):
        method.check(**values)


def test_della_refuses_probabilities_that_are_none():
    method = find_method("della")
    method.check(weight=[1.0], density=[1.0], epsilon=[0.15])
    with pytest.raises(EditError) as refused:
        method.check(weight=[1.0], density=[0.9], epsilon=[0.15])
    assert str(refused.value) == (
        "density 0.9 and epsilon 0.15 give probabilities from 0.75 to 1.05, expected 0 to 1: "
        "epsilon may be 0.1 at most there"
    )


@pytest.mark.parametrize("name", ["slerp", "nuslerp"])
@pytest.mark.parametrize("factor", [1.0, 2.0, -1.0, 0.0])
def test_arc_between_colinear_vectors_is_a_line(name, factor):
    one = torch.randn(40, generator=torch.Generator().manual_seed(0))
    two = factor * one
    method = find_method(name)
    if name == "slerp":
        found = method.call(one, [two], t=0.25, ctx=place())
    else:
        found = method.call(None, [one, two], weight=[0.75, 0.25], ctx=place())
    torch.testing.assert_close(found, 0.75 * one + 0.25 * two)


def test_slerp_ends_at_its_models():
    one, (delta,) = smooth(0, (30,), 1, torch.float32)
    two = one + 100 * delta
    slerp = find_method("slerp").call
    torch.testing.assert_close(slerp(one, [two], t=0.0, ctx=place()), one)
    torch.testing.assert_close(slerp(one, [two], t=1.0, ctx=place()), two)


def test_mean_of_opposite_directions_is_finite():
    one = torch.ones(5)
    for name in ("karcher", "multislerp"):
        weight = {"weight": [1.0, 1.0]} if name == "multislerp" else {}
        found = find_method(name).call(None, [one, -one], **weight, ctx=place())
        assert torch.isfinite(found).all()


def test_model_stock_of_opposite_deltas_is_the_base():
    base, (delta,) = smooth(0, (4, 6), 1)
    for filter_wise in (False, True):
        found = find_method("model_stock").call(
            base, [delta, -delta], filter_wise=filter_wise, ctx=place()
        )
        torch.testing.assert_close(found, base)
