"""From what a recipe says of a setting to its value for one tensor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge_trio import trio

import mergekit_rl.methods  # noqa: F401
from mergekit_rl import EditError
from mergekit_rl.pipeline.merging.explain import explain
from mergekit_rl.recipe.load import load
from mergekit_rl.recipe.settings import Level, interpolate, resolve
from mergekit_rl.registry import find_method

WEIGHT = find_method("ties").setting("weight")
DENSITY = find_method("ties").setting("density")
NORMALIZE = find_method("ties").setting("normalize")
NAME = "model.layers.1.self_attn.q_proj.weight"


def value_of(setting, *levels, name=NAME, t=0.0):
    """The value with these parameters, the nearest first; the levels are called 0, 1, …"""
    return resolve(setting, [Level(one, name, str(i)) for i, one in enumerate(levels)], t)


@pytest.mark.parametrize(
    ("gradient", "t", "value"),
    [
        ([3.0], 0.7, 3.0), ([0.0, 1.0], 0.0, 0.0), ([0.0, 1.0], 1.0, 1.0), ([0.0, 1.0], 0.25, 0.25),
        ([0.0, 1.0, 0.5], 0.5, 1.0), ([0.0, 1.0, 0.5], 0.75, 0.75), ([1.0, 0.0], 0.1, 0.9),
        ([0, 1], 0.5, 0.5),
    ],
)  # fmt: skip
def test_gradient_is_linear_between_values_spread_evenly(gradient, t, value):
    assert interpolate(gradient, t) == pytest.approx(value, abs=1e-12)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.floats(0, 1))
def test_gradient_stays_within_its_values_and_meets_its_ends(gradient, t):
    size = max(map(abs, gradient)) * 1e-12
    assert min(gradient) - size <= interpolate(gradient, t) <= max(gradient) + size
    assert interpolate(gradient, 0.0) == gradient[0]
    assert interpolate(gradient, 1.0) == gradient[-1]


def test_nearest_level_that_answers_wins():
    assert value_of(WEIGHT, {"weight": 1}, {"weight": 2}) == (1.0, "0")
    assert value_of(WEIGHT, {}, {"weight": 2}, {"weight": 3}) == (2.0, "1")
    assert value_of(DENSITY, {"weight": 1}) == (1.0, "default")


def test_first_filter_that_matches_wins():
    filters = [
        {"filter": "mlp", "value": 1},
        {"filter": "self_attn", "value": 2},
        {"filter": "q_proj", "value": 3},
        {"value": 4},
    ]
    assert value_of(WEIGHT, {"weight": filters}) == (2.0, "0, filter self_attn")
    assert value_of(WEIGHT, {"weight": filters}, name="model.norm.weight") == (
        4.0, "0, the filters' default",
    )  # fmt: skip


def test_filters_are_parts_of_names_not_patterns():
    assert value_of(WEIGHT, {"weight": [{"filter": "q_p", "value": 1}]})[0] == 1.0
    for pattern in ("q.proj", "^model", "Q_PROJ", ".*"):
        filters = [{"filter": pattern, "value": 1}, {"value": 2}]
        assert value_of(WEIGHT, {"weight": filters})[0] == 2.0, pattern


def test_star_matches_every_name():
    filters = [{"filter": "*", "value": 1}, {"filter": "q_proj", "value": 2}]
    assert value_of(WEIGHT, {"weight": filters}) == (1.0, "0, filter *")


def test_filters_without_a_match_leave_it_to_the_next_level():
    filters = {"weight": [{"filter": "mlp", "value": 1}]}
    assert value_of(WEIGHT, filters, {"weight": 5}) == (5.0, "1")
    assert value_of(DENSITY, {"density": [{"filter": "mlp", "value": 0.1}]}) == (1.0, "default")


def test_filter_may_hold_a_gradient():
    filters = [{"filter": "self_attn", "value": [0, 0.5, 1]}, {"value": 9}]
    found = value_of(WEIGHT, {"weight": filters}, t=0.25)
    assert found == (0.25, "0, filter self_attn, gradient at 0.25")


def test_setting_without_value_or_default_is_named_with_the_tensor():
    with pytest.raises(EditError) as caught:
        value_of(WEIGHT, {"weight": [{"filter": "mlp", "value": 1}]})
    assert str(caught.value) == (f"weight is not set for {NAME}: write it in parameters, a number")


def test_interpolated_values_are_held_to_the_settings_range():
    with pytest.raises(EditError, match=r"density is 1\.5, expected a number between 0 and 1"):
        value_of(DENSITY, {"density": [1.0, 2.0]}, t=0.5)


def test_switches_have_filters_too():
    filters = {"normalize": [{"filter": "q_proj", "value": False}, {"value": True}]}
    assert value_of(NORMALIZE, filters)[0] is False
    assert value_of(NORMALIZE, filters, name="lm_head.weight")[0] is True


# Precedence over the whole recipe: the settings that a checked recipe resolves for one tensor.


def settings_of(document, output=NAME, inputs=None, t=0.0):
    (recipe,) = load(document)
    block = recipe.blocks[0]
    piece = block.pieces[0]
    sources = [(s, n) for s, n in zip(piece.sources, inputs or [output] * 9, strict=False)]
    return recipe.settings(block, piece, sources, output, t)


def document(levels, source="slices"):
    """A recipe of two models in one slice, with the parameters given for some of the levels."""
    models = [{"model": name, "parameters": levels.get(name, {})} for name in ("a", "b")]
    if source == "models":
        body = {"models": models}
    else:
        sources = [one | {"layer_range": [0, 2]} for one in models]
        body = {"slices": [{"sources": sources, "parameters": levels.get("slice", {})}]}
    if "module" in levels:
        body = {"modules": {"text_model": body | {"parameters": levels["module"]}}}
    return {
        "merge_method": "ties",
        "base_model": "base",
        "parameters": levels.get("global", {}),
        **body,
    }


ORDER = ("a", "slice", "module", "global")


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_precedence_is_source_slice_module_global(first):
    levels = {name: {"weight": number} for number, name in enumerate(ORDER) if number >= first}
    levels["b"] = {"weight": 7}
    values, origins = settings_of(document(levels | {"module": levels.get("module", {})}))
    places = (
        "modules.text_model.slices[0].sources[0]", "modules.text_model.slices[0]",
        "modules.text_model", "parameters",
    )  # fmt: skip
    assert values["weight"] == [float(first), 7.0]
    assert origins["weight"] == [places[first], "modules.text_model.slices[0].sources[1]"]


def test_models_own_settings_win_over_the_recipes():
    levels = {"a": {"weight": 1, "density": 0.25}, "global": {"weight": 2, "density": 0.5}}
    values, origins = settings_of(document(levels, "models"))
    assert values["weight"] == [1.0, 2.0] and values["density"] == [0.25, 0.5]
    assert origins["weight"] == ["models[0]", "parameters"]


def test_default_comes_last():
    values, origins = settings_of(document({"global": {"weight": 2}}, "models"))
    assert values["density"] == [1.0, 1.0] and origins["density"] == ["default"] * 2
    assert (values["lambda_"], values["normalize"], origins["lambda_"]) == (1.0, True, "default")


def test_settings_of_the_whole_merge_come_from_slice_module_global():
    levels = {"global": {"weight": 1, "lambda": 3}, "module": {"lambda": 2}}
    assert settings_of(document(levels))[0]["lambda_"] == 2.0
    levels["slice"] = {"lambda": 1}
    values, origins = settings_of(document(levels))
    assert (values["lambda_"], origins["lambda_"]) == (1.0, "modules.text_model.slices[0]")


def test_per_model_filters_are_matched_on_the_inputs_name_shared_ones_on_the_outputs():
    inputs = ["model.layers.5.mlp.up_proj.weight", "model.layers.6.mlp.up_proj.weight"]
    output = "model.layers.1.mlp.up_proj.weight"

    def filters(layer):
        return [{"filter": f"layers.{layer}.", "value": 1}, {"value": 0}]

    def weights(levels):
        return settings_of(document(levels), output, inputs)[0]["weight"]

    own = {"a": {"weight": filters(5)}, "b": {"weight": filters(6)}}
    assert weights(own) == [1.0, 1.0]
    assert weights({"a": {"weight": filters(1)}, "b": {"weight": filters(1)}}) == [0.0, 0.0]
    assert weights({"global": {"weight": filters(1)}}) == [1.0, 1.0]
    assert weights({"global": {"weight": filters(5)}}) == [0.0, 0.0]
    assert weights({"slice": {"weight": filters(1)}}) == [1.0, 1.0]


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_gradient_of_each_level_is_over_the_same_depth(t):
    levels = {"a": {"weight": [0, 1]}, "global": {"weight": [1, 0], "lambda": [2, 4]}}
    values, _ = settings_of(document(levels), t=t)
    assert values["weight"] == [t, 1 - t] and values["lambda_"] == 2 + 2 * t


# The depth t of a tensor, which only a plan over models knows.


def depth(recipe, name):
    """t of a tensor, as a weight that is a gradient from 0 to 1 shows it."""
    (weight,) = explain(recipe, name)["settings"]["weight"]
    return weight


def one_model(models):
    entry = {"model": str(models["a"]), "parameters": {"weight": [0, 1]}}
    base = str(models["base"])
    return {"merge_method": "task_arithmetic", "base_model": base, "models": [entry]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return trio(tmp_path_factory.mktemp("depth"), "a", layers=4)


OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def test_depth_of_layer_i_of_n_is_i_by_n_less_one_and_0_outside_the_layers(models):
    recipe = one_model(models)
    for layer in range(4):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        assert depth(recipe, name) == pytest.approx(layer / 3)
    assert [depth(recipe, name) for name in OUTSIDE] == [0.0] * 3


def test_depth_of_a_single_layer_is_1(tmp_path):
    recipe = one_model(trio(tmp_path, "a", layers=1))
    assert depth(recipe, "model.layers.0.mlp.up_proj.weight") == 1.0
    assert [depth(recipe, name) for name in OUTSIDE] == [0.0] * 3


def stacked(models, *ranges, scale):
    """A passthrough of these layers of one model."""
    entry = {"model": str(models["a"]), "parameters": {"scale": scale}}
    slices = [{"sources": [entry | {"layer_range": list(one)}]} for one in ranges]
    return {"merge_method": "passthrough", "slices": slices}


def scales(recipe, *names):
    return [explain(recipe, name)["settings"]["scale"][0] for name in names]


UP = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(4)]


def test_depth_in_a_slice_is_that_within_the_slice(models):
    recipe = stacked(models, (1, 4), (2, 3), scale=[0, 1])
    assert scales(recipe, *UP) == [0.0, 0.5, 1.0, 1.0]
    assert scales(recipe, *OUTSIDE) == [0.0] * 3


def test_filters_of_a_model_see_the_names_of_its_own_layers(models):
    """Layer 0 of the output is layer 2 of the model."""
    filters = [{"filter": "layers.2.", "value": 3}, {"value": 1}]
    assert scales(stacked(models, (2, 4), scale=filters), *UP[:2]) == [3.0, 1.0]


def test_filters_of_the_recipe_see_the_outputs_names(models):
    recipe = stacked(models, (2, 4), scale=1)
    for one in recipe["slices"]:
        del one["sources"][0]["parameters"]
    recipe["parameters"] = {"scale": [{"filter": "layers.1.", "value": 3}, {"value": 1}]}
    assert scales(recipe, *UP[:2]) == [1.0, 3.0]


def test_embeddings_take_the_first_slices_settings_the_rest_the_last_slices(models):
    recipe = stacked(models, (0, 2), (2, 4), scale=1)
    for number, one in enumerate(recipe["slices"], 1):
        one["sources"][0]["parameters"] = {"scale": number}
    assert scales(recipe, *OUTSIDE) == [1.0, 2.0, 2.0]
