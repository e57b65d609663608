"""Small models for the tests of merging: a base and experts that differ from it a little."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import build
from torch import Tensor


def experts_of(base: Path, folder: Path, names: str, *, size: float = 1e-2) -> dict[str, Path]:
    """{name: folder} of experts trained, so to speak, from `base`; names as `a b c`."""
    found = {}
    weights = load_file(base / "model.safetensors")
    for number, name in enumerate(names.split()):
        generator = torch.Generator().manual_seed(100 + number)
        path = folder / name
        shutil.copytree(base, path)
        trained = {
            key: (
                (tensor.float() + size * torch.randn(tensor.shape, generator=generator)).to(
                    tensor.dtype
                )
                if tensor.is_floating_point()
                else tensor
            )
            for key, tensor in weights.items()
        }
        save_file(trained, path / "model.safetensors", metadata={"format": "pt"})
        found[name] = path
    return found


def family(folder: Path, kind: str = "llama", names: str = "a b c") -> dict[str, Path]:
    """A tiny base of a kind of `tiny_models` and experts, {name: folder}, `base` among them."""
    base = build(kind, folder / "base")
    return {"base": base, **experts_of(base, folder, names)}


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    """Changes the tensors of a model folder."""
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def reconfigure(folder: Path, **values: Any) -> Path:
    """Changes keys of a model folder's config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}, indent=2))
    return folder


def recipe(models: dict[str, Path], method: str, *names: str, **keys: Any) -> dict[str, Any]:
    """A recipe over named models, each with weight 0.5 where `settings` do not say otherwise."""
    settings = keys.pop("settings", {"weight": 0.5})
    return {
        "merge_method": method,
        "base_model": str(models["base"]),
        "models": [{"model": str(models[n]), "parameters": settings} for n in names],
        **keys,
    }


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, over its shards."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found
