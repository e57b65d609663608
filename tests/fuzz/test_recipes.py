"""Recipes that are broken in any way are planned or refused in one line that says where.

A slice of the long run, `python -m tests.fuzz --reader recipe --inputs 200000`; FUZZ_RECIPES sets
its length.
"""

import os

import pytest
import yaml
from fuzz import recipes
from fuzz.test_mutated import fuzz

from mergekit_rl import EditError
from mergekit_rl.shipped import shipped_recipes


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return recipes.models(tmp_path_factory.mktemp("models"))


def test_broken_recipes_are_planned_or_refused_in_a_line_that_names_the_place():
    count = os.environ.get("FUZZ_RECIPES", "700")
    assert "faults: 0" in fuzz("--reader", "recipe", "--inputs", count, "--workers", "1")


@pytest.mark.parametrize("path", shipped_recipes("merge").values(), ids=shipped_recipes("merge"))
def test_recipes_that_the_broken_ones_are_made_from_are_sound(path, places):
    recipes.plan(path, places)


LINEAR = "merge_method: linear\nbase_model: base\nmodels:\n  - model: math\n  - model: code\n"
SLICE = "  - sources:\n      - {model: math, layer_range: [0, 9]}\n"


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (f"merge_method: passthrough\nslices:\n{SLICE}", 4, "slices[0]"),
        (LINEAR, 1, "weight"),
        (f"{LINEAR}parameters:\n  weight: 0\n", 7, "weight"),
        (f"{LINEAR}parameters: {{weight: 1}}\ninclude: [nothing]\n", 7, "include"),
        (LINEAR.replace("math", "absent") + "parameters: {weight: 1}\n", 4, "model"),
        (
            "merge_method: linear\nparameters: {weight: 1}\nmodules:\n"
            "  audio_tower:\n    models: [{model: math}]\n",
            4,
            "modules.audio_tower",
        ),
    ],
)
def test_what_planning_finds_names_file_line_and_key(text, line, key, places, tmp_path):
    path = tmp_path / recipes.NAME
    path.write_text(text)
    assert yaml.safe_load(text)
    with pytest.raises(EditError) as caught:
        recipes.plan(path, places)
    assert str(caught.value).startswith(f"recipe.yaml:{line}: ") and key in str(caught.value)
