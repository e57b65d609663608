"""Valid folders that the fuzzed ones are made from: {file name: bytes}, a few kilobytes each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pairs import llama, save, updated
from safetensors.torch import save as to_bytes

from mergekit_rl import sar

Shapes = Mapping[str, tuple[int, ...]]
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
INDEX, CONFIG, LORA, CORE = (
    "model.safetensors.index.json", "config.json", "adapter_config.json", "core.json",
)  # fmt: skip


@dataclass(frozen=True)
class Seed:
    """A valid folder, and for an adapter or core the name of the seed that is its base."""

    files: Mapping[str, bytes]
    base: str | None = None


@cache
def seeds() -> dict[str, Seed]:
    """All of them by name, the same on every call."""
    return {**_models(), **_adapters()}


def with_cores(scratch: Path) -> dict[str, Seed]:
    """`seeds()`, and cores of tiny pairs that `sar` makes in the folder `scratch`."""
    found = dict(seeds())
    for name in ("llama", "mixtral"):
        base = {key: t.float() for key, t in _load(found[name].files[WEIGHTS]).items()}
        config = json.loads(found[name].files[CONFIG])
        pair = scratch / name
        save(pair / "base", base, config)
        save(pair / "rl", updated(base), config)
        sar(pair / "base", pair / "rl", pair / "core", rank=2, workers=1, device="cpu")
        files = {path.name: path.read_bytes() for path in sorted((pair / "core").iterdir())}
        kept = {file: files[file] for file in (CORE, LORA, ADAPTER)}
        found[f"core of {name}"] = Seed(kept, name)
    return found


def _models() -> dict[str, Seed]:
    tiny = {name: tuple(t.shape) for name, t in llama(hidden=4, inner=6, layers=1, vocab=5).items()}
    untied = {**tiny, "lm_head.weight": (5, 4)}
    names = list(tiny)
    halves = [{n: tiny[n] for n in part} for part in (names[:5], names[5:])]
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    parts = {file: _weights(half) for file, half in zip(shards, halves, strict=True)}
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {n: f for f, half in zip(shards, halves, strict=True) for n in half},
    }
    return {
        "llama": _model(untied, model_type="llama", tie_word_embeddings=False),
        "tied": _model(tiny, model_type="llama", tie_word_embeddings=True, dtype="bfloat16"),
        "sharded": Seed({INDEX: _json(index), CONFIG: _json({"model_type": "llama"}), **parts}),
        "gathered": Seed(parts),
        "gpt2": _model(
            {
                "wte.weight": (5, 4), "h.0.ln_1.weight": (4,), "h.0.attn.c_attn.weight": (4, 12),
                "h.0.attn.c_attn.bias": (12,), "h.0.mlp.c_fc.weight": (4, 6),
                "h.0.mlp.c_fc.bias": (6,),
            },
            model_type="gpt2",
        ),
        "mixtral": _model(
            {
                "model.embed_tokens.weight": (5, 4), "lm_head.weight": (5, 4),
                "model.layers.0.block_sparse_moe.gate.weight": (2, 4),
                **{
                    f"model.layers.0.block_sparse_moe.experts.{expert}.{leaf}.weight": shape
                    for expert in (0, 1)
                    for leaf, shape in (("w1", (3, 4)), ("w2", (4, 3)), ("w3", (3, 4)))
                },
            },
            model_type="mixtral",
        ),
        "gpt_oss": _model(
            {
                "model.embed_tokens.weight": (5, 4), "lm_head.weight": (5, 4),
                "model.layers.0.mlp.experts.gate_up_proj": (2, 4, 6),
                "model.layers.0.mlp.experts.gate_up_proj_bias": (2, 6),
                "model.layers.0.mlp.experts.down_proj": (2, 3, 4),
            },
            model_type="gpt_oss",
        ),
        "gemma3": _model(
            {
                "language_model.lm_head.weight": (5, 4),
                "language_model.model.embed_tokens.weight": (5, 4),
                "language_model.model.layers.0.self_attn.q_proj.weight": (4, 4),
                "multi_modal_projector.mm_input_projection_weight": (3, 4),
                "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": (3, 3),
            },
            model_type="gemma3", vision_config={"hidden_size": 3}, text_config={"hidden_size": 4},
        ),
    }  # fmt: skip


def _adapters() -> dict[str, Seed]:
    at = "base_model.model.model.layers.0"
    return {
        "lora": _adapter(
            "llama",
            _pair(f"{at}.self_attn.q_proj", 4, 4) | _pair(f"{at}.mlp.up_proj", 6, 4, r=1)
            | {"base_model.model.model.norm.weight": (4,)},
            alpha_pattern={r"^(?:model\.layers\.0\.mlp\.up_proj|x\.y)": 3, "q_pro.*": 1.5},
            rank_pattern={"up_proj": 1}, modules_to_save=["norm"],
        ),
        "embeddings": _adapter(
            "llama",
            {
                "base_model.model.model.embed_tokens.lora_embedding_A": (2, 5),
                "base_model.model.model.embed_tokens.lora_embedding_B": (4, 2),
            } | _pair("base_model.model.lm_head", 5, 4),
            use_rslora=True,
        ),
        "tokens": _adapter(
            "tied",
            {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": (2, 4)},
            trainable_token_indices={"embed_tokens": [3, 1]},
        ),
        "conv1d": _adapter(
            "gpt2", _pair("base_model.model.transformer.h.0.attn.c_attn", 12, 4),
            fan_in_fan_out=True,
        ),
        "experts": _adapter(
            "mixtral",
            _pair(f"{at}.mlp.experts", 4, 3, r=2, stack=2)
            | _pair(f"{at}.mlp.experts.base_layer", 6, 4, r=2, stack=2),
            target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        ),
        "packed": _adapter(
            "gpt_oss", _pair(f"{at}.mlp.experts", 6, 4, r=1, stack=2),
            target_parameters=["experts.gate_up_proj"],
        ),
        "vision": _adapter(
            "gemma3",
            _pair("base_model.model.model.language_model.layers.0.self_attn.q_proj", 4, 4)
            | _pair("base_model.model.model.vision_tower.encoder.layers.0.mlp.fc1", 3, 3),
        ),
    }  # fmt: skip


def _model(shapes: Shapes, **config: Any) -> Seed:
    dtype = torch.bfloat16 if config.get("dtype") == "bfloat16" else torch.float32
    return Seed({WEIGHTS: _weights(shapes, dtype), CONFIG: _json(config)})


def _adapter(base: str, shapes: Shapes, **config: Any) -> Seed:
    content = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/name"}
    return Seed({LORA: _json(content | config), ADAPTER: _weights(shapes)}, base)


def _pair(module: str, out: int, inner: int, r: int = 2, stack: int = 1) -> dict[str, Any]:
    k = r * stack
    return {f"{module}.lora_A.weight": (k, inner), f"{module}.lora_B.weight": (out, k)}


def _weights(shapes: Shapes, dtype: torch.dtype = torch.float32) -> bytes:
    generator = torch.Generator().manual_seed(1)
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return to_bytes({name: t.to(dtype) for name, t in made.items()}, metadata={"format": "pt"})


def _load(data: bytes) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(data)


def _json(content: object) -> bytes:
    return json.dumps(content, indent=1).encode()
