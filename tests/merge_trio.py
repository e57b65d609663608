"""Hand-written models for tests of merging that need no transformers: a base and experts, quickly
made."""

from pathlib import Path
from typing import Any

import torch
from pairs import CONFIG, llama, save, updated


def trio(
    folder: Path, names: str = "a b", *, layers: int = 2, dtype: Any = torch.float32
) -> dict[str, Path]:
    """{name: folder} of an untied Llama-shaped `base` and of experts that differ a little."""
    base = llama(hidden=8, inner=12, layers=layers, vocab=10, dtype=dtype)
    base["lm_head.weight"] = torch.randn(10, 8, generator=torch.Generator().manual_seed(7)).to(
        dtype
    )
    config = CONFIG | {
        "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": layers, "vocab_size": 10,
        "tie_word_embeddings": False, "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip
    found = {"base": save(folder / "base", base, config)}
    for number, name in enumerate(names.split(), 1):
        found[name] = save(folder / name, updated(base, 0.05, number), config)
    return found
