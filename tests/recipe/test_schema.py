"""What a recipe may say, and what is read of it."""

import json

import pytest
import yaml
from pydantic import ValidationError

import mergekit_rl.methods  # noqa: F401
from mergekit_rl import EditError
from mergekit_rl.recipe.jsonschema import json_schema
from mergekit_rl.recipe.load import load
from mergekit_rl.recipe.reference import ModelReference
from mergekit_rl.recipe.schema import MergeRecipe
from mergekit_rl.recipe.schema_parts import Selector
from mergekit_rl.registry import methods, stages
from mergekit_rl.shipped import shipped_recipes

LINEAR = {
    "merge_method": "linear",
    "parameters": {"weight": 1},
    "models": [{"model": "a"}, {"model": "b"}],
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(**keys):
    (recipe,) = load(LINEAR | keys)
    return recipe


def names(references):
    return [str(one) for one in references]


@pytest.mark.parametrize("path", shipped_recipes("merge").values(), ids=shipped_recipes("merge"))
def test_every_shipped_recipe_is_one(path):
    assert load(path)


def test_method_may_be_called_either_way():
    recipe = {key: value for key, value in LINEAR.items() if key != "merge_method"}
    assert load(recipe | {"method": "linear"})[0].method is load(LINEAR)[0].method


def test_defaults_change_nothing():
    recipe = read()
    assert (recipe.name, recipe.base_model, recipe.dtype, recipe.out_dtype) == (None,) * 4
    assert (recipe.rest, recipe.seed, recipe.embeddings) == ("base", 0, None)
    assert (recipe.tokenizer, recipe.chat_template) == (None, None)
    assert (recipe.postprocess, recipe.notes) == ((), ())
    assert recipe.wants("anything", None, "at all")


def test_models_are_each_once_in_order_the_unlisted_base_first():
    assert names(read().models()) == ["a", "b"]
    assert names(read(base_model="base").models()) == ["base", "a", "b"]
    assert names(read(base_model="b").models()) == ["a", "b"]
    assert names(read(base_model="base", rest="c").models()) == ["base", "a", "b", "c"]
    assert names(read(base_model="base", rest="a").models()) == ["base", "a", "b"]


def test_models_of_slices_and_modules_are_found():
    ranges = {"layer_range": [0, 1]}
    slices = [
        {"sources": [{"model": "a"} | ranges], "base_model": "c"},
        {"sources": [{"model": "b@r"} | ranges, {"model": "a"} | ranges]},
    ]
    (recipe,) = load({"merge_method": "linear", "parameters": {"weight": 1}, "slices": slices})
    assert names(recipe.models()) == ["c", "a", "b@r"]
    modules = {"one": {"slices": slices}, "two": {"models": [{"model": "d"}]}}
    (recipe,) = load({"merge_method": "linear", "parameters": {"weight": 1}, "modules": modules})
    assert names(recipe.models()) == ["c", "a", "b@r", "d"]
    assert [block.name for block in recipe.blocks] == ["one", "two"]


def test_two_ways_to_write_a_reference_mean_one_model():
    models = [{"model": {"model": {"path": "a", "revision": "r"}, "lora": "l"}}, {"model": "b"}]
    recipe = read(models=models, base_model={"path": "c"})
    assert recipe.models()[1] == ModelReference("a", "r", "l")
    assert names(recipe.models()) == ["c", "a@r+l", "b"]


def test_stages_of_the_recipe_come_before_those_of_a_model():
    models = [{"model": "a", "preprocess": [{"trim": {"density": 0.5}}]}, {"model": "b"}]
    recipe = read(models=models, base_model="base", preprocess=["norm_match"])
    one, other = recipe.blocks[0].pieces[0].sources
    assert [call.name for call in one.preprocess] == ["norm_match", "trim"]
    assert [call.name for call in other.preprocess] == ["norm_match"]
    assert one.preprocess[1].settings == {"density": 0.5}


@pytest.mark.parametrize("written", ["norm_match", {"norm_match": {}}, {"norm_match": None}])
def test_stage_without_settings_may_be_written_in_three_ways(written):
    recipe = read(base_model="base", preprocess=[written])
    assert [call.name for call in recipe.blocks[0].pieces[0].sources[0].preprocess] == [
        "norm_match"
    ]


@pytest.mark.parametrize(
    ("selector", "matching"),
    [
        ("q_proj", "q0 q1"),
        (r"layers\.1\.", "q1 up1"),
        ({"kinds": ["q_proj", "norm"]}, "q0 q1 norm"),
        ({"layers": [1, 2]}, "q1 up1"),
        ({"layers": [0, 1], "kinds": ["q_proj"]}, "q0"),
        ({"name": "proj", "layers": [1, 9]}, "q1 up1"),
        (["q_proj", {"kinds": ["norm"]}], "q0 q1 norm"),
        (["^model"], "q0 q1 up1 norm"),
        ([], ""),
    ],
)
def test_include_takes_what_one_of_its_selectors_matches_and_exclude_the_rest(selector, matching):
    tensors = {
        "q0": ("model.layers.0.self_attn.q_proj.weight", 0, "q_proj"),
        "q1": ("model.layers.1.self_attn.q_proj.weight", 1, "q_proj"),
        "up1": ("model.layers.1.mlp.up_proj.weight", 1, "up_proj"),
        "norm": ("model.norm.weight", None, "norm"),
        "head": ("lm_head.weight", None, "lm_head"),
    }
    taken = [key for key, place in tensors.items() if read(include=selector).wants(*place)]
    assert taken == matching.split()
    left = [key for key, place in tensors.items() if read(exclude=selector).wants(*place)]
    assert left == [key for key in tensors if key not in taken]


def test_exclude_wins_over_include():
    recipe = read(include=["proj"], exclude=["q_proj"])
    assert recipe.wants("a.up_proj", 0, "up_proj") and not recipe.wants("a.q_proj", 0, "q_proj")


def test_keys_of_the_peer_that_change_nothing_are_accepted_and_said_to():
    recipe = read(
        parameters={"weight": 1, "int8_mask": True, "residual_weight": 0.1},
        architecture="LlamaForCausalLM",
        tokenizer_config={"padding_side": "left"},
    )
    assert recipe.notes == (
        "architecture changes nothing: names, shapes and configs tell what there is",
        "tokenizer_config changes nothing: the tokenizer is copied as it is",
        "int8_mask changes nothing: masks take no memory to speak of",
        "residual_weight changes nothing: it has no effect",
    )


def test_setting_that_a_method_ignores_is_said_to_be():
    (recipe,) = load(
        {
            "merge_method": "model_stock",
            "base_model": "base",
            "models": [{"model": "a", "parameters": {"weight": 0.5}}, {"model": "b"}],
        }
    )
    assert recipe.notes == ("weight changes nothing: model_stock does not use it",)


@pytest.mark.parametrize("place", ["recipe", "model"])
def test_parameters_with_nothing_below_are_none(place):
    text = "merge_method: linear\nparameters:\nmodels:\n  - model: a\n    parameters: {weight: 1}\n"
    if place == "model":
        text = "merge_method: passthrough\nmodels:\n  - model: a\n    parameters:\n"
    assert load(yaml.safe_load(text))


def test_recipes_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        read().entry.seed = 3
    with pytest.raises(AttributeError):
        read().notes = ()


def test_whole_numbers_are_no_texts_and_texts_no_numbers():
    for keys in ({"seed": "3"}, {"name": 3}, {"chat_template": True}, {"dtype": 32}):
        with pytest.raises(EditError):
            read(**keys)


def test_documents_are_read_in_order_and_may_use_any_earlier_one():
    both = LINEAR | {"name": "both"}
    last = LINEAR | {"models": [{"model": "both"}, {"model": "c"}]}
    more = last | {"name": "more"}
    end = LINEAR | {"models": [{"model": "both"}, {"model": "more"}]}
    assert [one.name for one in load([both, last])] == ["both", None]
    assert [one.name for one in load([both, more, end])] == ["both", "more", None]


# The JSON Schema that editors check by.


@pytest.fixture(scope="module")
def schema():
    return json_schema()


def test_schema_is_json_and_names_every_key_and_method(schema):
    assert json.loads(json.dumps(schema)) == schema
    assert set(MergeRecipe.model_fields) | {"method"} == set(schema["properties"])
    found = [one["const"] for one in schema["properties"]["merge_method"]["oneOf"]]
    assert found == list(methods())
    assert all(one["description"] for one in schema["properties"]["method"]["oneOf"])
    assert {"required": ["method"]} in schema["anyOf"]


def test_schema_has_every_setting_wherever_parameters_stand(schema):
    wanted = {setting for one in methods().values() for setting in one.settings}
    places = [schema, *schema["$defs"].values()]
    found = [p["properties"]["parameters"] for p in places if "parameters" in p["properties"]]
    assert len(found) >= 5 and all(set(one["properties"]) == wanted for one in found)


def test_schema_forbids_keys_that_are_not_there(schema):
    assert schema["additionalProperties"] is False
    for name in ("ModelEntry", "SourceEntry", "SliceEntry", "ModuleEntry", "Selector"):
        assert schema["$defs"][name]["additionalProperties"] is False, name


@pytest.mark.parametrize(("value", "good"), [(0.5, True), ([0, 1], True), ("x", False)])
def test_schema_tells_numbers_gradients_and_filters(schema, value, good):
    forms = schema["properties"]["parameters"]["properties"]["weight"]["anyOf"]
    assert any(_fits(value, form) for form in forms) is good
    filters = [{"filter": "mlp", "value": value}]
    assert any(_fits(filters, form) for form in forms) is good


def _fits(value, form):
    """As much of JSON Schema as settings need."""
    kinds = {"number": (int, float), "array": list, "object": dict, "boolean": bool, "string": str}
    if "anyOf" in form:
        return any(_fits(value, one) for one in form["anyOf"])
    if "enum" in form:
        return value in form["enum"]
    if form.get("type") and not isinstance(value, kinds[form["type"]]):
        return False
    if isinstance(value, list):
        return all(_fits(one, form.get("items", {})) for one in value)
    if isinstance(value, dict):
        return all(_fits(one, form["properties"][key]) for key, one in value.items())
    return True


def test_stages_have_a_schema_of_their_own_form(schema):
    assert stages("preprocess") and stages("postprocess")
    for key in ("preprocess", "postprocess"):
        assert {"type": "string"} in schema["properties"][key]["items"]["anyOf"]


def test_selector_of_several_conditions_needs_all():
    selector = Selector(name="proj", layers=(0, 2), kinds=["q_proj"])
    assert selector.matches("x.q_proj", 1, "q_proj")
    assert not selector.matches("x.q_proj", 2, "q_proj")
    assert not selector.matches("x.q_proj", None, "q_proj")
    assert not selector.matches("x.up_proj", 1, "up_proj")
