"""`rledit schema`: the JSON Schema of recipes, and nothing else."""

import json

from cli.merging import rledit, usage

import mergekit_rl.methods  # noqa: F401
from mergekit_rl.recipe.jsonschema import json_schema


def test_it_prints_the_schema_as_json():
    found = rledit("schema")
    assert json.loads(found.stdout) == json_schema()
    assert found.stderr == ""


def test_wrong_use_is_exit_code_2():
    assert usage("schema", "x").startswith("Got unexpected extra argument")
