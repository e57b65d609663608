"""LoRA folders over their base, with PEFT's own merge as the reference."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora.config import VeloraConfig
from safetensors.torch import load_file, save_file
from tiny_models import load, logits, train

from mergekit_rl import Checkpoint

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PACKED = ["experts.gate_up_proj", "experts.down_proj"]


def assert_equals_the_merge(base: Path, adapter: Path, model: Any, merged: Path) -> set[str]:
    """Compares every tensor with `merge_and_unload` in fp32; the names of those that moved."""
    model.merge_and_unload().save_pretrained(merged)
    expected, before = (
        load_file(merged / "model.safetensors"),
        load_file(base / "model.safetensors"),
    )
    if not set(expected) & set(before):
        expected = {name.removeprefix("transformer."): t for name, t in expected.items()}
    found = Checkpoint.open(adapter, base=Checkpoint.open(base))
    assert set(found.tensors) == set(expected)
    moved = set()
    for name, tensor in expected.items():
        ours = found.read(name)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, tensor, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(torch.cat(list(found.pieces(name, 7))), ours.reshape(-1))
        assert found.touches(name) == (found.delta(name) is not None)
        if found.touches(name):
            assert not torch.equal(ours, before[name])
            torch.testing.assert_close(
                found.delta(name)(before[name]).float(), ours - before[name], atol=1e-6, rtol=1e-5
            )
            moved.add(name)
        else:
            assert torch.equal(ours, before[name])
    return moved


PLAIN = {
    "llama": {"target_modules": LLAMA},
    "patterns": {
        "target_modules": LLAMA,
        "rank_pattern": {"q_proj": 4, r"layers\.1\.mlp\.up_proj": 3},
        "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 7, "q_proj": 3, r"mlp\..*": 2},
    },
    "rslora": {"target_modules": LLAMA, "use_rslora": True, "r": 3, "alpha_pattern": {"k_proj": 1}},
    "embedding and head": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "modules_to_save": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "norm"]},
    "trainable tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 3]},
    "velora": {"target_modules": ["q_proj"], "velora_config": VeloraConfig(num_groups=4)},
    "some layers": {"target_modules": ["o_proj"], "layers_to_transform": [1]},
    "orthogonal": {"target_modules": ["o_proj"], "init_lora_weights": "orthogonal"},
}


@pytest.mark.parametrize("case", PLAIN)
def test_deltas_equal_the_merge_of_peft(case, tiny, tmp_path):
    base = tiny("llama")
    model = train(base, tmp_path / "adapter", **PLAIN[case])
    moved = assert_equals_the_merge(base, tmp_path / "adapter", model, tmp_path / "merged")
    kinds = {name.split(".")[-2] for name in moved}
    expected = {*PLAIN[case]["target_modules"], *PLAIN[case].get("modules_to_save", [])}
    if "trainable_token_indices" in PLAIN[case]:
        expected.add("embed_tokens")
    if "norm" in expected:  # PEFT matches the ends of names
        expected |= {"input_layernorm", "post_attention_layernorm"}
    assert kinds == expected


FAMILIES = {
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    "gpt2_bare": {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "gpt_neox": {"target_modules": ["query_key_value", "dense", "embed_in"]},
    "phi3": {"target_modules": ["qkv_proj", "gate_up_proj"]},
    "gemma3_vision": {"target_modules": ["q_proj", "fc1", "down_proj"]},
    "mixtral": {
        "target_modules": ["q_proj"],
        "target_parameters": [*PACKED, "gate.weight"],
        "rank_pattern": {"experts.gate_up_proj": 3},
        "alpha_pattern": {"experts.gate_up_proj": 4},
    },
    "qwen3_moe": {"target_modules": ["q_proj"], "target_parameters": PACKED[:1]},
    "gpt_oss": {"target_modules": ["q_proj"], "target_parameters": PACKED},
    "granite_moe": {"target_modules": ["q_proj"], "target_parameters": PACKED, "use_rslora": True},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_deltas_equal_the_merge_of_peft_across_families(family, tiny, tmp_path):
    base = tiny(family)
    model = train(base, tmp_path / "adapter", **FAMILIES[family])
    assert assert_equals_the_merge(base, tmp_path / "adapter", model, tmp_path / "merged")


@pytest.mark.parametrize("tokens", [[5, 3], {"embed_tokens": [5, 3]}])
def test_trainable_tokens_of_a_tied_model_move_both_sides(tokens, tiny, tmp_path):
    base = tiny("llama_tied")
    model = train(base, tmp_path / "a", target_modules=["q_proj"], trainable_token_indices=tokens)
    moved = assert_equals_the_merge(base, tmp_path / "a", model, tmp_path / "merged")
    assert "model.embed_tokens.weight" in moved


def test_a_tied_pair_adapted_alike_is_one_delta(tiny, tmp_path):
    base = tiny("llama_tied")
    options = {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}
    model = train(base, tmp_path / "a", **options)
    found = Checkpoint.open(tmp_path / "a", base=Checkpoint.open(base))
    with torch.no_grad():
        edited = load(base)
        edited.model.embed_tokens.weight.copy_(found.read("model.embed_tokens.weight"))
    torch.testing.assert_close(logits(edited), logits(model), atol=1e-5, rtol=1e-5)


def test_one_matrix_of_a_stack_is_read_alone(tiny, tmp_path):
    base = Checkpoint.open(tiny("gpt_oss"))
    train(tiny("gpt_oss"), tmp_path / "a", target_modules=[], target_parameters=PACKED)
    found = Checkpoint.open(tmp_path / "a", base=base)
    name = "model.layers.1.mlp.experts.down_proj"
    assert torch.equal(found.read(name, 2), found.read(name)[2])
    delta = found.delta(name, 2)(base.read(name, 2))
    torch.testing.assert_close(delta.float(), found.read(name)[2] - base.read(name, 2))


def test_the_base_of_the_config_is_opened_when_none_is_given(tiny, tmp_path):
    train(tiny("llama"), tmp_path / "a", target_modules=["q_proj"])
    found = Checkpoint.open(tmp_path / "a")
    assert found.base.folder == tiny("llama")
    assert found.base_named == str(tiny("llama"))


def test_an_adapter_of_no_token_rows_changes_nothing(tiny, tmp_path):
    train(tiny("llama"), tmp_path / "a", target_modules=["q_proj"], trainable_token_indices=[5])
    file, config = tmp_path / "a/adapter_model.safetensors", tmp_path / "a/adapter_config.json"
    rows = {k: t[:0] if "trainable_tokens" in k else t for k, t in load_file(file).items()}
    save_file(rows, file)
    content = json.loads(config.read_text()) | {"trainable_token_indices": []}
    config.write_text(json.dumps(content))
    base = Checkpoint.open(tiny("llama"))
    name = "model.embed_tokens.weight"
    assert torch.equal(Checkpoint.open(tmp_path / "a", base=base).read(name), base.read(name))
