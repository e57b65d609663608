"""What can be wrong with a folder itself: links, pipes, folders for files, absent files."""

import os
import random
import shutil
from pathlib import Path

from fuzz.corpus import ADAPTER, CONFIG, CORE, INDEX, LORA, WEIGHTS

_NAMES = (
    WEIGHTS, ADAPTER, CONFIG, LORA, CORE, INDEX, "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "other.safetensors", "consolidated.safetensors",
    "adapter_model.bin", "pytorch_model.bin", ".metadata", "global_step1", "x.gguf",
)  # fmt: skip


def spoil(rng: random.Random, folder: Path, outside: Path) -> None:
    """One to three faults of the folder; what `outside` holds may not be read."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        there = sorted(path.name for path in folder.iterdir())
        path = folder / rng.choice(there if there and rng.random() < 0.6 else _NAMES)
        kept = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        _remove(path)
        match rng.randrange(10):
            case 0:
                path.symlink_to(outside / rng.choice((WEIGHTS, CONFIG, LORA, "absent")))
            case 1:
                path.symlink_to(Path("..") / outside.name / path.name)
            case 2:
                path.symlink_to(path.name)  # a loop
            case 3:
                path.symlink_to(rng.choice(_NAMES))
            case 4:
                path.symlink_to(
                    rng.choice(("/dev/zero", "/proc/self/mem", "/etc/passwd", "/", "."))
                )
            case 5:
                os.mkfifo(path)
            case 6:
                path.mkdir()
            case 7:
                path.write_bytes(kept[: rng.randrange(len(kept) + 1)])
            case 8 if kept:
                renamed = folder / rng.choice(_NAMES)
                _remove(renamed)
                renamed.write_bytes(kept)
            case _:
                pass  # absent


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
