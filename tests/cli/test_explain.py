"""`rledit explain`: which models, rows and settings one tensor is made of."""

import json

import pytest
import yaml
from cli.merging import error, rledit, usage
from merge_trio import trio

RECIPE = {
    "merge_method": "ties",
    "base_model": "base",
    "models": [
        {"model": "a", "parameters": {"weight": 0.5}, "preprocess": [{"trim": {"density": 0.5}}]},
        {"model": "b", "parameters": {"weight": [{"filter": "mlp", "value": [0.2, 0.8]}]}},
    ],
    "parameters": {"weight": 1, "lambda": 2},
    "exclude": ["norm"],
}
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def here(tmp_path, monkeypatch):
    trio(tmp_path)
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(RECIPE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sources_settings_and_where_each_was_written(here):
    assert rledit("explain", "r.yaml", UP).stdout.splitlines() == [
        f"{UP}: F32 12×8",
        "  ties",
        f"  base      base: {UP}",
        f"  model 0   a: {UP}, after trim",
        f"  model 1   b: {UP}",
        "  weight = [0.5, 0.8]  ([models[0], models[1], filter mlp, gradient at 1])",
        "  density = [1, 1]  ([default, default])",
        "  normalize = true  (default)",
        "  lambda = 2  (parameters)",
        "  rescale = false  (default)",
        "  vote = weighted  (default)",
    ]
    text = rledit("explain", "r.yaml", "lm_head.weight").stdout
    assert "  weight = [0.5, 1]  ([models[0], parameters])" in text


def test_tensor_that_is_copied_says_why(here):
    assert rledit("explain", "r.yaml", "model.norm.weight").stdout == (
        "model.norm.weight: F32 8\n"
        "  copy: left out by include or exclude\n"
        "  model 0   base: model.norm.weight\n"
    )


def test_stacked_layer_says_which_layer_it_was(here):
    recipe = {
        "merge_method": "passthrough",
        "slices": [{"sources": [{"model": name, "layer_range": [0, 2]}]} for name in "ab"],
    }
    (here / "s.yaml").write_text(yaml.safe_dump(recipe))
    text = rledit("explain", "s.yaml", "model.layers.3.mlp.up_proj.weight").stdout
    assert f"  model 0   b: {UP}\n" in text


def test_json_is_the_same_as_plain_values(here):
    found = json.loads(rledit("explain", "r.yaml", UP, "--json").stdout)
    assert found["from"] == [["a", UP], ["b", UP]] and found["base"] == ["base", UP]
    assert found["settings"]["weight"] == [0.5, 0.8] and found["settings"]["lambda"] == 2.0
    assert found["origins"]["weight"] == ["models[0]", "models[1], filter mlp, gradient at 1"]
    assert found["origins"]["lambda"] == "parameters"
    assert (found["layer"], found["shape"], found["dtype"]) == (1, [12, 8], "F32")
    assert found["stages"] == [["trim"], []]


def test_nothing_is_written(here):
    before = sorted(here.rglob("*"))
    rledit("explain", "r.yaml", UP)
    assert sorted(here.rglob("*")) == before


def test_models_may_lie_elsewhere(here):
    (here / "a").rename(here / "elsewhere")
    assert "a is no folder here" in error("explain", "r.yaml", UP)
    assert f"a: {UP}" in rledit("explain", "r.yaml", UP, "--model", "a=elsewhere").stdout


def test_tensor_that_is_not_there_is_one_line_with_the_nearest(here):
    assert error("explain", "r.yaml", UP.replace("up_", "upp_")) == (
        f"the output has no tensor '{UP.replace('up_', 'upp_')}'; did you mean '{UP}'?"
    )
    assert error("explain", "r.yaml", "zzz") == (
        "the output has no tensor 'zzz'; it has lm_head.weight and others"
    )


def test_wrong_use_is_exit_code_2(here):
    assert usage("explain", "r.yaml") == "Missing argument 'TENSOR'."
    assert usage("explain", "r.yaml", UP, "--model", "x") == "--model is 'x', expected NAME=PATH"
