"""`rledit recipes`: those that come along, to be copied."""

import pytest
import yaml
from cli.merging import error, rledit, usage

import mergekit_rl.methods  # noqa: F401
from mergekit_rl.recipe.document import parse_text
from mergekit_rl.shipped import shipped_recipes

RECIPES = shipped_recipes("merge")


def test_every_recipe_has_a_line_that_says_what_it_is_for():
    lines = rledit("recipes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(RECIPES)
    assert all(len(line.split()) > 3 and "#" not in line for line in lines)
    assert len(RECIPES) >= 12


@pytest.mark.parametrize("name", RECIPES)
def test_one_recipe_is_printed_byte_for_byte(name):
    found = rledit("recipes", name)
    assert found.stdout_bytes == RECIPES[name].read_bytes()
    assert parse_text(found.stdout, name)


def test_what_is_printed_is_commented_and_has_no_absolute_path():
    for name in RECIPES:
        text = rledit("recipes", name).stdout
        assert text.startswith("# ")
        for document in yaml.safe_load_all(text):
            assert not any(str(value).startswith("/") for value in document.values())


def test_unknown_recipe_is_met_with_the_nearest():
    assert error("recipes", "tie") == "there is no recipe 'tie'; did you mean 'ties'?"


def test_wrong_use_is_exit_code_2():
    assert usage("recipes", "ties", "sum").startswith("Got unexpected extra argument")
