"""Tiny random models of the families the tests load, and safetensors files written by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

_SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_NEOX = {key: value for key, value in _SHAPE.items() if key != "num_key_value_heads"}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_TEXT = {**_SHAPE, "head_dim": 8, "sliding_window": 16}
_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
IMAGE_TOKEN = 60
TRAINED = ("lora_", "trainable_tokens_delta", "modules_to_save")

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**_SHAPE, "tie_word_embeddings": False}),
    "llama_tied": ("LlamaConfig", {**_SHAPE, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**_SHAPE, "head_dim": 8, "tie_word_embeddings": False}),
    "gemma3": ("Gemma3TextConfig", _TEXT),
    "gemma3_vision": (
        "Gemma3Config",
        {
            "text_config": _TEXT, "vision_config": _VISION, "mm_tokens_per_image": 4,
            "image_token_index": IMAGE_TOKEN, "image_token_id": IMAGE_TOKEN, "boi_token_index": 61,
            "eoi_token_index": 62,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64,
            "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", _NEOX),
    "phi3": ("Phi3Config", _SHAPE),
    "mixtral": ("MixtralConfig", {**_SHAPE, **_EXPERTS}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            **_SHAPE, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "mlp_only_layers": [0],
        },
    ),
    "gpt_oss": ("GptOssConfig", {**_TEXT, **_EXPERTS}),
    "granite_moe": ("GraniteMoeConfig", {**_SHAPE, **_EXPERTS}),
}  # fmt: skip


def build(family: str, folder: Path) -> Path:
    """A random fp32 model of `family`, saved to `folder`. `gpt2_bare` is GPT-2 as the Hub stores
    it, without the `transformer.` before its names; `gpt_oss_bf16` is stored in bf16."""
    name = family.removesuffix("_bare").removesuffix("_bf16")
    kind, settings = FAMILIES[name]
    config = getattr(transformers, kind)(**settings)
    vision = name == "gemma3_vision"
    auto = "AutoModelForImageTextToText" if vision else "AutoModelForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    model.eval().save_pretrained(folder)
    if family.endswith("_bare"):
        edit(folder, lambda old, tensor: {old.removeprefix("transformer."): tensor})
    if family.endswith("_bf16"):
        edit(folder, lambda old, tensor: {old: tensor.to(torch.bfloat16)})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    return folder


def edit(folder: Path, change) -> None:
    """Rewrites model.safetensors: `change(name, tensor)` gives the tensors in its place."""
    new: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        new |= change(name, tensor)
    save_file(new, folder / "model.safetensors", metadata={"format": "pt"})


def logits(model: Any) -> Tensor:
    """fp32 logits of fixed tokens, and of an image where the model takes one."""
    generator = torch.Generator().manual_seed(3)
    inputs = {"input_ids": torch.randint(3, 58, (2, 12), generator=generator)}
    if model.config.model_type == "gemma3":
        inputs["input_ids"][:, 2:6] = IMAGE_TOKEN
        inputs["pixel_values"] = torch.randn(2, 3, 28, 28, generator=generator)
        inputs["token_type_ids"] = (inputs["input_ids"] == IMAGE_TOKEN).long()
    with torch.no_grad():
        return model.eval()(**inputs).logits.float()


def load(folder: Path, **options: Any) -> Any:
    """The model in `folder`, in fp32."""
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32, **options)


def train(base: Path, folder: Path, **options: Any) -> Any:
    """Saves a PEFT adapter with random factors to `folder`; the model that carries it."""
    settings = {"task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 5} | options
    model = peft.get_peft_model(load(base), peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in TRAINED):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(folder)
    return model


def file_of(entries: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file of any header, well formed or not."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """One tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_index(folder: Path, weight_map: Mapping[str, object]) -> None:
    """A model.safetensors.index.json."""
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)
