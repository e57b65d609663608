"""One entry of the cache: a safetensors file of tensors and figures that tells if it is damaged."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from mergekit_rl.io.checkpoint import TORCH_DTYPES
from mergekit_rl.io.header import build_header, read_header
from mergekit_rl.io.jsonfile import parse_object

Pieces = Sequence["bytes | memoryview"]

_FIGURES, _CHECKSUM = "figures", "checksum"  # its last two tensors, both of bytes
_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class Kept(NamedTuple):
    """What an entry holds: CPU tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    figures: dict[str, Any]


def encoded(name: str, tensors: Mapping[str, Tensor], figures: Mapping[str, Any]) -> Pieces:
    """The bytes of an entry, piece by piece. The last piece is the SHA-256 of the entry's name and
    all before it.

    Args:
        name: of its file.
        tensors: of any device.
        figures: what JSON can hold.
    """
    plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    text = json.dumps(dict(figures)).encode()
    layout = {key: (_DTYPES[tensor.dtype], tuple(tensor.shape)) for key, tensor in plain.items()}
    layout |= {_FIGURES: ("U8", (len(text),)), _CHECKSUM: ("U8", (32,))}
    pieces = [build_header(layout)[0], *map(_bytes, plain.values()), text]
    running = hashlib.sha256(name.encode())
    for piece in pieces:
        running.update(piece)
    return [*pieces, running.digest()]


def write(path: Path, pieces: Pieces) -> None:
    """Makes the file whole under another name, then gives it its own. It is not synced: a torn one
    does not agree with its checksum."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def read(file: IO[bytes], path: Path) -> tuple[Kept, int]:
    """What an entry holds, and its bytes.

    Raises:
        EditError, ValueError: it is not what was written.
    """
    infos, _ = read_header(path)
    if list(infos)[-2:] != [_FIGURES, _CHECKSUM]:
        raise ValueError("it lacks its figures or its checksum")
    start = next(iter(infos.values())).offset
    header = file.read(start)
    running = hashlib.sha256(path.name.encode() + header)
    tensors = {}
    for name, info in infos.items():
        if info.dtype not in TORCH_DTYPES:
            raise ValueError(f"{name} is {info.dtype}")
        tensors[name] = torch.empty(info.shape, dtype=TORCH_DTYPES[info.dtype])
        data = _bytes(tensors[name])
        if file.readinto(data) < len(data):
            raise ValueError("it is truncated")
        if name != _CHECKSUM:
            running.update(data)
    if bytes(_bytes(tensors.pop(_CHECKSUM))) != running.digest():
        raise ValueError("its checksum does not agree")
    figures = parse_object(bytes(_bytes(tensors.pop(_FIGURES))), str(path))
    return Kept(tensors, figures), sum(info.nbytes for info in infos.values()) + start


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
