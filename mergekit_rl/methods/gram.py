"""Inner products of flattened tensors in fp64, and sums with coefficients found from them."""

import numpy as np
import torch
from torch import Tensor

from mergekit_rl.methods.sparsify import pieces


def gram(tensors: list[Tensor]) -> np.ndarray:
    """⟨xᵢ, xⱼ⟩ of flattened tensors, (E, E) fp64."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    count = len(flat)
    found = torch.zeros(count, count, dtype=torch.float64)
    wide = None
    for start, stop, _ in pieces(flat[0]):
        if wide is None or wide.shape[1] != stop - start:
            wide = flat[0].new_empty(count, stop - start, dtype=torch.float64)
        for row, values in zip(wide, flat, strict=True):
            row.copy_(values[start:stop])
        for i in range(count):
            for j in range(i + 1):
                found[i, j] += torch.dot(wide[i], wide[j]).cpu()
    return (found + found.tril(-1).T).numpy()


def combined(tensors: list[Tensor], coefficients: list[float] | np.ndarray) -> Tensor:
    """Σcᵢxᵢ."""
    out = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
    flat = [tensor.reshape(-1) for tensor in tensors]
    merged = out.view(-1)
    for start, stop, _ in pieces(out):
        here = torch.mul(flat[0][start:stop], float(coefficients[0]), out=merged[start:stop])
        for values, c in zip(flat[1:], coefficients[1:], strict=True):
            here.add_(values[start:stop], alpha=float(c))
    return out


def root_mean_square(tensors: list[Tensor]) -> float:
    """Of the entries of all tensors; 0 where there are none."""
    count = sum(tensor.numel() for tensor in tensors)
    squares = sum(float(gram([tensor])[0, 0]) for tensor in tensors)
    return (squares / count) ** 0.5 if count else 0.0
