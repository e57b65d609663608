"""How the tensors of a model are spread over files."""

import json
from collections.abc import Mapping

from mergekit_rl.io.folder import INDEX
from mergekit_rl.io.header import tensor_bytes

SHARD_BYTES = 5 * 10**9
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def shard(tensors: Tensors, most: int = SHARD_BYTES) -> tuple[dict[str, Tensors], dict[str, bytes]]:
    """The files of a model: {file: its tensors} and {index file: its content}, the latter empty
    where one file holds all.

    Args:
        tensors: {name: (dtype, shape)}, in the order they are to lie.
        most: bytes of tensors per file; a single tensor may exceed it.
    """
    groups: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]
    filled = 0
    for name, (dtype, shape) in tensors.items():
        size = tensor_bytes(dtype, shape)
        if groups[-1] and filled + size > most:
            groups.append({})
            filled = 0
        groups[-1][name] = (dtype, shape)
        filled += size
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}, {}
    files = {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, 1)
    }
    total = sum(tensor_bytes(dtype, shape) for dtype, shape in tensors.values())
    weight_map = {name: file for file, group in files.items() for name in group}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return files, {INDEX: (json.dumps(index, indent=2) + "\n").encode()}
