"""What is done to deltas before a merge, and to the merged delta after it."""

import math

import numpy as np
import pytest
import torch
from methods.drawing import SHAPES, place, smooth
from methods.references import magnitude

import mergekit_rl.methods  # noqa: F401
from mergekit_rl.methods import sparsify
from mergekit_rl.registry import Context, find_stage, stages


def test_stages_are_registered_by_where_they_run():
    assert {"dare", "norm_match", "trim"} <= set(stages("preprocess"))
    assert {"lines", "scale", "svc"} <= set(stages("postprocess"))


@pytest.mark.parametrize("shape", SHAPES)
def test_stage_keeps_shape_dtype_and_inputs(shape):
    base, (delta, other) = smooth(0, shape, 2, torch.float32)
    before = delta.clone()
    ctx = place("ab", totals=(1.0, 4.0))
    results = [
        find_stage(name, "preprocess").call(base, delta, **more, model=0, ctx=ctx)
        for name, more in (
            ("trim", {"density": 0.5}),
            ("dare", {"density": 0.5}),
            ("norm_match", {}),
        )
    ] + [
        find_stage(name, "postprocess").call(base, delta, [delta, other], **more, ctx=ctx)
        for name, more in (("scale", {"factor": 2.0}), ("lines", {"alpha": 1.0, "beta": 1.0}),
                           ("svc", {}))
    ]  # fmt: skip
    for found in results:
        assert found.shape == shape and found.dtype == torch.float32
        assert torch.isfinite(found).all()
    assert torch.equal(delta, before)


def test_trim_keeps_the_largest():
    _, (delta,) = smooth(1, (9, 11), 1)
    found = find_stage("trim", "preprocess").call(delta, delta, density=0.3, model=0, ctx=place())
    assert np.array_equal(found.numpy(), magnitude(delta.numpy(), 0.3))


def test_dare_draws_as_the_method_does():
    _, (delta,) = smooth(2, (9, 11), 1)
    ctx = place("xy")
    found = find_stage("dare", "preprocess").call(
        delta, delta, density=0.5, dare_rescale="density", model=1, ctx=ctx
    )
    mask = sparsify.dare(delta, 0.5, ctx.key(1), None).mask.reshape(delta.shape)
    torch.testing.assert_close(found, delta * mask * 2)


@pytest.mark.parametrize(("to", "norm"), [("mean", 6.0), ("min", 3.0), ("max", 9.0)])
def test_norm_match_gives_all_experts_one_norm(to, norm):
    stage = find_stage("norm_match", "preprocess")
    experts = [  # tensors of each of three experts, the last unchanged
        [torch.tensor([1.0, 2.0]), torch.tensor([2.0])],
        [torch.tensor([3.0, 6.0]), torch.tensor([-6.0])],
        [torch.zeros(2), torch.zeros(1)],
    ]
    shares = [
        stage.totals(t[0], list(t), settings={"to": to}, ctx=Context())
        for t in zip(*experts, strict=True)
    ]
    ctx = Context(totals=tuple(map(sum, zip(*shares, strict=True))))
    for number, tensors in enumerate(experts):
        found = [stage.call(t, t, to=to, model=number, ctx=ctx) for t in tensors]
        size = math.sqrt(sum(float(t.square().sum()) for t in found))
        assert size == pytest.approx(0.0 if number == 2 else norm)


def test_lines_grow_with_the_depth():
    stage = find_stage("lines", "postprocess")

    def factor(**where):
        one = torch.ones(1)
        return stage.call(one, one, [one], alpha=0.5, beta=1.0, ctx=Context(**where)).item()

    assert [factor(layer=i, layers=5) for i in range(5)] == [0.5, 0.75, 1.0, 1.25, 1.5]
    assert factor(layer=0, layers=1) == 1.5
    assert factor(name="model.embed_tokens.weight") == 0.5
    assert factor(name="model.norm.weight") == factor(name="lm_head.weight") == 1.5


def test_svc_halves_what_two_experts_share():
    stage = find_stage("svc", "postprocess")
    base, (delta,) = smooth(3, (6, 9), 1)
    torch.testing.assert_close(stage.call(base, delta, [delta], ctx=place()), delta)
    found = stage.call(base, 2 * delta, [delta, delta], ctx=place())
    torch.testing.assert_close(found, delta)


def test_svc_leaves_orthogonal_experts_alone():
    stage = find_stage("svc", "postprocess")
    one, two = torch.zeros(4, 6), torch.zeros(4, 6)
    one[0, 1], two[2, 3] = 3.0, 2.0
    found = stage.call(one, one + two, [one, two], ctx=place())
    torch.testing.assert_close(found, one + two)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (1, 4), (4, 1)])
def test_svc_is_its_formula(shape):
    base, deltas = smooth(4, shape, 3)
    merged = sum(deltas)
    u, s, vh = np.linalg.svd(merged.numpy(), full_matrices=False)
    for r in range(len(s)):
        rows = [u[:, r] @ delta.numpy() for delta in deltas]
        shares = [max(1.0, (u[:, r] @ merged.numpy()) @ row / (row @ row)) for row in rows]
        s[r] *= len(deltas) / sum(shares)
    found = find_stage("svc", "postprocess").call(base, merged, deltas, ctx=place())
    np.testing.assert_allclose(found.numpy(), u * s @ vh, rtol=1e-7, atol=1e-10)
