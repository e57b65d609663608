"""Models of different vocabularies merged: which row each token gets."""

import json

import pytest
import torch
from merge_models import reconfigure
from safetensors.torch import load_file, save_file
from tiny_models import build
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from mergekit_rl import EditError, merge

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WORDS = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(5))]


def model(folder, words, rows=None, seed=0, **config):
    """A tiny Llama with a word-level tokenizer and fresh token rows."""
    build("llama", folder)
    rows = rows or len(words)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name in (EMBEDDING, HEAD):
        weights[name] = torch.randn(rows, weights[name].shape[1], generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    reconfigure(folder, vocab_size=rows, **config)
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A base and two experts: w3 is the base's alone, x the first's, y is in both experts."""
    folder = tmp_path_factory.mktemp("three")
    return {
        "base": model(folder / "base", [*WORDS, "b"], seed=1),
        "one": model(folder / "one", [*WORDS, "x", "y"], seed=2),
        "two": model(folder / "two", [*WORDS[:3], "y", *WORDS[3:]], seed=3),
    }


def merged(three, out, tokenizer, method="linear", base=True, weights=(1.0, 1.0), **more):
    """(embedding by token, whole embedding, config) of a merge of the experts."""
    entries = [
        {"model": str(three[name]), "parameters": {"weight": weight}}
        for name, weight in zip(("one", "two"), weights, strict=True)
    ]
    recipe = {"merge_method": method, "models": entries, "tokenizer": tokenizer, **more}
    if base:
        recipe["base_model"] = str(three["base"])
    merge(recipe, out)
    ids = ids_of(out)
    rows = load_file(out / "model.safetensors")[EMBEDDING]
    config = json.loads((out / "config.json").read_text())
    return {token: rows[i] for token, i in ids.items()}, rows, config


def ids_of(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()


def row(three, name, token):
    return load_file(three[name] / "model.safetensors")[EMBEDDING][ids_of(three[name])[token]]


def test_a_vocabulary_that_differs_is_an_error_that_names_the_tokens(three, tmp_path):
    recipe = {
        "merge_method": "linear",
        "models": [{"model": str(three[n]), "parameters": {"weight": 1}} for n in ("one", "two")],
    }
    with pytest.raises(EditError) as caught:
        merge(recipe, tmp_path / "out")
    assert str(caught.value) == (
        f"recipe: {three['two']} has another vocabulary than {three['one']}: 'x' only "
        "in the latter, 'y', 'w0', 'w1' and 3 more with other ids; add a tokenizer to the "
        "recipe, such as "
        "tokenizer: {source: union} or {source: base}"
    )
    assert not (tmp_path / "out").exists()


def test_layers_of_models_with_different_vocabularies_merge_without_their_token_rows(
    three, tmp_path
):
    recipe = {
        "merge_method": "linear",
        "models": [{"model": str(three[n]), "parameters": {"weight": 1}} for n in ("one", "two")],
        "exclude": ["embed_tokens", "lm_head"],
    }
    merge(recipe, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found[EMBEDDING], load_file(three["one"] / "model.safetensors")[EMBEDDING])


def test_union_keeps_the_bases_ids_and_appends_by_model_and_id(three, tmp_path):
    _, rows, config = merged(three, tmp_path / "out", {"source": "union"})
    ids = ids_of(tmp_path / "out")
    assert {t: i for t, i in ids.items() if i < 9} == ids_of(three["base"])
    assert (ids["x"], ids["y"]) == (9, 10)
    assert config["vocab_size"] == len(rows) == 11


def test_missing_tokens_get_the_bases_row_else_the_owners_mean(three, tmp_path):
    found, _, _ = merged(three, tmp_path / "out", {"source": "union"})
    # The base's token, that neither expert has: its row, twice.
    assert torch.allclose(found["b"], row(three, "base", "b"))
    # One owner: its row stands in for the other model's.
    assert torch.allclose(found["x"], row(three, "one", "x"))
    # Both experts have it, the base does not.
    mean = (row(three, "one", "y") + row(three, "two", "y")) / 2
    assert torch.allclose(found["y"], mean, atol=1e-6)
    # Everybody has it, under different ids.
    mean = (row(three, "one", "w4") + row(three, "two", "w4")) / 2
    assert torch.allclose(found["w4"], mean, atol=1e-6)


def test_deltas_of_a_token_are_over_the_row_that_stands_in_for_the_bases(three, tmp_path):
    found, _, _ = merged(
        three, tmp_path / "out", {"source": "union"}, "task_arithmetic", weights=(1.0, 0.0)
    )
    # x: only the first expert has it, so base and expert agree: nothing to add.
    assert torch.allclose(found["x"], row(three, "one", "x"), atol=1e-6)
    # y: the base stands at the owners' mean, the first expert's delta is added.
    assert torch.allclose(found["y"], row(three, "one", "y"), atol=1e-6)
    # b: no expert has it.
    assert torch.equal(found["b"], row(three, "base", "b"))


def test_base_keeps_the_bases_tokenizer_byte_for_byte(three, tmp_path):
    found, rows, config = merged(three, tmp_path / "out", {"source": "base"})
    before = (three["base"] / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == before
    assert config["vocab_size"] == len(rows) == 9
    assert "x" not in found


def test_a_models_vocabulary_renumbers_special_ids(three, tmp_path):
    expert = model(tmp_path / "expert", ["</s>", "<s>", "<unk>", *WORDS[3:]], seed=5)
    recipe = {
        "merge_method": "linear",
        "base_model": str(three["base"]),
        "models": [{"model": str(expert), "parameters": {"weight": 1}}],
        "tokenizer": {"source": str(expert)},
    }
    three_config = json.loads((three["base"] / "config.json").read_text())
    assert (three_config["bos_token_id"], three_config["eos_token_id"]) == (1, 2)
    merge(recipe, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 0)
    generation = tmp_path / "out" / "generation_config.json"
    assert json.loads(generation.read_text())["eos_token_id"] == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found[EMBEDDING], load_file(expert / "model.safetensors")[EMBEDDING])


def test_tokens_say_which_row_stands_in(three, tmp_path):
    one, two = str(three["one"]), str(three["two"])
    tokens = {
        "x": {"source": {"kind": "zero"}},
        "y": {"source": two, "force": True},
        "b": {"source": {"kind": "model_token", "model": one, "token": "w1"}},
        "w0": {"source": {"kind": "model_token", "model": two, "token_id": 1}, "force": True},
    }
    found, _, _ = merged(three, tmp_path / "out", {"source": "union", "tokens": tokens})
    # The second model lacks x and gets zeros; the first keeps its own.
    assert torch.allclose(found["x"], row(three, "one", "x") / 2)
    assert torch.allclose(found["y"], row(three, "two", "y"))
    assert torch.allclose(found["b"], row(three, "one", "w1"))
    assert torch.allclose(found["w0"], row(three, "two", "<s>"))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"w44": {"source": {"kind": "zero"}}}, "the vocabulary has no token 'w44'; did you mean"),
        (
            {"x": {"source": {"kind": "model_token", "model": "two", "token": "x"}}},
            "two has no token 'x'",
        ),
        (
            {"x": {"source": {"kind": "model_token", "model": "two", "token_id": 99}}},
            "tokenizer.tokens.x: token_id is 99, and two has 9 rows",
        ),
    ],
)
def test_tokens_that_are_not_there_are_refused(three, tmp_path, tokens, message):
    recipe = {
        "merge_method": "linear",
        "models": [{"model": n, "parameters": {"weight": 1}} for n in ("one", "two")],
        "tokenizer": {"source": "union", "tokens": tokens},
    }
    with pytest.raises(EditError) as caught:
        merge(recipe, tmp_path / "out", places={name: str(path) for name, path in three.items()})
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_padded_vocabularies_keep_their_rows(tmp_path):
    base = model(tmp_path / "base", WORDS, rows=16, seed=1)
    expert = model(tmp_path / "expert", [*WORDS, "x"], rows=16, seed=2)
    recipe = {
        "merge_method": "task_arithmetic",
        "base_model": str(base),
        "models": [{"model": str(expert), "parameters": {"weight": 1.0}}],
        "tokenizer": {"source": "union"},
    }
    merge(recipe, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")[EMBEDDING]
    assert torch.allclose(
        found, load_file(expert / "model.safetensors")[EMBEDDING], rtol=0, atol=1e-6
    )
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 16


def test_padding_rows_are_the_mean_row(three, tmp_path):
    _, rows, config = merged(
        three, tmp_path / "out", {"source": "union", "pad_to_multiple_of": 16}, base=False
    )
    assert config["vocab_size"] == len(rows) == 16
    mean = load_file(three["one"] / "model.safetensors")[EMBEDDING].mean(dim=0)
    assert torch.allclose(rows[-1], mean, atol=1e-6)


def test_the_united_model_and_tokenizer_load_and_find_the_new_tokens(three, tmp_path):
    merged(three, tmp_path / "out", {"source": "union"})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("w0 x y b").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["w0", "x", "y", "b"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert bool(loaded(torch.tensor([ids])).logits.isfinite().all())


def test_a_merge_with_a_tokenizer_is_made_again_from_its_own_provenance(three, tmp_path):
    tokens = {"y": {"source": str(three["two"]), "force": True}}
    merged(three, tmp_path / "out", {"source": "union", "tokens": tokens})
    places = {path.name: str(path) for path in three.values()}
    merge(tmp_path / "out" / "rledit.json", tmp_path / "again", places=places)
    for name in ("model.safetensors", "tokenizer.json", "config.json", "rledit.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_one_vocabulary_under_a_tokenizer_changes_nothing(three, tmp_path):
    recipe = {
        "merge_method": "linear",
        "models": [{"model": str(three["one"]), "parameters": {"weight": 1}}],
        "tokenizer": {"source": "union"},
    }
    merge(recipe, tmp_path / "out")
    for name in ("tokenizer.json", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (three["one"] / name).read_bytes()


def test_a_model_without_a_tokenizer_is_taken_to_have_the_donors(three, tmp_path):
    expert = model(tmp_path / "expert", [*WORDS, "b"], seed=7)
    (expert / "tokenizer.json").unlink()
    recipe = {
        "merge_method": "linear",
        "base_model": str(three["base"]),
        "models": [
            {"model": str(it), "parameters": {"weight": 1}} for it in (expert, three["one"])
        ],
        "tokenizer": {"source": "base"},
    }
    found = merge(recipe, tmp_path / "out")
    assert f"{expert} has no tokenizer: taken to have that of {three['base']}" in found.notes
