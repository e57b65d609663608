"""Quantised checkpoints are refused before a weight is read, by config, names or dtypes."""

import json

import pytest
from tiny_models import entry, file_of

from mergekit_rl import Checkpoint, EditError
from mergekit_rl.io.header import tensor_bytes

REMEDY = "save the model dequantised (bf16 or fp32) and use that folder"
LAYER = "model.layers.0.mlp.down_proj"


def checkpoint(folder, tensors: dict[str, tuple[str, list[int]]], config: object = None):
    """A folder with zeros of these dtypes and shapes."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = tensor_bytes(dtype, shape)
        header[name] = entry(dtype, shape, at, at + size)
        at += size
    (folder / "model.safetensors").write_bytes(file_of(header, bytes(at)))
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


def refusal(folder) -> str:
    with pytest.raises(EditError) as caught:
        Checkpoint.open(folder)
    return str(caught.value).replace(str(folder), "DIR")


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "method"),
    [
        (f"{LAYER}.qweight", "I32", [4, 8], "GPTQ or AWQ"),
        (f"{LAYER}.g_idx", "I32", [8], "GPTQ or AWQ"),
        (f"{LAYER}.qzeros", "I32", [1, 1], "GPTQ or AWQ"),
        ("model.layers.0.mlp.experts.down_proj_blocks", "U8", [4, 8, 2, 16], "MXFP4"),
        (f"{LAYER}.weight.absmax", "F32", [8], "bitsandbytes"),
        (f"{LAYER}.weight.quant_state.bitsandbytes__nf4", "U8", [8], "bitsandbytes"),
        (f"{LAYER}.SCB", "F32", [8], "bitsandbytes 8-bit"),
        (f"{LAYER}.weight_packed", "I32", [8, 4], "compressed-tensors"),
        (f"{LAYER}.weight_scale", "F32", [1], "FP8 or INT8 with scales"),
        (f"{LAYER}.weight_scale_inv", "F32", [1, 1], "FP8 or INT8 with scales"),
    ],
)
def test_quantised_weights_are_known_by_their_names(name, dtype, shape, method, tmp_path):
    plain = {f"{LAYER}.bias": ("F32", [4])}
    folder = checkpoint(tmp_path, plain | {name: (dtype, shape)})
    assert refusal(folder) == f"DIR is quantised ({method}: {name!r}); {REMEDY}"


def test_scales_are_of_quantised_blocks_only_beside_blocks(tmp_path):
    experts = "model.layers.0.mlp.experts.down_proj"
    scales = {f"{experts}_scales": ("F32", [8])}
    assert set(Checkpoint.open(checkpoint(tmp_path, scales)).tensors) == set(scales)
    both = scales | {f"{experts}_blocks": ("F32", [8])}
    assert refusal(checkpoint(tmp_path, both)).startswith("DIR is quantised (MXFP4: ")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "I8", "U8"])
def test_quantised_weights_are_known_by_their_dtype(dtype, tmp_path):
    folder = checkpoint(tmp_path, {f"{LAYER}.weight": (dtype, [8, 4])})
    assert refusal(folder) == f"DIR is quantised ('{LAYER}.weight' is {dtype}); {REMEDY}"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config of its config.json: fp8",
        ),
        (
            {"quantization_config": {"load_in_4bit": True}},
            "quantization_config of its config.json: method not named",
        ),
        (
            {"quantization_config": ["odd"]},
            "quantization_config of its config.json: method not named",
        ),
        (
            {"compression_config": {"quant_method": "compressed-tensors"}},
            "compression_config of its config.json: compressed-tensors",
        ),
        (
            {"text_config": {"quantization_config": {"quant_method": "awq"}}},
            "quantization_config of its config.json: awq",
        ),
    ],
)
def test_quantised_weights_are_known_by_their_config(config, reason, tmp_path):
    folder = checkpoint(tmp_path, {f"{LAYER}.weight": ("BF16", [8, 4])}, config)
    assert refusal(folder) == f"DIR is quantised ({reason}); {REMEDY}"


@pytest.mark.parametrize("config", [{"quantization_config": None}, {"text_config": "odd"}])
def test_a_config_that_names_no_method_passes(config, tmp_path):
    folder = checkpoint(tmp_path, {f"{LAYER}.weight": ("BF16", [8, 4])}, config)
    assert len(Checkpoint.open(folder).tensors) == 1


def test_masks_and_counters_of_small_integers_are_no_weights(tmp_path):
    tensors = {
        "h.0.attn.bias": ("U8", [1, 1, 8, 8]),
        "h.1.attn.bias": ("BOOL", [1, 1, 8, 8]),
        "position_ids": ("I64", [1, 8]),
        "h.0.attn.flag": ("I8", [3]),
    }
    assert set(Checkpoint.open(checkpoint(tmp_path, tensors)).tensors) == set(tensors)


def test_a_dtype_that_cannot_be_computed_with_is_named(tmp_path):
    folder = checkpoint(tmp_path, {"phase": ("C64", [2])})
    message = "DIR/model.safetensors: 'phase' is C64, which is not edited"
    assert refusal(folder) == message


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_plain_floats_are_not_quantised(dtype, tmp_path):
    folder = checkpoint(tmp_path, {f"{LAYER}.weight": (dtype, [8, 4])})
    assert Checkpoint.open(folder).dtype == dtype
