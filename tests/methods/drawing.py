"""Tensors and settings that the tests of the methods share."""

import numpy as np
import torch
from hypothesis import strategies as st

from mergekit_rl.registry import Context

SHAPES = ((), (0,), (1,), (6,), (7, 1), (1, 7), (3, 5), (2, 3, 4), (0, 3))
LETTERS = tuple("abcdefgh")
"""What tells the models of a test apart."""


def place(models=LETTERS, name="model.layers.1.mlp.up_proj.weight", **more):
    return Context(name=name, layer=1, layers=4, models=tuple(models), **more)


def exact(seed, shape, count, dtype=torch.float64):
    """(base, deltas) whose sums are exact in fp32; many entries are equal, opposite or zero."""
    rng = np.random.default_rng(seed)
    base = torch.tensor(rng.integers(-60, 60, shape) / 64, dtype=dtype)
    deltas = [torch.tensor(rng.integers(-6, 7, shape) / 1024, dtype=dtype) for _ in range(count)]
    return base, deltas


def smooth(seed, shape, count, dtype=torch.float64):
    """(base, deltas) of normal numbers."""
    rng = np.random.default_rng(seed)
    base = torch.tensor(rng.standard_normal(shape), dtype=dtype)
    deltas = [torch.tensor(1e-2 * rng.standard_normal(shape), dtype=dtype) for _ in range(count)]
    return base, deltas


def plain_settings(method, count):
    """The defaults, and 0.5 for what has none."""
    found = {}
    for setting in method.settings.values():
        value = 0.5 if setting.required else setting.default
        found[setting.parameter] = [value] * count if setting.per_model else value
    return found


WEIGHTS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 0.5, 1.0, 1.0, 2.0])
VALUES = {
    "weight": WEIGHTS,
    "density": st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0]),
    "epsilon": st.sampled_from([0.0, 0.002, 0.15]),
    "gamma": st.sampled_from([0.0, 0.01, 0.2, 0.6]),
    "lambda": st.sampled_from([-1.0, 0.0, 0.5, 1.0]),
    "t": st.sampled_from([0.0, 5e-7, 0.002, 0.3, 1.0]),
    "scale": WEIGHTS,
    "eps": st.sampled_from([0.0, 1e-8, 0.1]),
    "r": st.sampled_from([0.0, 0.1, 1.0]),
    "alpha": st.sampled_from([0.0, 0.2, 1.0]),
    "select_topk": st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    "max_iter": st.integers(1, 12),
    "tol": st.sampled_from([1e-9, 1e-5, 1e-2]),
}


@st.composite
def drawn_settings(draw, method, count):
    """Settings of a method for so many models; not always such that they go together."""
    found = {}
    for setting in method.settings.values():
        if setting.choices:
            values = st.sampled_from(setting.choices)
        elif setting.kind is bool:
            values = st.booleans()
        else:
            values = VALUES[setting.name]
        if setting.per_model:
            values = st.lists(values, min_size=count, max_size=count)
        found[setting.parameter] = draw(values)
    return found
