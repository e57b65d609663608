"""Small checkpoints written by hand: a Llama-shaped base and experts of it."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def llama(seed=0, dtype=torch.float32, hidden=32, inner=48, layers=2, vocab=64):
    """Random weights of a tiny tied Llama."""
    g = torch.Generator().manual_seed(seed)
    kv = hidden // 2
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (hidden, hidden),
            f"{at}.self_attn.k_proj.weight": (kv, hidden),
            f"{at}.self_attn.v_proj.weight": (kv, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
        }
    shapes["model.norm.weight"] = (hidden,)
    return {name: torch.randn(shape, generator=g).to(dtype) for name, shape in shapes.items()}


def updated(tensors, size=1e-2, seed=1):
    """The tensors after a small update of everything."""
    g = torch.Generator().manual_seed(seed)
    return {
        name: (t.float() + size * torch.randn(t.shape, generator=g)).to(t.dtype)
        if t.is_floating_point()
        else t
        for name, t in tensors.items()
    }


def save(folder: Path, tensors, config=CONFIG, files=()):
    """Writes a checkpoint folder; `files` are names of further text files."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name in files:
        (folder / name).write_text(json.dumps({"from": folder.name}))
    return folder


def make_pair(folder: Path, dtype=torch.float32, **shape):
    """`folder/base` and `folder/rl`, each with a tokenizer file that names it."""
    base = llama(dtype=dtype, **shape)
    config = CONFIG | {"dtype": str(dtype).removeprefix("torch.")}
    files = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    return (
        save(folder / "base", base, config, files),
        save(folder / "rl", updated(base), config, files),
    )


def contents(folder: Path):
    """{path: bytes} of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
