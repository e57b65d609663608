"""The recipes of ../shared/golden/merge, which mergekit 0.1.5 ran too: the same tensors."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from mergekit_rl import merge

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "merge"
CASES = sorted(path.parent.name for path in GOLDEN.glob("cases/*/config.yml"))
MANTISSA = {torch.bfloat16: 7, torch.float16: 10}  # bits after the point

pytestmark = pytest.mark.skipif(not CASES, reason="../shared/golden is absent")


def models_of(config):
    """Every model folder that a recipe names."""
    if isinstance(config, dict):
        own = [config[key] for key in ("model", "base_model") if isinstance(config.get(key), str)]
        return own + [name for value in config.values() for name in models_of(value)]
    if isinstance(config, list):
        return [name for value in config for name in models_of(value)]
    return []


def rows_by_token(tensor, tokenizer):
    """Token rows in the order of the tokens' texts."""
    vocabulary = dict(tokenizer["model"]["vocab"])
    vocabulary |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return tensor[[vocabulary[token] for token in sorted(vocabulary)]]


def last_place(size, bits):
    """The unit in the last place of numbers with so many bits after the point."""
    return torch.exp2(size.clamp_min(1e-30).log2().floor() - bits)


def agreeing(name, found, expected, inputs):
    """How many entries agree within the tolerance of the dtype."""
    apart = (found.double() - expected.double()).abs()
    bits = MANTISSA.get(expected.dtype)
    if bits is None:
        return int((apart <= 1e-6).sum())
    size = expected.double().abs()
    for one in inputs:
        size = size.maximum(one[name].double().abs())
    return int((apart <= 2 * last_place(size, bits)).sum())


@pytest.mark.parametrize("case", CASES)
def test_recipe_gives_the_tensors_the_peer_gives(case, tmp_path, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    folder = GOLDEN / "cases" / case
    config = yaml.safe_load((folder / "config.yml").read_text())
    merge(folder / "config.yml", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    expected = load_file(folder / "expected.safetensors")
    assert set(found) == set(expected)
    tokenizer = folder / "expected_tokenizer.json"
    ours = tmp_path / "out" / "tokenizer.json"
    inputs = [load_file(Path(name) / "model.safetensors") for name in models_of(config)]
    agree = total = 0
    for name, theirs in expected.items():
        tensor = found[name]
        assert tensor.shape == theirs.shape, name
        assert tensor.dtype == theirs.dtype or case == "arcee_fusion", name
        if tokenizer.exists() and ("embed" in name or "lm_head" in name):
            tensor = rows_by_token(tensor, json.loads(ours.read_text()))
            theirs = rows_by_token(theirs, json.loads(tokenizer.read_text()))
        agree += agreeing(name, tensor, theirs, inputs)
        total += theirs.numel()
    low = any(tensor.dtype in MANTISSA for tensor in expected.values())
    needed = 0.99 if low else 0.995 if case == "arcee_fusion" else 0.999
    assert agree >= needed * total, f"{agree / total:.5f}"
    if (folder / "expected_config.json").exists():
        written = json.loads((tmp_path / "out" / "config.json").read_text())
        assert written == json.loads((folder / "expected_config.json").read_text())
    if tokenizer.exists():
        tokens = [set(known(json.loads(path.read_text()))) for path in (tokenizer, ours)]
        assert tokens[0] == tokens[1]


def known(tokenizer):
    """The texts of all tokens."""
    return [*tokenizer["model"]["vocab"], *(t["content"] for t in tokenizer["added_tokens"])]
