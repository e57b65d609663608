"""merge_state_dicts: the same as merging files, over tensors in memory."""

import pytest
import torch
from merge_models import tensors
from merge_trio import trio

from mergekit_rl import EditError, merge, merge_state_dicts
from mergekit_rl.registry import methods

# The masks of these are keyed by the recipe's model and tensor, here and there alike.
SETTINGS = {
    "breadcrumbs": {"density": 0.7}, "breadcrumbs_ties": {"density": 0.7}, "nearswap": {"t": 0.01},
    "dare_linear": {"density": 0.5}, "dare_ties": {"density": 0.5}, "ties": {"density": 0.4},
    "della": {"density": 0.5}, "della_linear": {"density": 0.5}, "slerp": {"t": 0.3},
}  # fmt: skip
PER_MODEL = ("weight", "density", "gamma", "epsilon")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return trio(tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("name", [n for n, one in methods().items() if one.models[0] <= 2])
def test_same_values_as_over_files(name, models, tmp_path):
    method = methods()[name]
    given = SETTINGS.get(name, {})
    if any(s.name == "weight" and s.required for s in method.settings.values()):
        given = given | {"weight": 0.6}
    names = ("a",) if method.models == (1, 1) else ("a", "b")
    own = {k: v for k, v in given.items() if k in PER_MODEL}
    recipe = {
        "merge_method": name,
        "models": [{"model": str(models[m]), "parameters": own} for m in names],
        "parameters": {k: v for k, v in given.items() if k not in own},
    }
    over = {"base": tensors(models["base"])} if method.base == "required" else {}
    if over:
        recipe["base_model"] = str(models["base"])
    merge(recipe, tmp_path / "out")
    found = merge_state_dicts([tensors(models[m]) for m in names], method=name, **over, **given)
    written = tensors(tmp_path / "out")
    assert found.keys() == written.keys()
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, written[key], rtol=0, atol=2e-7)


def test_one_value_stands_for_all_models_and_a_list_for_each():
    a, b = {"w": torch.zeros(3)}, {"w": torch.ones(3)}
    same = merge_state_dicts({"a": a, "b": b}, method="linear", weight=1.0)
    assert torch.equal(same["w"], torch.full((3,), 0.5))
    each = merge_state_dicts([a, b], method="linear", weight=[1.0, 3.0])
    assert torch.equal(each["w"], torch.full((3,), 0.75))


def test_result_has_the_first_ones_dtypes_and_inputs_are_left_alone():
    a = {"w": torch.ones(3, dtype=torch.bfloat16), "n": torch.arange(3)}
    b = {"w": torch.full((3,), 2.0), "n": torch.arange(3) + 1}
    found = merge_state_dicts([a, b], method="linear", weight=1.0)
    assert found["w"].dtype == torch.bfloat16 and torch.equal(found["n"], torch.arange(3))
    assert torch.equal(a["w"], torch.ones(3, dtype=torch.bfloat16))
    found["n"][0] = 9
    assert a["n"][0] == 0


@pytest.mark.parametrize(
    ("experts", "options", "message"),
    [
        ([{"w": torch.ones(1)}], {"method": "tie"}, "did you mean 'ties'"),
        ([{"w": torch.ones(1)}], {"method": "ties", "weight": 1}, "needs a base: give base="),
        ([{"w": torch.ones(1)}], {"method": "linear"}, "linear needs weight"),
        ([{"w": torch.ones(1)}], {"method": "linear", "wieght": 1}, "did you mean 'weight'"),
        ([{"w": torch.ones(1)}], {"method": "linear", "weight": [1, 2]}, "2 values for 1 models"),
        ([{"w": torch.ones(1)}, {"v": torch.ones(1)}], {"method": "linear", "weight": 1}, "differ"),
        ([{"w": torch.ones(1)}, {"w": torch.ones(2)}], {"method": "linear", "weight": 1}, "w is "),
        ([{"w": torch.ones(1)}] * 2, {"method": "linear", "weight": [1, -1]}, "sum to zero"),
    ],
)
def test_what_does_not_fit_is_refused(experts, options, message):
    with pytest.raises(EditError, match=message):
        merge_state_dicts(experts, **options)
