"""Stages before and after the merge, through whole merges."""

import math

import pytest
import torch
from merge_models import tensors
from merge_trio import trio

from mergekit_rl import merge, sar


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return trio(tmp_path_factory.mktemp("stages"))


def merged(folders, out, **keys):
    """(base, Δ of a, Δ of b, Δ of the merge) in fp64, Δ_a + Δ_b but for stages."""
    recipe = {
        "merge_method": "task_arithmetic",
        "base_model": str(folders["base"]),
        "models": [{"model": str(folders[n]), "parameters": {"weight": 1}} for n in ("a", "b")],
        **keys,
    }
    merge(recipe, out)
    base, a, b, found = (
        {name: tensor.double() for name, tensor in tensors(folder).items()}
        for folder in (folders["base"], folders["a"], folders["b"], out)
    )
    over = [{name: one[name] - base[name] for name in base} for one in (a, b, found)]
    return base, *over


def norm(delta):
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in delta.values()))


@pytest.mark.parametrize(("to", "target"), [("mean", lambda a, b: (a + b) / 2), ("min", min)])
def test_norm_match_gives_experts_one_norm_over_the_whole_model(to, target, models, tmp_path):
    stage = {"norm_match": {"to": to}}
    _, a, b, found = merged(models, tmp_path / "out", preprocess=[stage])
    aim = target(norm(a), norm(b))
    for name, delta in found.items():
        expected = a[name] * aim / norm(a) + b[name] * aim / norm(b)
        torch.testing.assert_close(delta, expected, rtol=0, atol=3e-7)


def test_stages_of_one_model_change_that_model_alone(models, tmp_path):
    keys = {
        "models": [
            {
                "model": str(models["a"]),
                "parameters": {"weight": 1},
                "preprocess": [{"trim": {"density": 0.25}}],
            },
            {"model": str(models["b"]), "parameters": {"weight": 1}},
        ]
    }
    _, a, b, found = merged(models, tmp_path / "out", **keys)
    for name, delta in found.items():
        left = delta - b[name]
        kept = left.abs() > 1e-5
        count = a[name].numel()
        assert 0.2 <= float(kept.double().mean()) <= 0.3 or count < 20
        torch.testing.assert_close(left[kept], a[name][kept], rtol=0, atol=3e-7)


def test_stages_run_in_the_order_they_are_written(models, tmp_path):
    """A norm matched after trimming is that of what is left."""
    trim = {"trim": {"density": 0.5}}
    alone = [
        merged(models, tmp_path / n, preprocess=[trim], models=[{"model": str(models[n])}],
               parameters={"weight": 1})[-1]
        for n in ("a", "b")
    ]  # fmt: skip
    *_, found = merged(models, tmp_path / "out", preprocess=[trim, "norm_match"])
    aim = sum(map(norm, alone)) / 2
    for name, delta in found.items():
        expected = sum(one[name] * aim / norm(one) for one in alone)
        torch.testing.assert_close(delta, expected, rtol=0, atol=1e-6)


def test_lines_and_scale_multiply_the_merged_delta(models, tmp_path):
    after = [{"lines": {"alpha": 0.5, "beta": 1.0}}, {"scale": {"factor": 2.0}}]
    _, a, b, found = merged(models, tmp_path / "out", postprocess=after)
    for name, delta in found.items():
        factor = 2 * (0.5 if ".layers.0." in name or "embed" in name else 1.5)
        torch.testing.assert_close(delta, factor * (a[name] + b[name]), rtol=0, atol=6e-7)


def test_svc_divides_what_experts_share(models, tmp_path):
    twice = [{"model": str(models["a"]), "parameters": {"weight": 1}}]
    copy = trio(tmp_path / "again")["a"]  # the same tensors under another name
    twice.append({"model": str(copy), "parameters": {"weight": 1}})
    _, a, _, found = merged(models, tmp_path / "out", models=twice, postprocess=["svc"])
    for name, delta in found.items():
        expected = a[name] if a[name].ndim == 2 else 2 * a[name]
        torch.testing.assert_close(delta, expected, rtol=0, atol=3e-6)


def test_sar_before_a_merge_is_the_core_of_each_expert(models, tmp_path):
    stage = {"sar": {"rank": 2}}
    _, _, _, found = merged(models, tmp_path / "out", preprocess=[stage])
    cores = {}
    for name in ("a", "b"):
        sar(models["base"], models[name], tmp_path / name, rank=2, save="model", device="cpu")
        cores[name] = tensors(tmp_path / name)
    base = tensors(models["base"])
    names = [n for n in base if "_proj" in n]
    assert names
    for name in names:
        expected = sum(cores[m][name].double() - base[name].double() for m in ("a", "b"))
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-5)
