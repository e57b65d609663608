"""What an adapter holds for one tensor of its base."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mergekit_rl.io.header import TensorInfo


@dataclass(frozen=True)
class LowRank:
    """Where the factors of one tensor lie: Δ = scaling · B A as the tensor is stored.

    `load()` gives fp32 (B, A): (m, k) and (k, n), or (E, m, k) and (E, k, n) for a stack.
    """

    load: Callable[[], tuple[Tensor, Tensor]]
    scaling: float

    def delta(self) -> Tensor:
        """scaling · B A in fp64."""
        b, a = self.load()
        return (b.to(torch.float64) @ a.to(torch.float64)) * self.scaling


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor that an adapter replaces."""

    indices: tuple[int, ...]
    values: TensorInfo
