"""What a recipe may not say: the whole text of each error, with file, line, key and suggestion."""

import pytest

import mergekit_rl.methods  # noqa: F401
from mergekit_rl import EditError
from mergekit_rl.recipe.load import load
from mergekit_rl.registry import methods

TIES = """\
merge_method: ties
base_model: base
models:
  - model: a
    parameters: {weight: 1}
  - model: b
    parameters: {weight: 1}
"""  # whatever follows begins in line 8
LINEAR = "merge_method: linear\nparameters: {weight: 1}\n"  # 3
SLICE = LINEAR + "slices:\n  - sources:\n"  # 5


@pytest.fixture
def message(tmp_path, monkeypatch):
    """message(text): the error of loading a recipe, which must be one line."""
    monkeypatch.chdir(tmp_path)

    def refused(text):
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises(EditError) as caught:
            load(tmp_path / "r.yaml")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


KEYS = {
    "of the recipe": (
        TIES + "parametres: {}",
        "r.yaml:8: unknown key 'parametres'; did you mean 'parameters'?",
    ),
    "like none": (
        TIES + "colour: red",
        "r.yaml:8: unknown key 'colour'; known are name, merge_method, models, slices, modules, "
        "base_model, parameters, dtype, out_dtype, tokenizer_source, tokenizer, chat_template, "
        "include, exclude, preprocess, postprocess, rest, router, seed, embeddings",
    ),
    "of a model": (
        LINEAR + "models:\n  - model: a\n    parameter: {weight: 1}",
        "r.yaml:5: unknown key 'parameter' in models[0]; did you mean 'parameters'?",
    ),
    "of a source": (
        SLICE + "      - {model: a, layer_range: [0, 2], paramters: {}}",
        "r.yaml:5: unknown key 'paramters' in slices[0].sources[0]; did you mean 'parameters'?",
    ),
    "of a slice": (
        SLICE + "      - {model: a, layer_range: [0, 2]}\n    basemodel: b",
        "r.yaml:6: unknown key 'basemodel' in slices[0]; did you mean 'base_model'?",
    ),
    "of a module": (
        LINEAR + "modules:\n  text_model:\n    model: [{model: a}]",
        "r.yaml:5: unknown key 'model' in modules.text_model; did you mean 'models'?",
    ),
    "of a selector": (
        TIES + "include:\n  - kinds: [q_proj]\n    layer: [0, 2]",
        "r.yaml:10: unknown key 'layer' in include[0]; did you mean 'layers'?",
    ),
    "of a filter": (
        TIES + "parameters:\n  weight:\n    - filtr: mlp\n      value: 1",
        "r.yaml:10: unknown key 'filtr' in parameters.weight[0]; did you mean 'filter'?",
    ),
    "of a reference": (
        TIES.replace("base_model: base", "base_model: {path: a, branch: b}"),
        "r.yaml:2: base_model: unknown key 'branch', expected path and revision",
    ),
}


@pytest.mark.parametrize("case", KEYS)
def test_unknown_key(case, message):
    text, words = KEYS[case]
    assert message(text) == words


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("merge_metod: linear\nmodels: [{model: a}]", 1, "merge_method"),
        (SLICE + "      - {model: a, layer_rnge: [0, 2]}", 5, "layer_range"),
        (LINEAR + "slices:\n  - source: []", 4, "sources"),
        (LINEAR + "models:\n  - modle: a", 4, "model"),
    ],
)
def test_unknown_key_in_place_of_one_that_must_be_there(text, line, key, message):
    found = message(text)
    assert found.startswith(f"r.yaml:{line}: unknown key ")
    assert found.endswith(f"did you mean '{key}'?")


SETTINGS = {
    "of the recipe": (
        TIES + "parameters:\n  densty: 0.5",
        "r.yaml:9: parameters: ties has no setting 'densty'; did you mean 'density'?",
    ),
    "of a model": (
        TIES + "  - model: c\n    parameters:\n      weight: 1\n      dnsity: 1",
        "r.yaml:11: models[2].parameters: ties has no setting 'dnsity'; did you mean 'density'?",
    ),
    "of a slice": (
        SLICE + "      - {model: a, layer_range: [0, 2]}\n    parameters:\n      normalise: true",
        "r.yaml:7: slices[0].parameters: linear has no setting 'normalise'; did you mean "
        "'normalize'?",
    ),
    "of a source": (
        SLICE + "      - {model: a, layer_range: [0, 2], parameters: {wieght: 1}}",
        "r.yaml:5: slices[0].sources[0].parameters: linear has no setting 'wieght'; did you mean "
        "'weight'?",
    ),
    "of a module": (
        LINEAR + "modules:\n  text_model:\n    models: [{model: a}]\n    parameters: {weigh: 1}",
        "r.yaml:6: modules.text_model.parameters: linear has no setting 'weigh'; did you mean "
        "'weight'?",
    ),
    "like none": (
        TIES + "parameters: {zzz: 1}",
        "r.yaml:8: parameters: ties has no setting 'zzz'; it has weight, density, normalize, "
        "lambda, rescale, vote",
    ),
    "of a stage": (
        TIES + "preprocess:\n  - trim: {densty: 1}",
        "r.yaml:9: preprocess[0]: trim has no setting 'densty'; did you mean 'density'?",
    ),
    "of a model's stage": (
        TIES + "  - model: c\n    parameters: {weight: 1}\n    preprocess: [{trim: {densty: 1}}]",
        "r.yaml:10: models[2].preprocess[0]: trim has no setting 'densty'; did you mean 'density'?",
    ),
    "of a stage after": (
        TIES + "postprocess: [{scale: {factr: 2}}]",
        "r.yaml:8: postprocess[0]: scale has no setting 'factr'; did you mean 'factor'?",
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_unknown_setting(case, message):
    text, words = SETTINGS[case]
    assert message(text) == words


METHODS = {
    "near one": (
        "models: [{model: a}]\nmerge_method: tiess",
        "r.yaml:2: there is no merge method 'tiess'; did you mean 'ties'?",
    ),
    "no text": (
        "merge_method: 3\nmodels: [{model: a}]",
        "r.yaml:1: merge_method is 3, expected the name of a merge method (`rledit methods` lists "
        "them)",
    ),
    "absent": ("models: [{model: a}]", "r.yaml:1: the recipe has no merge_method"),
    "twice": (
        "merge_method: ties\nmethod: ties",
        "r.yaml:2: method and merge_method say the same: give one",
    ),
    "a stage near one": (
        TIES + "preprocess: [sarr]",
        "r.yaml:8: there is no preprocess stage 'sarr'; did you mean 'sar'?",
    ),
    "a stage of after before": (
        TIES + "preprocess: [lines]",
        "r.yaml:8: there is no preprocess stage 'lines'; there are dare, norm_match, sar, trim",
    ),
}


@pytest.mark.parametrize("case", METHODS)
def test_unknown_method(case, message):
    text, words = METHODS[case]
    assert message(text) == words


def test_unknown_method_like_none_lists_all(message):
    found = message("merge_method: qqqqqq\nmodels: [{model: a}]")
    assert found == f"r.yaml:1: there is no merge method 'qqqqqq'; there are {', '.join(methods())}"


def test_unknown_method_under_its_other_key_has_that_keys_line(message):
    assert message("models: [{model: a}]\nmethod: tiess") == (
        "r.yaml:2: there is no merge method 'tiess'; did you mean 'ties'?"
    )


GRADIENT = "or several of them, a gradient"
CALL = "expected a stage's name, or its name and settings as {name: {setting: …}}"
RANK = (
    "expected a share of each matrix's rank above 0 and up to 1.0 (0.01), a number from 1 (8), "
    "energy:SHARE (energy:0.9) or full"
)
VALUES = {
    "density: 1.5": "density is 1.5, expected a number between 0 and 1",
    "density: [0.5, 1.5]": "density is 1.5, expected a number between 0 and 1",
    "density: [{filter: mlp, value: 2}]": (
        "density[0].value is 2.0, expected a number between 0 and 1"
    ),
    "density: [{filter: mlp, value: [0, 2]}]": (
        "density[0].value is 2.0, expected a number between 0 and 1"
    ),
    "density: [1, {filter: mlp, value: 2}]": (
        "density is {'filter': 'mlp', 'value': 2}, expected a number between 0 and 1"
    ),
    "weight: heavy": "weight is 'heavy', expected a number",
    "weight: true": "weight is True, expected a number",
    "weight: null": "weight is None, expected a number",
    "weight: {a: 1}": "weight is {'a': 1}, expected a number",
    "weight: []": f"weight is a list, expected a number {GRADIENT}",
    "weight: [[1]]": "weight is [1], expected a number",
    "weight: [{value: null}]": "weight[0].value is None, expected a number",
    "weight: [{filter: mlp}]": "weight[0] is no filter: it needs a value",
    "weight: [{value: 1}, 3]": "weight[1] is no filter: it needs a value",
    "weight: [{filter: 3, value: 1}]": "weight[0].filter is no text",
    "weight: [{value: [{value: 1}]}]": "weight[0].value is a list of filters again",
    "normalize: 1": "normalize is 1, expected true or false",
    "normalize: [true, false]": "normalize is a list, expected true or false",
    "vote: weigted": (
        "vote is 'weigted', expected one of weighted, unweighted; did you mean 'weighted'?"
    ),
}


@pytest.mark.parametrize("text", VALUES)
def test_value_of_a_setting(text, message):
    assert message(f"{TIES}parameters:\n  {text}") == f"r.yaml:9: parameters.{VALUES[text]}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("preprocess: [trim]", "preprocess[0]: trim needs density: a number between 0 and 1"),
        (
            "preprocess: [{trim: {density: 2}}]",
            "preprocess[0]: density is 2.0, expected a number between 0 and 1",
        ),
        ("preprocess: [{sar: {rank: lots}}]", f"preprocess[0]: rank is 'lots', {RANK}"),
        ("preprocess: trim", "preprocess is 'trim', expected a valid list"),
        ("preprocess: [3]", f"preprocess[0] is 3, {CALL}"),
        ("preprocess: [{sar: 3}]", f"preprocess[0] is {{'sar': 3}}, {CALL}"),
        (
            "preprocess: [{sar: {}, trim: {}}]",
            f"preprocess[0] is {{'sar': {{}}, 'trim': {{}}}}, {CALL}",
        ),
        ("postprocess: [scale]", "postprocess[0]: scale needs factor: a number"),
        ("seed: -1", "seed is -1, expected greater than or equal to 0"),
        ("seed: 1.5", "seed is 1.5, expected a valid integer"),
        ("seed: true", "seed is True, expected a valid integer"),
        ("embeddings: tied", "embeddings is 'tied', expected 'tie' or 'untie'"),
        (
            "dtype: float8",
            "dtype is 'float8', expected 'float32', 'fp32', 'float16', 'fp16', 'bfloat16', 'bf16', "
            "'float64' or 'fp64'",
        ),
        ("include: '('",
         "include: '(' is no regular expression: missing ), unterminated subpattern at position 0"),
        ("include: [{}]", "include is [{}], expected a pattern, layers or kinds"),
        (
            "include: [{layers: [2, 1]}]",
            "include[0].layers is [2, 1], expected [first, end): two layer numbers, the end not "
            "included",
        ),
        ("exclude: [{kinds: q_proj}]", "exclude[0].kinds is 'q_proj', expected a valid list"),
        ("chat_template: 3", "chat_template is 3, expected a valid string"),
        ("rest: 3", "rest is 3, expected base, mean or a model"),
        ("name: ''", "name: String should have at least 1 character"),
    ],
)  # fmt: skip
def test_value_of_a_key(text, words, message):
    assert message(TIES + text) == f"r.yaml:8: {words}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SLICE + "      - {model: a, layer_range: [2, 2]}",
         "5: slices[0].sources[0].layer_range is [2, 2], expected [first, end): two layer "
         "numbers, the end not included"),
        (SLICE + "      - {model: a, layer_range: [-1, 2]}",
         "5: slices[0].sources[0].layer_range is [-1, 2], expected [first, end): two layer "
         "numbers, the end not included"),
        (SLICE + "      - {model: a}", "5: slices[0].sources[0] has no layer_range"),
        (SLICE + "      - {layer_range: [0, 2]}", "5: slices[0].sources[0] has no model"),
        (SLICE + "      - {model: 3, layer_range: [0, 2]}", "5: slices[0].sources[0].model is 3, "
         "expected a folder, a Hub id, or {model: {path: …}}"),
        (SLICE + "      - {model: a, layer_range: [0, 2]}\n      - {model: b, layer_range: [0, 3]}",
         "4: slices[0]: its sources have 2, 3 layers: all must have as many"),
        (LINEAR + "slices:\n  - parameters: {}", "4: slices[0] has no sources"),
        (LINEAR + "models:\n  - parameters: {}", "4: models[0] has no model"),
        (LINEAR + "models:\n  - {model: a, parameters: 3}",
         "4: models[0].parameters is 3, expected a valid dictionary"),
        (LINEAR + "models: {a: 1}", "3: models is {'a': 1}, expected a valid list"),
        (LINEAR, "1: expected exactly one of models, slices and modules; it has none of them"),
        (LINEAR + "models: [{model: a}]\nslices: [{sources: [{model: a, layer_range: [0, 1]}]}]",
         "1: expected exactly one of models, slices and modules; it has models and slices"),
        (LINEAR + "modules:\n  text_model: {}",
         "4: modules.text_model is {}, expected either models or slices"),
        (LINEAR + "models: [{model: ' '}]",
         "3: models[0].model is ' ', expected a folder or a Hub id"),
        (LINEAR + "models: [{model: a+}]",
         "3: models[0].model is 'a+', expected a model on both sides of +"),
    ],
)  # fmt: skip
def test_form_of_the_models(text, words, message):
    assert message(text) == f"r.yaml:{words}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("merge_method: ties\nparameters: {weight: 1}\nmodels: [{model: a}]",
         "3: ties needs a base_model, and there is none"),
        ("merge_method: ties\nparameters: {weight: 1}\nbase_model: a\nmodels: [{model: a}]",
         "4: ties merges 1 or more models beside its base_model; there are none"),
        ("merge_method: slerp\nbase_model: a\nmodels: [{model: a}, {model: b}, {model: c}]",
         "3: slerp merges 1 model beside its base_model; there are b, c"),
        ("merge_method: model_stock\nbase_model: a\nmodels: [{model: a}, {model: b}]",
         "3: model_stock merges 2 or more models beside its base_model; there are b"),
        ("merge_method: passthrough\nmodels: [{model: a}, {model: b}]",
         "2: passthrough merges 1 model; there are a, b"),
        ("merge_method: nuslerp\nmodels: [{model: a}]", "2: nuslerp merges 2 models; there are a"),
        (LINEAR + "models: [{model: a}, {model: a}]", "3: a is listed twice"),
        (LINEAR + "models: [{model: a}, {model: b}]\npreprocess: [norm_match]",
         "4: preprocess works on what models learnt: it needs a base_model"),
        (LINEAR + "models: [{model: a}, {model: b}]\npostprocess: [{scale: {factor: 2}}]",
         "4: postprocess works on what models learnt: it needs a base_model"),
        (LINEAR + "modules:\n  a: {models: [{model: a}]}\n  b: {models: [{model: a}, {model: a}]}",
         "5: a is listed twice"),
        (TIES.replace("weight: 1", "weight: 1, lambda: 2", 1),
         "5: models[0].parameters.lambda is a setting of the whole merge, not of one model: write "
         "it in the recipe's own parameters"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_the_method(text, words, message):
    assert message(text) == f"r.yaml:{words}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TIES + "---\n" + TIES,
         "1: has no name: every document but the last needs one, for others to use it by"),
        ("name: x\n" + TIES + "---\n" + TIES, "1: 'x' is used by no later document"),
        ("name: x\n" + TIES + "---\nname: x\n" + TIES,
         "10: name is 'x', as an earlier document's is"),
        (TIES + "name: x\n---\n" + TIES.replace("model: a", "model: x") + "colour: red",
         "17: unknown key 'colour'; known are "),
        ("name: x\n" + TIES.replace("model: a", "model: y") + "---\nname: y\n"
         + TIES.replace("model: a", "model: x") + "---\n" + TIES.replace("model: a", "model: z"),
         "10: 'y' is used by no later document"),
    ],
)  # fmt: skip
def test_documents_that_do_not_fit_together(text, words, message):
    assert message(text).startswith(f"r.yaml:{words}")


def test_what_comes_from_python_names_the_key_without_a_line():
    with pytest.raises(EditError) as caught:
        load({"merge_method": "linear", "models": [{"model": "a"}], "colour": "red"})
    assert str(caught.value).startswith("recipe: unknown key 'colour'; known are name, ")


def test_long_values_are_cut():
    with pytest.raises(EditError) as caught:
        load({"merge_method": "linear", "models": "a" * 500})
    assert str(caught.value) == f"recipe: models is '{'a' * 56}…, expected a valid list"


# Kinds of faults that are easily let through.


@pytest.mark.parametrize("value", ["''", "a+", "' '"])
def test_rest_that_is_no_reference(value, message):
    assert message(f"{TIES}rest: {value}").startswith("r.yaml:8: rest is ")


def test_rest_of_another_form_names_the_key_alone(message):
    assert message(f"{TIES}rest: {{modle: a}}").startswith("r.yaml:8: rest is {'modle': 'a'}")


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 6000 + ")" * 6000])
def test_pattern_that_re_cannot_compile(pattern, message):
    assert "is no regular expression" in message(f"{TIES}include: ['{pattern}']")


@pytest.mark.parametrize("key", ["models", "slices"])
def test_empty_list_is_told_in_our_words(key, message):
    assert message(f"{LINEAR}{key}: []").startswith(f"r.yaml:3: {key} is [], expected ")
