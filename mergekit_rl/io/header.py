"""Safetensors headers: what a file claims to hold, checked against what it can hold.

The format (https://huggingface.co/docs/safetensors): eight bytes of little-endian length, a JSON
object {name: {dtype, shape, data_offsets}}, then the data without holes. The `safetensors` package
reads tensors; the headers are read here because planning needs offsets, and because every fault is
to be named before a weight is touched.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.jsonfile import open_file, parse_object, shown

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_MAX_NAME = 1000

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as a header describes it.

    `dtype` is the safetensors name ("BF16"); `offset` counts bytes from the start of `path`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes a tensor takes on disk."""
    return prod(shape) * BITS[dtype] // 8


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors of a safetensors file by name, in order of their data, and its metadata.

    Raises:
        EditError: the file is truncated, its header is malformed, or an entry's dtype, shape and
            offsets do not describe exactly the bytes that follow the header.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > size - 8:
                raise EditError(
                    f"{path} is truncated or not a safetensors file: "
                    f"{size:,} bytes cannot hold the header it announces; fetch it again"
                )
            if length > MAX_HEADER_BYTES:
                raise EditError(
                    f"{path} announces a header of {length:,} bytes, expected at most "
                    f"{MAX_HEADER_BYTES:,}"
                )
            text = file.read(length)
    except OSError as error:
        raise EditError(f"{path} cannot be read: {error.strerror}") from None
    entries = parse_object(text, f"the header of {path}")
    metadata = _metadata(entries.pop("__metadata__", {}), path)
    data_start = 8 + length
    infos = sorted(
        (_entry(name, entry, path, data_start) for name, entry in entries.items()),
        key=lambda info: (info.offset, info.nbytes),
    )
    _check_tiling(infos, path, data_start, size)
    return {info.name: info for info in infos}, metadata


def build_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, list[int]]:
    """The leading bytes of a safetensors file that holds {name: (dtype, shape)} in that order, and
    the absolute offset of each tensor. Padded so that data starts at a multiple of 64 bytes."""
    import json

    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    starts = []
    for name, (dtype, shape) in tensors.items():
        nbytes = tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        starts.append(at)
        at += nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text, [8 + len(text) + start for start in starts]


def _metadata(found: object, path: Path) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise EditError(f"the header of {path}: __metadata__ is not a map of strings")
    return found


def _entry(name: str, entry: object, path: Path, data_start: int) -> TensorInfo:
    where = f"the header of {path}: {shown(name)}"
    if not is_name(name):
        raise EditError(f"{where} is no name: expected 1 to {_MAX_NAME} printable characters")
    if not isinstance(entry, dict):
        raise EditError(f"{where} is not an object with dtype, shape and data_offsets")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise EditError(f"{where} has dtype {shown(dtype)}, expected one of {', '.join(BITS)}")
    if not _counts(shape):
        raise EditError(f"{where} has shape {shown(shape)}, expected a list of sizes")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise EditError(f"{where} has data_offsets {shown(offsets)}, expected [begin, end]")
    begin, end = offsets
    if prod(shape) * BITS[dtype] != (end - begin) * 8:
        raise EditError(
            f"{where} is {dtype} {tuple(shape)} but its data_offsets span {end - begin:,} bytes"
        )
    if prod(size or 1 for size in shape) >= 2**63:  # beside a 0: torch has no such shape
        raise EditError(f"{where} has shape {shown(shape)}, which is too large")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, end - begin)


def is_name(name: str) -> bool:
    """Whether a tensor may be called that: it fits a line, and shows on it what it is."""
    return 0 < len(name) <= _MAX_NAME and name.isprintable()


def _counts(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) <= 64
        and all(type(size) is int and 0 <= size < 2**63 for size in found)
    )


def _check_tiling(infos: list[TensorInfo], path: Path, data_start: int, size: int) -> None:
    at = data_start
    previous = "the header"
    for info in infos:
        if info.offset != at:
            fault = "overlaps" if info.offset < at else "leaves a hole after"
            raise EditError(f"the header of {path}: {info.name!r} {fault} {previous!r}")
        at += info.nbytes
        previous = info.name
        if at > size:
            raise EditError(
                f"{path} is truncated: {info.name!r} ends at byte {at:,} of {size:,}; "
                "fetch the file again"
            )
    if at != size:
        raise EditError(f"{path} holds {size - at:,} bytes that no tensor of its header covers")
