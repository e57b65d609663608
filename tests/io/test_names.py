"""Layers, kinds and targets from names alone, for any architecture."""

import doctest

import pytest

from mergekit_rl.io import names
from mergekit_rl.io.header import read_header
from mergekit_rl.io.names import is_projection, layer_index, match_names, module_kind


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(names).failed == 0
    assert doctest.testmod(names).attempted > 0


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.layers.11.self_attn.q_proj.weight", 11, "q_proj"),
        ("model.layers.3.mlp.experts.7.up_proj.weight", 3, "up_proj"),
        ("model.layers.3.block_sparse_moe.experts.0.w2.weight", 3, "w2"),
        ("model.layers.3.mlp.experts.gate_up_proj", 3, "gate_up_proj"),
        ("model.layers.3.mlp.experts.gate_up_proj_bias", 3, "gate_up_proj_bias"),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", 3, "down_proj"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", 3, "e_score_correction_bias"),
        ("model.layers.3.input_layernorm.weight", 3, "input_layernorm"),
        ("transformer.h.0.attn.c_attn.bias", 0, "c_attn"),
        ("h.5.ln_1.weight", 5, "ln_1"),
        ("gpt_neox.layers.9.attention.query_key_value.weight", 9, "query_key_value"),
        ("vision_tower.vision_model.encoder.layers.4.mlp.fc1.weight", 4, "fc1"),
        ("model.decoder.layers.2.fc2.weight", 2, "fc2"),
        ("backbone.blocks.6.mixer.in_proj.weight", 6, "in_proj"),
        ("encoder.block.1.layer.0.SelfAttention.q.weight", 1, "q"),
        ("model.embed_tokens.weight", None, "embed_tokens"),
        ("lm_head.weight", None, "lm_head"),
        ("model.norm.weight", None, "norm"),
        ("weight", None, "weight"),
        ("0", None, "0"),
    ],
)
def test_layer_and_kind_of_a_name(name, layer, kind):
    assert (layer_index(name), module_kind(name)) == (layer, kind)


TARGETS = {
    "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    "gpt2_bare": {"c_attn", "c_proj", "c_fc"},
    "gpt_neox": {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"},
    "phi3": {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"},
    "mixtral": {"q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3"},
    "gpt_oss": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"},
    "granite_moe": {"q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"},
}


@pytest.mark.parametrize("family", TARGETS)
def test_the_targets_of_a_family_are_its_projections(family, tiny):
    infos, _ = read_header(tiny(family) / "model.safetensors")
    found = {module_kind(name) for name, info in infos.items() if is_projection(name, info.shape)}
    assert found == TARGETS[family]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens.weight", (64, 32)),
        ("lm_head.weight", (64, 32)),
        ("model.layers.0.input_layernorm.weight", (32,)),
        ("model.layers.0.self_attn.q_proj.bias", (32,)),
        ("model.layers.0.mlp.gate.weight", (4, 32)),
        ("model.layers.0.mlp.shared_expert_gate.weight", (1, 32)),
        ("model.layers.0.block_sparse_moe.router.layer.weight", (4, 32)),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", (4, 96)),
        ("model.layers.0.mixer.conv1d.weight", (32, 1, 4)),
        ("h.0.attn.bias", (1, 1, 64, 64)),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 8)),
        ("model.layers.0.self_attn.q_proj.weight", (0, 32)),
        ("model.layers.0.self_attn.q_proj.weight", (1, 32)),
        ("model.layers.0.self_attn.q_proj.weight", ()),
        ("model.layers.0.self_attn.q_proj.lora_A", (2, 32)),
    ],
)
def test_what_is_no_projection_is_no_target(name, shape):
    assert not is_projection(name, shape)


def test_names_match_across_a_prefix_that_one_side_lacks():
    full = ["model.layers.0.q.weight", "model.norm.weight", "lm_head.weight"]
    bare = {"layers.0.q.weight", "norm.weight"}
    assert match_names(full, bare) == {
        "model.layers.0.q.weight": "layers.0.q.weight",
        "model.norm.weight": "norm.weight",
    }
    assert match_names(sorted(bare), set(full)) == {
        "layers.0.q.weight": "model.layers.0.q.weight",
        "norm.weight": "model.norm.weight",
    }


def test_names_of_gpt2_match_as_the_hub_and_as_transformers_write_them():
    assert match_names(["h.0.ln_1.bias"], {"transformer.h.0.ln_1.bias"}) == {
        "h.0.ln_1.bias": "transformer.h.0.ln_1.bias"
    }
    assert match_names(["transformer.wte.weight"], {"wte.weight"}) == {
        "transformer.wte.weight": "wte.weight"
    }


def test_an_exact_name_wins_over_a_prefix():
    assert match_names(["norm.weight"], {"norm.weight", "model.norm.weight"}) == {
        "norm.weight": "norm.weight"
    }


def test_names_that_nobody_shares_are_left_out():
    assert match_names(["a", "model.b"], {"c", "model.d"}) == {}
