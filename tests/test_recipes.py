"""Every recipe that comes along runs as it stands, and what it makes loads."""

import shutil

import pytest
import torch
from click.testing import CliRunner
from merge_models import experts_of, reconfigure, rewrite
from tiny_models import build, logits, train
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from mergekit_rl import merge, sar
from mergekit_rl.shipped import shipped_recipes
from rledit.main import cli

RECIPES = sorted(shipped_recipes("merge"))


def deepen(folder):
    """Four layers of the two: what recipes with layer ranges need."""

    def twice(tensors):
        later = {
            name.replace(f".layers.{i}.", f".layers.{i + 2}."): tensor.clone()
            for name, tensor in tensors.items()
            for i in (0, 1)
            if f".layers.{i}." in name
        }
        return tensors | later

    rewrite(folder, twice)
    return reconfigure(folder, num_hidden_layers=4)


def give_tokenizer(folder, *new):
    """A word-level tokenizer of 64 tokens, some of them of its own."""
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(61 - len(new))), *new]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=["llama", "llama_tied"])
def places(request, tmp_path_factory):
    """{model as the recipes name it: its folder}."""
    folder = tmp_path_factory.mktemp(request.param)
    base = deepen(build(request.param, folder / "base"))
    found = {"base": base, **experts_of(base, folder, "math code", size=0.02)}
    train(base, folder / "lora", target_modules=["q_proj", "down_proj"])
    found["lora"] = folder / "lora"
    for name in ("math", "code"):
        sar(base, found[name], folder / f"{name}-core")
        found[f"{name}-core"] = folder / f"{name}-core"
    for name, new in (("base", ()), ("math", ("sum",)), ("code", ("def",))):
        give_tokenizer(found[name], *new)
    return {name: str(path) for name, path in found.items()}


@pytest.fixture
def one_tokenizer(places, tmp_path):
    """The same models where all have the base's tokenizer."""
    found = dict(places)
    for name in ("math", "code"):
        found[name] = str(shutil.copytree(places[name], tmp_path / name))
        give_tokenizer(tmp_path / name)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_runs_and_its_model_loads(name, places, one_tokenizer, tmp_path):
    models = places if name == "union_tokenizer" else one_tokenizer
    merged = merge(shipped_recipes("merge")[name], tmp_path / "out", places=models)
    assert merged.merged > 0
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert bool(logits(model).isfinite().all())


def test_command_lists_the_recipes_and_prints_one_as_it_is():
    listed = CliRunner().invoke(cli, ["recipes"]).output
    assert [line.split()[0] for line in listed.splitlines()] == RECIPES
    printed = CliRunner().invoke(cli, ["recipes", "ties"]).output
    assert printed == shipped_recipes("merge")["ties"].read_text()


def test_unknown_recipe_is_one_line():
    result = CliRunner().invoke(cli, ["recipes", "qqqq"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: there is no recipe 'qqqq'; there are cores, ")
