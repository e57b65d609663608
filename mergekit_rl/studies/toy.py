"""A small base and an expert with a known update, made on the spot."""

import json
from pathlib import Path

import torch
from torch import Tensor

from mergekit_rl.io.checkpoint import TORCH_DTYPES
from mergekit_rl.io.output import MARKER, check_output
from mergekit_rl.io.writer import Writer

_HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _VOCAB = 256, 768, 4, 8, 2, 512
_UPDATE = 3e-3  # ‖Δ‖ / ‖W₀‖
_ALIGNED = 0.8  # share of the update's energy inside the base's spectral space
_RANK = 4


def make_toy_pair(folder: Path, *, seed: int = 0, force: bool = False) -> tuple[Path, Path]:
    """Writes a Llama-shaped base with random weights (3 million, bf16) and an expert to
    `folder/base` and `folder/rl`, and returns both paths.

    The expert's update is of low rank plus noise. In tall and wide matrices four fifths of its
    low-rank energy lie in the base's column or row space, so that a projection has something to
    find; random subspaces of the same size would hold a third.

    Raises:
        EditError: either folder exists and may not be replaced, see `check_output`.
    """
    generator = torch.Generator().manual_seed(seed)
    base: dict[str, Tensor] = {}
    rl: dict[str, Tensor] = {}
    for name, shape in _shapes().items():
        if len(shape) == 1:
            base[name] = rl[name] = torch.ones(shape)
            continue
        base[name] = _weight(shape, generator)
        rl[name] = base[name] + _update(base[name], generator) if "layers" in name else base[name]
    paths = folder / "base", folder / "rl"
    for path in paths:
        check_output(path, force=force, inputs=[])
    for path, tensors in zip(paths, (base, rl), strict=True):
        _save(path, tensors, force)
    return paths


def _shapes() -> dict[str, tuple[int, ...]]:
    kv = _HIDDEN * _KV_HEADS // _HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (_VOCAB, _HIDDEN)}
    for layer in range(_LAYERS):
        for name, shape in {
            "input_layernorm": (_HIDDEN,),
            "self_attn.q_proj": (_HIDDEN, _HIDDEN),
            "self_attn.k_proj": (kv, _HIDDEN),
            "self_attn.v_proj": (kv, _HIDDEN),
            "self_attn.o_proj": (_HIDDEN, _HIDDEN),
            "post_attention_layernorm": (_HIDDEN,),
            "mlp.gate_proj": (_INNER, _HIDDEN),
            "mlp.up_proj": (_INNER, _HIDDEN),
            "mlp.down_proj": (_HIDDEN, _INNER),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes | {"model.norm.weight": (_HIDDEN,)}


def _weight(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) / shape[1] ** 0.5


def _update(w0: Tensor, generator: torch.Generator) -> Tensor:
    """A low-rank update, _ALIGNED of it in the base's column and row spaces, plus as much noise."""
    m, n = w0.shape
    inside = w0 @ torch.randn(n, _RANK, generator=generator)
    inside = inside @ (torch.randn(_RANK, m, generator=generator) @ w0)
    anywhere = torch.randn(m, _RANK, generator=generator) @ torch.randn(
        _RANK, n, generator=generator
    )
    noise = torch.randn(m, n, generator=generator)
    parts = (
        _ALIGNED**0.5 * inside / inside.norm()
        + (1 - _ALIGNED) ** 0.5 * anywhere / anywhere.norm()
        + noise / noise.norm()
    )
    return _UPDATE * w0.norm() * parts / parts.norm()


def _save(path: Path, tensors: dict[str, Tensor], force: bool) -> None:
    file = "model.safetensors"
    layout = {file: {name: ("BF16", tuple(t.shape)) for name, t in tensors.items()}}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "vocab_size": _VOCAB,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    with Writer(path, layout, key="toy", force=force) as writer:
        for name, tensor in tensors.items():
            raw = tensor.to(TORCH_DTYPES["BF16"]).contiguous().reshape(-1).view(torch.uint8)
            writer.write(file, name, memoryview(raw.numpy()))
            writer.commit(name, None)
        writer.finish(
            {
                "config.json": (json.dumps(config, indent=2) + "\n").encode(),
                MARKER: (json.dumps({"rledit": "demo"}) + "\n").encode(),
            }
        )
