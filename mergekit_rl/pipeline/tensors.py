"""The work on one tensor: read, rewire or copy, write, and the figures that tell what happened."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mergekit_rl.errors import UnusableInput
from mergekit_rl.io.checkpoint import FLOATS, TORCH_DTYPES, Checkpoint
from mergekit_rl.io.digest import ValueDigest
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.kept import rank_kept
from mergekit_rl.pipeline.plan import ADAPTER, Files, Plan
from mergekit_rl.pipeline.rewired import rewired
from mergekit_rl.pipeline.run import Job, current_device
from mergekit_rl.spectral.edit import edit, visibility
from mergekit_rl.spectral.randomness import keyed_generator
from mergekit_rl.spectral.thin import energy

Record = dict[str, Any]
Factors = tuple[Tensor, Tensor]


def raw_bytes(tensor: Tensor) -> memoryview:
    """A CPU tensor's bytes, row-major."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def fitting(cast: Tensor, name: str) -> Tensor:
    """A tensor as cast for the output.

    Raises:
        UnusableInput: it overflowed the dtype.
    """
    if cast.dtype.is_floating_point and cast.numel():
        least, most = torch.aminmax(cast)
        if not (math.isfinite(float(least)) and math.isfinite(float(most))):
            dtype = str(cast.dtype).removeprefix("torch.")
            raise UnusableInput(
                f"{name} overflows {dtype}: choose a --dtype of wider range, bfloat16 or float32"
            )
    return cast


def measure_rank(plan: Plan, share: float, job: Job, _: None) -> int:
    """The rank that keeps `share` of a target's update: the largest over a stack's matrices."""
    base, name = plan.pair.base, job.name
    rank = 1
    for index in matrices(base, name):
        delta = plan.pair.delta(name, index)
        if delta is not None:
            w0 = base.read(name, index).to(current_device())
            rank = max(rank, rank_kept(plan.options.cache, delta(w0), share))
    return rank


class Rewirer:
    """Does the jobs of a run, and writes each tensor as it is done.

    A target's factors wait until their group of the adapter is complete; the group is the unit that
    is committed. A record is a list: of what happened for each rank of a sweep.
    """

    def __init__(self, plan: Plan, variants: Sequence[Files], writer: Writer) -> None:
        self._plan = plan
        self._variants = variants
        self._writer = writer
        self._waiting: dict[str, dict[str, tuple[list[Factors], list[Record]]]] = {}
        self._mutex = threading.Lock()
        self._targets = set(plan.targets)

    def unit(self, name: str) -> str:
        """What is committed when the tensor's work is done."""
        return self._variants[0].members(name)[0]

    def load(self, job: Job) -> tuple[Tensor, Any, float] | None:
        """W₀, what forms Δ, and the seconds both took; None for what is read in pieces."""
        name = job.name
        pair = self._plan.pair
        if name not in self._targets or len(pair.base.tensors[name].shape) != 2:
            return None
        started = time.perf_counter()
        w0 = pair.base.read(name)
        delta = pair.delta(name)
        return w0, delta, time.perf_counter() - started

    def work(self, job: Job, loaded: Any) -> None:
        name = job.name
        if name in self._targets:
            self._commit(name, *self._rewire(name, loaded))
        else:
            self._writer.commit(name, {name: [self._copy(name)] * len(self._variants)})

    def _rewire(self, name: str, loaded: Any) -> tuple[list[Factors], list[Record]]:
        """Edits a target, matrix by matrix where it is a stack; for every variant."""
        pair, info = self._plan.pair, self._plan.pair.base.tensors[name]
        digest = ValueDigest(info.shape)
        dtype = TORCH_DTYPES[self._plan.output_dtype(name)]
        records: list[Record] = [
            {"rank": files.stored[name], "shape": list(info.shape)} for files in self._variants
        ]
        factors: list[list[Factors]] = [[] for _ in self._variants]
        at = 0
        for index in matrices(pair.base, name):
            clock = _Clock()
            if loaded is None:
                w0 = pair.base.read(name, index)
                form = pair.delta(name, index)
                reading = clock.lap()
            else:
                w0, form, reading = loaded
            digest.update(w0)
            edits = self._matrix(name, index or 0, w0, form, dtype)
            computing, writing, size = clock.lap(), 0.0, 0
            for variant, (figures, (b, a)) in enumerate(edits):
                factors[variant].append((b, a))
                _add(records[variant], figures)
                if self._plan.saves_model:
                    # On the CPU wherever the factors came from: `apply` sums there too.
                    data = raw_bytes(fitting(edit(w0, b, a, dtype), name))
                    size = len(data)
                    computing += clock.lap()
                    self._write_model(self._variants[variant], name, data, at)
                    writing += clock.lap()
            at += size
            for record in records:
                _add(record, {"reading": reading, "computing": computing, "writing": writing})
        for record in records:
            record["digest"] = digest.hexdigest()
        if len(info.shape) == 2:
            return [one[0] for one in factors], records
        stacked = [tuple(torch.stack(p) for p in zip(*one, strict=True)) for one in factors]
        return stacked, records

    def _matrix(
        self, name: str, index: int, w0: Tensor, form: Any, dtype: torch.dtype
    ) -> list[tuple[Record, Factors]]:
        """For every variant the factors of one matrix, of the planned rank and on the CPU, and its
        figures."""
        options = self._plan.options
        wide = torch.float64 if w0.dtype == torch.float64 else torch.float32
        w0 = w0.to(current_device()).to(wide)
        ranks = [files.ranks[name] for files in self._variants]
        base_energy = energy(w0)
        found = []
        for stored, (update, kept) in zip(
            [files.stored[name] for files in self._variants],
            rewired(
                w0,
                torch.zeros_like(w0) if form is None else form(w0),
                ranks,
                options,
                keyed_generator(options.seed, name, index),
                keyed_generator(options.seed, f"{name} space", index),
            ),
            strict=True,
        ):
            b, a = _padded(kept.B, kept.A, stored)
            seen = visibility(w0, b, a, dtype)
            figures = {
                "base_energy": base_energy,
                "update_energy": update.energy,
                "truncated_energy": update.kept,
                "kept_energy": kept.kept,
                "chance_energy": None if kept.chance is None else update.kept * kept.chance,
                "core_energy": kept.kept * kept.scale**2,
                "rounding_energy": seen.rounding,
                "changed": seen.changed,
                "rewiring_numbers": kept.base_rank**2,
                "svd": update.method,
            }
            found.append((figures, (b.cpu(), a.cpu())))
        return found

    def _copy(self, name: str) -> Record:
        """Passes a tensor outside the targets on, and measures the update that is left."""
        plan, pair = self._plan, self._plan.pair
        clock = _Clock()
        record: Record = {"base_energy": 0.0, "update_energy": 0.0}
        theirs = pair.names.get(name)
        if name not in pair.base.tensors:  # the expert's alone
            self._copy_pieces(pair.expert, name)
            return record | {"writing": clock.lap()}
        info = pair.base.tensors[name]
        digest = ValueDigest(info.shape)
        touched = theirs is not None and pair.touches(name)
        comparable = touched and pair.same_shape(name)
        other = pair.expert.pieces(theirs) if comparable else None
        for piece in pair.base.pieces(name):
            digest.update(piece)
            if info.dtype in FLOATS:
                record["base_energy"] += energy(piece)
            if other is not None:
                record["update_energy"] += _difference(piece, next(other))
        record |= {"digest": digest.hexdigest(), "not_compared": touched and not comparable}
        record["reading"] = clock.lap()
        if plan.saves_model and plan.options.rest == "base":
            self._copy_pieces(pair.base, name)
        elif plan.saves_model and theirs is not None:
            self._copy_pieces(pair.expert, theirs)
        return record | {"writing": clock.lap()}

    def _copy_pieces(self, source: Checkpoint, name: str) -> None:
        """Writes a tensor of the source, and of the output model, as it is."""
        dtype = TORCH_DTYPES[self._plan.model[name][0]]
        at = 0
        for piece in source.pieces(name):
            data = raw_bytes(fitting(piece.to(dtype), name))
            for files in self._variants:
                self._writer.write(files.model_file[name], name, data, at)
            at += len(data)

    def _write_model(self, files: Files, name: str, data: memoryview, at: int) -> None:
        if self._plan.options.rest == "rl":
            name = self._plan.pair.names[name]
        self._writer.write(files.model_file[name], name, data, at)

    def _commit(self, name: str, factors: list[Factors], records: list[Record]) -> None:
        """Commits a target, or its whole group of the adapter once the last member is done."""
        if name not in self._variants[0].group_of:
            self._writer.commit(name, {name: records})
            return
        members = self._variants[0].members(name)
        unit = members[0]
        with self._mutex:
            waiting = self._waiting.setdefault(unit, {})
            waiting[name] = (factors, records)
            if len(waiting) < len(members):
                return
            del self._waiting[unit]
        clock = _Clock()
        for variant, files in enumerate(self._variants):
            every = {member: waiting[member][0][variant] for member in members}
            for key, (_, build) in files.group_of[unit].tensors.items():
                self._writer.write(files.core_at + ADAPTER, key, raw_bytes(build(every)))
            records[variant]["writing"] += clock.lap()
        self._writer.commit(unit, {member: waiting[member][1] for member in members})


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """‖theirs − ours‖²; of integers, how many differ."""
    if ours.is_floating_point() and theirs.is_floating_point():
        both = {ours.dtype, theirs.dtype}
        wide = torch.float64 if torch.float64 in both else torch.float32
        return energy(theirs.to(wide).sub_(ours.to(wide)))
    return float((theirs != ours).sum())


class _Clock:
    def __init__(self) -> None:
        self._at = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        self._at, lap = now, now - self._at
        return lap


def matrices(checkpoint: Checkpoint, name: str) -> list[int | None]:
    """The indices of a tensor's matrices: [None] for a matrix itself."""
    shape = checkpoint.tensors[name].shape
    return [None] if len(shape) == 2 else list(range(shape[0]))


def _padded(b: Tensor, a: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors of the planned rank: zeros where the base's space allowed fewer."""
    missing = rank - b.shape[1]
    if missing == 0:
        return b, a
    return (
        torch.cat([b, b.new_zeros(b.shape[0], missing)], 1),
        torch.cat([a, a.new_zeros(missing, a.shape[1])]),
    )


def _add(record: Record, figures: Record) -> None:
    """Adds the figures of a matrix to its tensor's."""
    for key, value in figures.items():
        plain = value is None or isinstance(value, str)
        record[key] = value if plain else record.get(key, 0) + value
