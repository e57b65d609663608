"""`rledit methods`: a line per method, or all of one."""

import json

import pytest
from cli.merging import error, rledit, usage

import mergekit_rl.methods  # noqa: F401
from mergekit_rl.registry import methods

METHODS = methods()


def test_every_method_has_a_line():
    lines = rledit("methods").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all(line.endswith(METHODS[line.split()[0]].summary) for line in lines)
    assert len({line.index(METHODS[line.split()[0]].summary) for line in lines}) == 1


@pytest.mark.parametrize("name", METHODS)
def test_one_method_is_told_with_every_setting_its_range_default_and_source(name):
    text = rledit("methods", name).stdout
    assert text.startswith(f"{name}: merges ")
    assert METHODS[name].summary in text and "Source: " in text
    for setting in METHODS[name].settings.values():
        line = next(one for one in text.splitlines() if one.startswith(f"  {setting.name}: "))
        assert setting.expected in line
        assert line.endswith("required") if setting.required else "; default " in line
        assert (", of each model" in line) is setting.per_model


def test_ties_as_it_is_printed():
    text = rledit("methods", "ties").stdout
    assert text.endswith(
        "Settings\n"
        "  weight: a number, of each model; required\n"
        "  density: a number between 0 and 1, of each model; default 1\n"
        "  normalize: true or false; default true\n"
        "  lambda: a number; default 1\n"
        "  rescale: true or false; default false\n"
        "  vote: one of weighted, unweighted; default weighted\n"
        "Accepted, without effect: int8_mask\n"
    )


def test_method_without_settings_says_so():
    assert "Settings: none" in rledit("methods", "arcee_fusion").stdout


def test_json_has_all_methods_or_one():
    found = json.loads(rledit("methods", "--json").stdout)
    assert [one["name"] for one in found] == list(METHODS)
    one = json.loads(rledit("methods", "ties", "--json").stdout)
    assert one in found and one["models"] == [1, None] and one["base"] == "required"
    assert one["settings"][1] == {
        "name": "density", "type": "float", "per_model": True, "required": False, "default": 1.0,
        "expected": "a number between 0 and 1",
    }  # fmt: skip
    for one in found:
        assert {setting["name"] for setting in one["settings"]} == set(
            METHODS[one["name"]].settings
        )


def test_unknown_method_is_one_line_with_the_nearest():
    assert error("methods", "tis") == "there is no merge method 'tis'; did you mean 'ties'?"


def test_wrong_use_is_exit_code_2():
    assert usage("methods", "ties", "sce").startswith("Got unexpected extra argument")


def test_settings_have_the_names_that_recipes_use_throughout():
    assert "lambda_" not in rledit("methods", "ties").stdout


def test_one_model_is_no_plural():
    assert rledit("methods", "slerp").stdout.startswith("slerp: merges 1 model and a base_model\n")
