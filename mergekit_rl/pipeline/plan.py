"""What `sar` will do to every tensor, from headers and configs alone."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from mergekit_rl import __version__
from mergekit_rl.errors import EditError
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.adapter_layout import Group, adapter_layout
from mergekit_rl.io.checkpoint import FLOATS
from mergekit_rl.io.header import tensor_bytes
from mergekit_rl.io.modules import Modules
from mergekit_rl.io.names import is_projection
from mergekit_rl.io.shards import SHARD_BYTES, shard
from mergekit_rl.io.writer import Layout
from mergekit_rl.pipeline.donor import Donor, choose_donor
from mergekit_rl.pipeline.options import SarOptions
from mergekit_rl.pipeline.pair import Pair
from mergekit_rl.spectral.rank import Rank

ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True)
class Plan:
    """What is done to every tensor, and what the output holds.

    Attributes:
        pair, options: what is edited and how.
        targets: names of the base's tensors that are edited.
        model: {name: (dtype, shape)} of the whole edited model, named as its donor names them.
        donor: where config and side files come from.
    """

    pair: Pair
    options: SarOptions
    targets: tuple[str, ...]
    model: Mapping[str, tuple[str, tuple[int, ...]]]
    donor: Donor

    @property
    def saves_core(self) -> bool:
        """Whether the output has a core."""
        return self.options.save in ("core", "both")

    @property
    def saves_model(self) -> bool:
        """Whether the output has the whole edited model."""
        return self.options.save in ("model", "both")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every tensor that is worked on: the base's, and the expert's own where they are kept."""
        own: list[str] = []
        if self.options.rest == "rl":
            known = set(self.pair.names.values())
            own = [name for name in self.pair.expert.tensors if name not in known]
        return (*self.pair.base.tensors, *own)

    def output_dtype(self, name: str) -> str:
        """The dtype the base's tensor `name` has in the output."""
        return output_dtype(self.pair, self.options, name)

    def key(self, *, times: bool = True) -> str:
        """Identifies options and inputs, what a resume must agree with; without the files' times,
        copies of the inputs agree too."""
        parts = [
            __version__,
            self.options.as_dict(),
            self.pair.base.fingerprint(times=times),
            self.pair.expert.fingerprint(times=times),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Files:
    """Where everything of one rank lies in the output, once it is known for every target.

    Attributes:
        options: of the run, with this rank alone.
        core_at, model_at: folders within the output, "" or ending in a slash.
        ranks: {target: rank k its update is cut to}.
        stored: {target: rank of its stored factors}, less than k where the base's space is
            smaller.
        layout: all tensor files.
        groups: what fills the adapter's tensors.
        adapter_config: None without a core.
        model_file: {name in the output model: its file}.
        index: the shards' index file, {} where one file holds the model.
    """

    options: SarOptions
    core_at: str
    model_at: str
    ranks: Mapping[str, int]
    stored: Mapping[str, int]
    layout: Layout
    groups: tuple[Group, ...]
    adapter_config: Mapping[str, Any] | None
    model_file: Mapping[str, str]
    index: Mapping[str, bytes]

    @cached_property
    def group_of(self) -> dict[str, Group]:
        """{target: its group of the adapter}; empty without a core."""
        return {name: group for group in self.groups for name in group.members}

    def members(self, name: str) -> tuple[str, ...]:
        """The tensors that are finished together with `name`: its group, or itself. The first names
        the unit; it does not depend on the rank."""
        group = self.group_of.get(name)
        return group.members if group else (name,)

    @property
    def size(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor_bytes(*t) for tensors in self.layout.values() for t in tensors.values())


def plan_sar(pair: Pair, options: SarOptions) -> Plan:
    """Decides targets, output tensors and donor.

    Raises:
        EditError: no target, a target that the expert lacks or has in another shape, or a rest that
            cannot be combined.
    """
    base = pair.base
    if isinstance(base, AdaptedCheckpoint) and options.save != "model":
        raise EditError(
            f"{base.ref} is an adapter or core, and a core over it could not be opened: make it a "
            "whole model first (rledit apply, or PEFT's merge_and_unload), or use --save model"
        )
    projections = [
        name
        for name, info in base.tensors.items()
        if info.dtype in FLOATS and is_projection(name, info.shape)
    ]
    targets = tuple(name for name in projections if options.wants(name))
    if not targets:
        raise EditError(_no_targets(pair, options, projections))
    for name in targets:
        if name not in pair.names:
            raise EditError(f"{pair.expert.ref} has no {name}: it was not trained from {base.ref}")
        if not pair.same_shape(name):
            theirs = pair.expert.tensors[pair.names[name]].shape
            raise EditError(
                f"{name} is {base.tensors[name].shape} in {base.ref} and {theirs} in "
                f"{pair.expert.ref}: experts must be trained from this base"
            )
    return Plan(pair, options, targets, _model(pair, options), choose_donor(pair, options))


def plan_files(
    plan: Plan, rank: Rank, ranks: Mapping[str, int], shard_bytes: int = SHARD_BYTES
) -> Files:
    """Lays out the output of one rank, which is {target: ranks[target]}."""
    at = f"rank-{str(rank).replace(':', '-')}/" if len(plan.options.ranks) > 1 else ""
    core_at, model_at = (
        f"{at}{part}/" if plan.options.save == "both" else at for part in ("core", "model")
    )
    stored = {name: _stored_rank(plan, name, k) for name, k in ranks.items()}
    layout: dict[str, Any] = {}
    groups: list[Group] = []
    config = None
    model_file: dict[str, str] = {}
    index: dict[str, bytes] = {}
    if plan.saves_core:
        base = plan.pair.base
        modules = Modules({name: info.shape for name, info in base.tensors.items()}, base.config)
        # PEFT opens it from wherever it runs.
        ref = str(base.folder.resolve()) if base.revision is None else base.name
        config, groups = adapter_layout(modules, stored, ref)
        if base.revision:
            config["revision"] = base.revision
        layout[core_at + ADAPTER] = {
            key: ("F32", shape) for group in groups for key, (shape, _) in group.tensors.items()
        }
    if plan.saves_model:
        files, index = shard(plan.model, shard_bytes)
        for file, tensors in files.items():
            layout[model_at + file] = tensors
            model_file |= dict.fromkeys(tensors, model_at + file)
        index = {model_at + file: content for file, content in index.items()}
    options = replace(plan.options, ranks=(rank,))
    return Files(
        options, core_at, model_at, ranks, stored, layout, tuple(groups), config, model_file, index
    )


def output_dtype(pair: Pair, options: SarOptions, name: str) -> str:
    """`--dtype`, else the expert's dtype, else the base's; integers stay as they are."""
    own = pair.base.tensors[name].dtype
    if own not in FLOATS:
        return own
    if options.dtype:
        return options.dtype
    theirs = pair.names.get(name)
    found = pair.expert.tensors[theirs].dtype if theirs else own
    return found if found in FLOATS else own


def _model(pair: Pair, options: SarOptions) -> dict[str, tuple[str, tuple[int, ...]]]:
    if options.rest == "base":
        return {
            name: (output_dtype(pair, options, name), info.shape)
            for name, info in pair.base.tensors.items()
        }
    return {
        name: (
            options.dtype if options.dtype and info.dtype in FLOATS else info.dtype,
            info.shape,
        )
        for name, info in pair.expert.tensors.items()
    }


def _no_targets(pair: Pair, options: SarOptions, projections: list[str]) -> str:
    if not projections:
        return (
            f"{pair.base.ref} holds no attention or MLP projection (a matrix named ….weight in a "
            "numbered layer): nothing to edit"
        )
    chosen = " and ".join(
        f"--{what} {pattern!r}"
        for what, pattern in (("include", options.include), ("exclude", options.exclude))
        if pattern is not None
    )
    return (
        f"{chosen} leaves none of the {len(projections)} projections, such as {projections[0]}; "
        "only projections of attention and MLP are edited"
    )


def _stored_rank(plan: Plan, name: str, k: int) -> int:
    """Rank of a target's factors: less than k where the base's space is smaller, b with a mask."""
    if plan.options.projection == "none":
        return k
    b = plan.options.base_rank.of(min(plan.pair.base.tensors[name].shape[-2:]))
    return min(k, b) if plan.options.mask == "full" else b


def stored_numbers(plan: Plan, ranks: Mapping[str, int]) -> int:
    """Σ k(m + n): how many numbers the factors are."""
    total = 0
    for name in plan.targets:
        shape = plan.pair.base.tensors[name].shape
        total += prod(shape[:-2]) * ranks[name] * sum(shape[-2:])
    return total
