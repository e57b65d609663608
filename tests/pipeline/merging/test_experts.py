"""Mixtures of experts: each expert is a matrix of its own, however it is stored; routers."""

import pytest
import torch
from merge_models import family, recipe, tensors

from mergekit_rl import merge, merge_state_dicts
from mergekit_rl.pipeline.merging.explain import explain


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return family(tmp_path_factory.mktemp("packed"), "granite_moe", "a b")


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    return family(tmp_path_factory.mktemp("separate"), "qwen3_moe", "a b")


def weights(models):
    return {name: tensors(path) for name, path in models.items()}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ties", {"weight": 1.0, "density": 0.3}),
        ("dare_ties", {"weight": 1.0, "density": 0.5}),
        ("sce", {"select_topk": 0.4}),
        ("model_stock", {}),
    ],
)
def test_expert_of_a_packed_stack_is_merged_like_a_matrix(method, settings, packed, tmp_path):
    per_model = {k: v for k, v in settings.items() if k != "select_topk"}
    shared = {k: v for k, v in settings.items() if k == "select_topk"}
    written = recipe(packed, method, "a", "b", settings=per_model, parameters=shared)
    merge(written, tmp_path / "out")
    found, given = tensors(tmp_path / "out"), weights(packed)
    stacks = [name for name, tensor in found.items() if tensor.dim() == 3]
    assert stacks
    for name in stacks:
        assert found[name].shape[0] > 1
        whole = merge_state_dicts(
            [{name: given[m][name]} for m in ("a", "b")],
            method=method,
            base={name: given["base"][name]},
            **settings,
        )[name]
        torch.testing.assert_close(found[name], whole, rtol=0, atol=1e-7)
        if not method.startswith("dare"):  # whose masks depend on the expert's number
            for index in range(found[name].shape[0]):
                alone = merge_state_dicts(
                    [{"w": given[m][name][index]} for m in ("a", "b")],
                    method=method,
                    base={"w": given["base"][name][index]},
                    **settings,
                )["w"]
                torch.testing.assert_close(found[name][index], alone, rtol=0, atol=1e-7)
        else:
            kept = (found[name] != given["base"][name]).flatten(1).float().mean(1)
            assert bool((kept > 0.5).all()) and len(set(kept.tolist())) > 1


def test_separate_experts_merge_each_by_its_name(separate, tmp_path):
    merge(recipe(separate, "linear", "a", "b", settings={"weight": 1.0}), tmp_path / "out")
    found, given = tensors(tmp_path / "out"), weights(separate)
    names = [name for name in found if ".experts." in name]
    assert len(names) > 4
    for name in names:
        expected = (given["a"][name].double() + given["b"][name].double()) / 2
        torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["packed", "separate"])
@pytest.mark.parametrize("router", ["merge", "base", "mean", "a"])
def test_router_is_what_the_recipe_says(kind, router, tmp_path, request):
    models = request.getfixturevalue(kind)
    said = str(models["a"]) if router == "a" else router
    written = recipe(models, "task_arithmetic", "a", "b", settings={"weight": 0.25}, router=said)
    done = merge(written, tmp_path / "out")
    found, given = tensors(tmp_path / "out"), weights(models)
    routers = [n for n in found if ".gate.weight" in n or ".router." in n]
    assert routers
    for name in routers:
        base, a, b = (given[m][name].double() for m in ("base", "a", "b"))
        expected = {
            "merge": base + 0.25 * (a - base) + 0.25 * (b - base),
            "base": base,
            "mean": (a + b) / 2,
            "a": a,
        }[router]
        torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=1e-7)
    assert any("router: base keeps the base's" in note for note in done.notes) == (
        router == "merge"
    )


def test_what_decides_over_a_router_is_explained(separate):
    written = recipe(separate, "linear", "a", "b", router="mean")
    name = next(n for n in tensors(separate["base"]) if n.endswith("mlp.gate.weight"))
    assert explain(written, name)["origins"]["weight"] == "router: mean"
