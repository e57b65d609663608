"""A small folder of every kind of tensor, for the tests of the writer."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mergekit_rl.errors import EditError
from mergekit_rl.io.writer import Writer

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}


def tensors() -> dict[str, dict[str, torch.Tensor]]:
    """{file: {name: tensor}}, with every kind of shape."""
    g = torch.Generator().manual_seed(0)
    return {
        "core/adapter.safetensors": {
            "a": torch.randn(5, 7, generator=g),
            "scalar": torch.tensor(3.5),
            "none": torch.zeros(0, 7),
        },
        "model.safetensors": {
            "stack": torch.randn(3, 4, 2, generator=g).bfloat16(),
            "odd": torch.arange(5, dtype=torch.uint8),
            "counts": torch.arange(6),
        },
        "none.safetensors": {"none": torch.zeros(2, 0)},
    }


WANTED = tensors()
LAYOUT = {
    file: {name: (DTYPES[t.dtype], tuple(t.shape)) for name, t in held.items()}
    for file, held in WANTED.items()
}


def raw(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def everything() -> list[tuple[str, str]]:
    return [(file, name) for file, held in WANTED.items() for name in held]


def write(writer: Writer, which: list[tuple[str, str]]) -> None:
    for file, name in which:
        writer.write(file, name, raw(WANTED[file][name]))
        writer.commit(f"{file} {name}", {"name": name})


def check(out: Path) -> None:
    """Whether a reader of another make finds every tensor."""
    for file, held in WANTED.items():
        found = load_file(out / file)
        assert found.keys() == held.keys()
        for name, tensor in held.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert not out.with_name("out.partial").exists()


def refused(out: Path, key: str = "plan", layout=LAYOUT, **flags: bool) -> str:
    with pytest.raises(EditError) as caught:
        Writer(out, layout, key, **flags)
    return str(caught.value)
