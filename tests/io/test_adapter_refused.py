"""Adapters that are no plain LoRA of their base are refused by name."""

import json
from pathlib import Path

import peft
import pytest
import torch
from peft.tuners.lora.config import BdLoraConfig, KasaConfig, MontecloraConfig
from safetensors.torch import load_file, save_file
from tiny_models import load, train

from mergekit_rl import Checkpoint, EditError

PACKED = ["experts.gate_up_proj", "experts.down_proj"]
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


def minimal(folder: Path, config: object = None, **tensors: torch.Tensor) -> Path:
    """An adapter folder by hand; the factors of one projection where no tensors are named."""
    folder.mkdir(exist_ok=True)
    tensors = tensors or {
        f"{PREFIX}.lora_A.weight": torch.ones(2, 32),
        f"{PREFIX}.lora_B.weight": torch.ones(32, 2),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    content = {"peft_type": "LORA", "r": 2, "lora_alpha": 2} | (config or {})
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


def refusal(folder: Path, base: Path | None) -> str:
    with pytest.raises(EditError) as caught:
        Checkpoint.open(folder, base=None if base is None else Checkpoint.open(base))
    return str(caught.value).replace(str(folder), "DIR")


KINDS = {
    "dora": ({"use_dora": True}, "use_dora is set and DoRA rescales the base's weights"),
    "bdlora": (
        {"use_bdlora": BdLoraConfig(target_modules_bd_b=["q_proj"], nblocks=2)},
        "use_bdlora is set and BD-LoRA has block-diagonal factors",
    ),
    "kasa": (
        {"kasa_config": KasaConfig()},
        "kasa_config is set and KaSA alters the base's weights",
    ),
    "monteclora": (
        {"monteclora_config": MontecloraConfig()},
        "monteclora_config is set and MonteCLoRA samples its factors",
    ),
    "layers": (
        {"layer_replication": [[0, 2], [1, 2]]},
        "layer_replication is set and it changes the stack of layers",
    ),
    "alora": (
        {"alora_invocation_tokens": [5]},
        "alora_invocation_tokens is set and aLoRA acts only after a token sequence",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_variants_of_lora_are_refused_by_name(kind, tiny, tmp_path):
    options, why = KINDS[kind]
    train(tiny("llama"), tmp_path / "a", target_modules=["q_proj"], **options)
    message = f"DIR/adapter_config.json: {why}; merge it with PEFT first"
    assert refusal(tmp_path / "a", tiny("llama")) == message


@pytest.mark.parametrize("config", [peft.IA3Config, peft.LoHaConfig, peft.OFTConfig])
def test_other_adapters_are_refused_by_name(config, tiny, tmp_path):
    extra = {"oft_block_size": 4, "r": 0} if config is peft.OFTConfig else {}
    settings = config(task_type="CAUSAL_LM", target_modules=["k_proj", "v_proj"], **extra)
    if config is peft.IA3Config:
        settings.feedforward_modules = []
    peft.get_peft_model(load(tiny("llama")), settings).save_pretrained(tmp_path / "a")
    kind = settings.peft_type.value
    assert refusal(tmp_path / "a", tiny("llama")) == (
        f"DIR/adapter_config.json: peft_type is '{kind}', expected LORA; merge it with PEFT first"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"init_lora_weights": "pissa_niter_4"},
            "init_lora_weights is 'pissa_niter_4', which alters the base; convert the adapter to "
            "plain LoRA with PEFT first",
        ),
        ({"bias": "lora_only"}, "bias is 'lora_only', expected none; merge it with PEFT"),
        ({"use_xlora": 1}, "the field 'use_xlora' is not known, so it is not ignored"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan, expected a finite number"),
        ({"lora_alpha": True}, "lora_alpha is True, expected int or float"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes', expected bool"),
        (
            {"alpha_pattern": {"q_proj": float("nan")}},
            "alpha_pattern['q_proj'] is not a finite number",
        ),
        (
            {"alpha_pattern": {"q_proj": 10**400}},
            "alpha_pattern['q_proj'] is not a finite number",
        ),
        (
            {"alpha_pattern": {"(": 1}},
            "alpha_pattern '(': a ( that is not closed (position 0)",
        ),
        (
            {"alpha_pattern": {"a{99999999999}": 1}},
            "alpha_pattern 'a{99999999999}': the repetition {99999999999} is too large",
        ),
        (
            {"trainable_token_indices": {"embed_tokens": [-1]}},
            "trainable_token_indices is not a list of token ids",
        ),
        ({"target_parameters": [3]}, "target_parameters is not a list of names"),
        ({"base_model_name_or_path": ["x"]}, "base_model_name_or_path is ['x'], expected str"),
    ],
)
def test_faults_of_a_config_are_named(config, message, tiny, tmp_path):
    minimal(tmp_path / "a", config)
    assert refusal(tmp_path / "a", tiny("llama")) == f"DIR/adapter_config.json: {message}"


NORM = "base_model.model.model.norm"
EMBEDDING = "base_model.model.model.embed_tokens"
FILES = {
    "another width": (
        {f"{PREFIX}.lora_A.weight": (2, 40), f"{PREFIX}.lora_B.weight": (32, 2)},
        "the factors of model.layers.0.self_attn.q_proj are (32, 2) and (2, 40), and "
        "model.layers.0.self_attn.q_proj.weight of the base is (32, 32): it was trained on "
        "another base",
    ),
    "rank 0": (
        {f"{PREFIX}.lora_A.weight": (0, 32), f"{PREFIX}.lora_B.weight": (32, 0)},
        "the factors of model.layers.0.self_attn.q_proj are (32, 0) and (0, 32), and "
        "model.layers.0.self_attn.q_proj.weight of the base is (32, 32): it was trained on "
        "another base",
    ),
    "a vector": (
        {f"{NORM}.lora_A.weight": (2, 32), f"{NORM}.lora_B.weight": (32, 2)},
        "the factors of model.norm are (32, 2) and (2, 32), and model.norm.weight of the base is "
        "(32,): it was trained on another base",
    ),
    "scalars": (
        {f"{PREFIX}.lora_A.weight": (), f"{PREFIX}.lora_B.weight": ()},
        "the factors of model.layers.0.self_attn.q_proj are () and (), and "
        "model.layers.0.self_attn.q_proj.weight of the base is (32, 32): it was trained on "
        "another base",
    ),
    "half a pair": (
        {f"{PREFIX}.lora_A.weight": (2, 32)},
        "model.layers.0.self_attn.q_proj has no lora_B",
    ),
    "a deeper base": (
        {
            "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": (2, 32),
            "base_model.model.model.layers.7.self_attn.q_proj.lora_B.weight": (32, 2),
        },
        "'model.layers.7.self_attn.q_proj.weight' belongs to no tensor of BASE: it was trained on "
        "another base",
    ),
    "a larger vocabulary": (
        {f"{EMBEDDING}.weight": (70, 32)},
        f"'{EMBEDDING}.weight' is (70, 32), and model.embed_tokens.weight of the base is (64, 32): "
        "resized embeddings are not merged; use PEFT",
    ),
    "a copy of another base": (
        {f"{EMBEDDING}.base_layer.weight": (64, 32)},
        f"'{EMBEDDING}.base_layer.weight' differs from the base's 'model.embed_tokens.weight': "
        "another base",
    ),
    "a magnitude": (
        {f"{PREFIX}.lora_magnitude_vector": (32,)},
        f"'{PREFIX}.lora_magnitude_vector' is no plain LoRA factor; merge it with PEFT",
    ),
    "a bias": (
        {f"{PREFIX}.lora_B.bias": (32,)},
        f"'{PREFIX}.lora_B.bias' is no plain LoRA factor; merge it with PEFT",
    ),
    "unlisted rows": (
        {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": (2, 32)},
        "the trained token rows of model.embed_tokens are (2, 32), and the config lists 0 rows of "
        "(64, 32)",
    ),
    "a scalar of rows": (
        {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": ()},
        "the trained token rows of model.embed_tokens are (), and the config lists 0 rows of "
        "(64, 32)",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_faults_of_an_adapter_file_are_named(case, tiny, tmp_path):
    shapes, message = FILES[case]
    base = tiny("llama")
    minimal(tmp_path / "a", **{key: torch.ones(shape) for key, shape in shapes.items()})
    found = refusal(tmp_path / "a", base).replace(str(base), "BASE")
    assert found == f"DIR/adapter_model.safetensors: {message}"


def test_one_tensor_under_two_keys_is_refused(tiny, tmp_path):
    short = PREFIX.removeprefix("base_model.model.model.")
    tensors = {
        f"{name}.lora_{side}.weight": torch.ones(shape)
        for name in (PREFIX, short)
        for side, shape in (("A", (2, 32)), ("B", (32, 2)))
    }
    minimal(tmp_path / "a", **tensors)
    assert refusal(tmp_path / "a", tiny("llama")) == (
        "DIR/adapter_model.safetensors adapts 'model.layers.0.self_attn.q_proj.weight' twice, "
        "under two keys"
    )


def test_rows_beyond_the_vocabulary_are_refused(tiny, tmp_path):
    rows = {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": torch.ones(1, 32)}
    minimal(tmp_path / "a", {"trainable_token_indices": [64]}, **rows)
    assert refusal(tmp_path / "a", tiny("llama")) == (
        "DIR/adapter_model.safetensors: the trained token rows of model.embed_tokens are (1, 32), "
        "and the config lists 1 rows of (64, 32)"
    )


def test_half_of_a_tied_pair_is_refused(tiny, tmp_path):
    base = tiny("llama_tied")
    train(base, tmp_path / "a", target_modules=["embed_tokens"])
    assert refusal(tmp_path / "a", base) == (
        "DIR/adapter_model.safetensors adapts only the embedding, and the base ties embedding and "
        "head: untie the base first"
    )
    train(base, tmp_path / "b", target_modules=["lm_head"])
    assert "adapts only the output head" in refusal(tmp_path / "b", base)
    train(base, tmp_path / "c", target_modules=["q_proj"], modules_to_save=["lm_head"])
    assert "replaces one side of a tied embedding" in refusal(tmp_path / "c", base)


def test_a_tied_pair_adapted_differently_is_refused(tiny, tmp_path):
    base = tiny("llama_tied")
    train(base, tmp_path / "a", target_modules=["embed_tokens", "lm_head"])
    assert refusal(tmp_path / "a", base) == (
        "DIR/adapter_model.safetensors adapts embedding and head differently, and the base ties "
        "them"
    )


@pytest.mark.parametrize("parameters", [[], ["experts.gate_up_proj"]])
def test_packed_factors_need_their_target_parameters(parameters, tiny, tmp_path):
    base = tiny("gpt_oss")
    train(base, tmp_path / "a", target_modules=[], target_parameters=PACKED)
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    config["target_parameters"] = parameters
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(config))
    found = refusal(tmp_path / "a", base)
    assert "pairs of factors, and target_parameters names" in found


def test_another_count_of_experts_is_refused(tiny, tmp_path):
    train(tiny("mixtral"), tmp_path / "a", target_modules=[], target_parameters=PACKED[:1], r=1)
    tensors = load_file(tmp_path / "a/adapter_model.safetensors")
    shorter = {key: t[:3] if "lora_A" in key else t for key, t in tensors.items()}
    save_file(shorter, tmp_path / "a/adapter_model.safetensors")
    assert refusal(tmp_path / "a", tiny("mixtral")) == (
        "DIR/adapter_model.safetensors: the factors of model.layers.0.mlp.experts.gate_up_proj are "
        "(96, 4) and (3, 32), expected (96, 4·r) and (4·r, 32) for its 4 experts"
    )


def test_a_raw_vector_parameter_is_refused(tiny, tmp_path):
    pair = {f"{NORM}.lora_A.weight": torch.ones(2, 32), f"{NORM}.lora_B.weight": torch.ones(32, 2)}
    minimal(tmp_path / "a", {"target_parameters": ["norm.weight"]}, **pair)
    assert "model.norm.weight of the base is (32,)" in refusal(tmp_path / "a", tiny("llama"))


def test_a_pickled_adapter_is_refused_with_its_converter(tiny, tmp_path):
    minimal(tmp_path / "a")
    (tmp_path / "a/adapter_model.safetensors").rename(tmp_path / "a/adapter_model.bin")
    assert refusal(tmp_path / "a", tiny("llama")) == (
        "DIR holds a pickled adapter (adapter_model.bin) and no adapter_model.safetensors; convert "
        "it first: PeftModel.from_pretrained(base, DIR).save_pretrained(OUT) of PEFT writes "
        "safetensors"
    )


def test_an_adapter_without_a_named_base_needs_one(tmp_path):
    assert refusal(minimal(tmp_path / "a"), None) == "DIR names no base model; open it with one"


def test_an_adapter_that_names_itself_as_its_base_is_refused(tmp_path):
    folder = minimal(tmp_path / "a", {"base_model_name_or_path": str(tmp_path / "a")})
    assert refusal(folder, None) == (
        "DIR names the base DIR, which is an adapter itself; open that over its base first, and "
        "this one over it"
    )


def test_an_adapter_over_an_open_adapter_adds_both(tiny, tmp_path):
    base = Checkpoint.open(tiny("llama"))
    first = Checkpoint.open(minimal(tmp_path / "a"), base=base)
    second = Checkpoint.open(minimal(tmp_path / "b"), base=first)
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(second.read(name), base.read(name) + 4.0)


def test_nan_in_a_factor_is_an_error_when_it_is_read(tiny, tmp_path):
    pair = {
        f"{PREFIX}.lora_A.weight": torch.ones(2, 32),
        f"{PREFIX}.lora_B.weight": torch.full((32, 2), torch.nan),
    }
    found = Checkpoint.open(minimal(tmp_path / "a", **pair), base=Checkpoint.open(tiny("llama")))
    with pytest.raises(EditError) as caught:
        found.read("model.layers.0.self_attn.q_proj.weight")
    assert str(caught.value) == (
        f"{PREFIX}.lora_B.weight of {tmp_path}/a/adapter_model.safetensors holds NaN or Inf "
        "(adapter_model.safetensors): the training run went wrong before it was saved"
    )


def test_factors_and_a_replacement_of_one_tensor_are_refused(tiny, tmp_path):
    tensors = {
        f"{PREFIX}.lora_A.weight": torch.ones(2, 32),
        f"{PREFIX}.lora_B.weight": torch.ones(32, 2),
        f"{PREFIX}.weight": torch.ones(32, 32),
    }
    assert refusal(minimal(tmp_path / "a", **tensors), tiny("llama")) == (
        "DIR/adapter_model.safetensors replaces 'model.layers.0.self_attn.q_proj.weight' "
        "(modules_to_save) and adapts it with factors; train one of them, or merge it with PEFT"
    )
