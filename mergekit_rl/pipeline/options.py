"""The settings of `rledit sar`, checked before anything is opened."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from mergekit_rl.errors import EditError
from mergekit_rl.pipeline.rank import Rank
from mergekit_rl.spectral.projection import PROJECTIONS, Projection
from mergekit_rl.spectral.svd import METHODS, Method

Rest = Literal["base", "rl"]
Save = Literal["core", "model", "both"]
DTYPES = {
    "float32": "F32", "fp32": "F32", "float16": "F16", "fp16": "F16",
    "bfloat16": "BF16", "bf16": "BF16", "float64": "F64", "fp64": "F64",
}  # fmt: skip


@dataclass(frozen=True)
class SarOptions:
    """What `sar` is to do; each field is the command's option of that name.

    Attributes:
        rank: kept of each update.
        base_rank: of the base's spectral space; `full` is all of it.
        projection: `spectral`, or `none` for a plain low-rank extraction of the update.
        scale: factor on the kept part.
        include, exclude: regular expressions searched in the targets' names.
        rest: whose tensors stand outside the targets: `base` or `rl`.
        save: `core`, `model` or `both`.
        dtype: of the output, as safetensors names it; None for the expert's.
        svd: how updates are decomposed.
        device: `cpu`, `cuda` or `cuda:i`.
        seed: of the decompositions' random starts.
    """

    rank: Rank
    base_rank: Rank
    projection: Projection
    scale: float
    include: str | None
    exclude: str | None
    rest: Rest
    save: Save
    dtype: str | None
    svd: Method
    device: str
    seed: int

    def __post_init__(self) -> None:
        if self.base_rank.energy is not None:
            raise EditError("--base-rank is energy:…, expected full, a share or a number")
        if not math.isfinite(self.scale):
            raise EditError(f"--scale is {self.scale}, expected a finite number")
        if self.rest == "rl" and self.save != "model":
            raise EditError(
                "--rest rl keeps the expert's tensors outside the targets, which a core cannot "
                "hold: add --save model"
            )

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, without what does not change the result."""
        found = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return found | {"rank": str(self.rank), "base_rank": str(self.base_rank)}

    def wants(self, name: str) -> bool:
        """Whether include and exclude let a target through."""
        return name_filter(self.include, self.exclude)(name)


def parse_options(
    *,
    rank: "str | int | float | Rank" = "0.01",
    base_rank: "str | int | float | Rank" = "full",
    projection: str = "spectral",
    scale: float = 1.0,
    include: str | None = None,
    exclude: str | None = None,
    rest: str = "base",
    save: str = "core",
    dtype: str | None = None,
    svd: str = "auto",
    device: str = "auto",
    seed: int = 0,
) -> SarOptions:
    """The options from what a user wrote.

    Raises:
        EditError: a value out of its range, with the range.
    """
    name_filter(include, exclude)
    if dtype is not None and dtype not in DTYPES:
        raise EditError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    return SarOptions(
        rank=Rank.parse(rank),
        base_rank=Rank.parse(base_rank, "--base-rank"),
        projection=one_of("--projection", projection, PROJECTIONS),
        scale=float(scale),
        include=include,
        exclude=exclude,
        rest=one_of("--rest", rest, get_args(Rest)),
        save=one_of("--save", save, get_args(Save)),
        dtype=DTYPES[dtype] if dtype else None,
        svd=one_of("--svd", svd, METHODS),
        device=resolve_device(device),
        seed=int(seed),
    )


def name_filter(include: str | None, exclude: str | None) -> Callable[[str], bool]:
    """Whether a name has the one pattern and not the other; None lets all through.

    Raises:
        EditError: a pattern is no regular expression.
    """
    compiled = []
    for what, pattern in (("--include", include), ("--exclude", exclude)):
        try:
            compiled.append(None if pattern is None else re.compile(pattern))
        except re.error as error:
            raise EditError(f"{what} {pattern!r} is no regular expression: {error}") from None
    has, lacks = compiled
    return lambda name: (
        (has is None or bool(has.search(name))) and not (lacks is not None and lacks.search(name))
    )


def one_of(what: str, value: str, allowed: tuple[str, ...]):
    """`value`, which must be among `allowed`."""
    if value not in allowed:
        raise EditError(f"{what} is {value!r}, expected one of {', '.join(allowed)}")
    return value


def resolve_device(device: str) -> str:
    """`auto` is the first CUDA device where there is one, else the CPU."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not match:
        raise EditError(f"--device is {device!r}, expected auto, cpu, cuda or cuda:0")
    if device != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(match[1] or 0) >= count:
            raise EditError(f"--device is {device}, and this machine has {count} CUDA devices")
    return device
