"""A hash of a tensor's values that does not depend on the dtype they are stored in."""

import hashlib

import torch
from torch import Tensor

# Narrowest first; a tensor is hashed in the first that holds all its values exactly.
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class ValueDigest:
    """SHA-256 over a tensor's canonical values: floats in the narrowest of bf16, fp16, fp32 and
    fp64 that represents every entry exactly, so that an fp32 re-save of a bf16 tensor has the same
    digest. Fed in consecutive pieces of one dtype."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._running: dict[torch.dtype, hashlib._Hash] | None = None

    def update(self, piece: Tensor) -> None:
        """Adds a CPU tensor's values, in row-major order."""
        if piece.numel() == 0:
            return
        if self._running is None:
            self._running = {dtype: hashlib.sha256() for dtype in self._candidates(piece.dtype)}
        for dtype in list(self._running):
            cast = piece.to(dtype)
            if dtype != piece.dtype and not torch.equal(cast.to(piece.dtype), piece):
                del self._running[dtype]
                continue
            self._running[dtype].update(
                memoryview(cast.contiguous().reshape(-1).view(torch.uint8).numpy())
            )

    def hexdigest(self) -> str:
        """64 hex digits, over dtype, shape and values."""
        if not self._running:
            return hashlib.sha256(repr(self._shape).encode()).hexdigest()
        dtype, values = next(iter(self._running.items()))
        return hashlib.sha256(
            f"{dtype} {self._shape} ".encode() + values.hexdigest().encode()
        ).hexdigest()

    @staticmethod
    def _candidates(stored: torch.dtype) -> tuple[torch.dtype, ...]:
        if stored not in _FLOATS:
            return (stored,)
        return _FLOATS[: _FLOATS.index(stored) + 1]
