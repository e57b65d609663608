"""The settings of `rledit sar`, checked before anything is opened."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from mergekit_rl.errors import EditError
from mergekit_rl.io.cache import Cache, usable_cache
from mergekit_rl.spectral.projection import MASKS, PROJECTIONS, Mask, Projection
from mergekit_rl.spectral.rank import Rank
from mergekit_rl.spectral.svd import METHODS, Method

Rest = Literal["base", "rl"]
Save = Literal["core", "model", "both"]
Order = Literal["truncate-first", "project-first"]
DTYPES = {
    "float32": "F32", "fp32": "F32", "float16": "F16", "fp16": "F16",
    "bfloat16": "BF16", "bf16": "BF16", "float64": "F64", "fp64": "F64",
}  # fmt: skip


@dataclass(frozen=True)
class SarOptions:
    """What `sar` is to do; each field is the command's option of that name.

    Attributes:
        ranks: kept of each update; several make one output each, from one decomposition.
        base_rank: of the base's spectral space; `full` is all of it.
        projection: `spectral`; or a control: `random` subspaces of the same dimensions, `none`
            for a plain low-rank extraction of the update.
        mask: what of the rewiring matrix is kept: `full`, `diagonal` or `off-diagonal`.
        order: `truncate-first`, or `project-first` for the best rank-k part of the update's
            projection.
        norm_match: a rank whose spectral core's norm each target's kept part is scaled to; None
            for its own norm.
        scale: factor on the kept part.
        include, exclude: regular expressions searched in the targets' names.
        rest: whose tensors stand outside the targets: `base` or `rl`.
        save: `core`, `model` or `both`.
        dtype: of the output, as safetensors names it; None for the expert's.
        svd: how updates are decomposed.
        devices: what computes, `cpu` or `cuda:0` and further.
        seed: of the decompositions' random starts and of random subspaces.
        cache: where decompositions are looked for and kept; None for nowhere.
    """

    ranks: tuple[Rank, ...]
    base_rank: Rank
    projection: Projection
    mask: Mask
    order: Order
    norm_match: Rank | None
    scale: float
    include: str | None
    exclude: str | None
    rest: Rest
    save: Save
    dtype: str | None
    svd: Method
    devices: tuple[str, ...]
    seed: int
    cache: Cache | None = None

    def __post_init__(self) -> None:
        if self.base_rank.energy is not None:
            raise EditError("--base-rank is energy:…, expected full, a share or a number")
        if self.norm_match is not None and self.norm_match.energy is not None:
            raise EditError("--norm-match is energy:…, expected a share or a number")
        if not self.ranks:
            raise EditError("--rank names no rank")
        if len({str(rank) for rank in self.ranks}) < len(self.ranks):
            raise EditError(
                f"--rank names one twice ({', '.join(map(str, self.ranks))}), expected each once"
            )
        if self.mask != "full" and (self.projection != "spectral" or self.order == "project-first"):
            raise EditError(
                f"--mask {self.mask} is of the rewiring matrix, which only --projection spectral "
                "and --order truncate-first form: leave one of them out"
            )
        if self.projection == "none" and not (
            self.base_rank == Rank() and self.order == "truncate-first"
        ):
            raise EditError(
                "--projection none knows no base space: leave --base-rank and --order out"
            )
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
        del found["ranks"], found["devices"], found["cache"]
        match = self.norm_match
        return (
            {"rank": ", ".join(map(str, self.ranks))}
            | found
            | {
                "base_rank": str(self.base_rank),
                "norm_match": None if match is None else str(match),
            }
        )

    def wants(self, name: str) -> bool:
        """Whether include and exclude let a target through."""
        return name_filter(self.include, self.exclude)(name)


def parse_options(
    *,
    rank: "str | int | float | Rank | Sequence[str | int | float | Rank]" = "0.01",
    base_rank: "str | int | float | Rank" = "full",
    projection: str = "spectral",
    mask: str = "full",
    order: str = "truncate-first",
    norm_match: "str | int | float | Rank | None" = None,
    scale: float = 1.0,
    include: str | None = None,
    exclude: str | None = None,
    rest: str = "base",
    save: str = "core",
    dtype: str | None = None,
    svd: str = "auto",
    device: str = "auto",
    seed: int = 0,
    cache: bool | None = None,
) -> SarOptions:
    """The options from what a user wrote; `cache` None is for several ranks alone.

    Raises:
        EditError: a value out of its range, with the range, or one of the cache's variables.
    """
    name_filter(include, exclude)
    ranks = rank if isinstance(rank, list | tuple) else [rank]
    if dtype is not None and dtype not in DTYPES:
        raise EditError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    return SarOptions(
        ranks=tuple(Rank.parse(one) for one in ranks),
        base_rank=Rank.parse(base_rank, "--base-rank"),
        projection=one_of("--projection", projection, PROJECTIONS),
        mask=one_of("--mask", mask, MASKS),
        order=one_of("--order", order, get_args(Order)),
        norm_match=None if norm_match is None else Rank.parse(norm_match, "--norm-match"),
        scale=float(scale),
        include=include,
        exclude=exclude,
        rest=one_of("--rest", rest, get_args(Rest)),
        save=one_of("--save", save, get_args(Save)),
        dtype=DTYPES[dtype] if dtype else None,
        svd=one_of("--svd", svd, METHODS),
        devices=resolve_devices(device),
        seed=int(seed),
        cache=usable_cache() if (len(ranks) > 1 if cache is None else cache) else None,
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


def resolve_devices(device: str) -> tuple[str, ...]:
    """`cpu`; `cuda` for every CUDA device, `cuda:0` or `cuda:0,2` for those; `auto` for every CUDA
    device where there is one, else the CPU.

    Raises:
        EditError: another form, or a device that is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        device = "cuda" if count else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d{1,4}(?:,\d{1,4})*))?", device)
    if not match:
        raise EditError(f"--device is {device!r}, expected auto, cpu, cuda, cuda:0 or cuda:0,1")
    if device == "cpu":
        return ("cpu",)
    wanted = [int(number) for number in match[1].split(",")] if match[1] else range(max(1, count))
    if len(set(wanted)) < len(wanted) or max(wanted) >= count:
        raise EditError(f"--device is {device}, and this machine has {count} CUDA devices")
    return tuple(f"cuda:{number}" for number in wanted)
