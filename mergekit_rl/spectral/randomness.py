"""Random numbers that depend on what they are for, not on when they are drawn."""

import hashlib

import torch


def keyed_generator(seed: int, name: str, index: int) -> torch.Generator:
    """A CPU generator that depends on seed, tensor and matrix, on nothing else."""
    key = hashlib.sha256(f"{seed} {name} {index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
