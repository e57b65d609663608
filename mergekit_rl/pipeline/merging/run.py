"""Merging checkpoints by a recipe: plan, run, result."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mergekit_rl.methods  # noqa: F401  registers the methods
from mergekit_rl.errors import EditError, UnusableInput
from mergekit_rl.io.output import check_output
from mergekit_rl.io.shards import SHARD_BYTES, shard
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.merging.compute import Merger, Totals, job, summed, two_pass
from mergekit_rl.pipeline.merging.documents import small_files
from mergekit_rl.pipeline.merging.inputs import open_inputs
from mergekit_rl.pipeline.merging.plan import Output, Plan
from mergekit_rl.pipeline.merging.planner import plan_merge
from mergekit_rl.pipeline.merging.streamed import MergedCheckpoint
from mergekit_rl.pipeline.options import DTYPES, resolve_devices
from mergekit_rl.pipeline.run import Job, Progress, default_workers, drain, run_jobs
from mergekit_rl.pipeline.summary import peak_memory
from mergekit_rl.pipeline.tensors import raw_bytes
from mergekit_rl.recipe.load import load

Written = "str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]"


@dataclass(frozen=True)
class Merged:
    """What `merge` did.

    Attributes:
        method: the merge method; `models`: as the recipe names them.
        merged: how many tensors were merged.
        copied: {reason: how many were passed on as they were}.
        dtype: that most of the output's tensors have.
        output_bytes: size of the tensor files; `peak_bytes`: of memory.
        seconds: of the whole run.
        notes: what the user should know.
    """

    method: str
    models: tuple[str, ...]
    merged: int
    copied: Mapping[str, int]
    dtype: str
    output_bytes: int
    peak_bytes: int
    seconds: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def merge(
    recipe: Written,
    out: "str | Path",
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Merged:
    """Merges models by a recipe into the folder `out`; see `merge_events` for the options."""
    return drain(merge_events(recipe, out, **options), progress)


def merge_events(
    recipe: Written,
    out: "str | Path",
    *,
    resume: bool = False,
    force: bool = False,
    **options: Any,
) -> Generator[Progress, None, Merged]:
    """`merge` as a generator: yields a `Progress` after every tensor.

    Everything that the recipe, headers and configs tell is checked before the first event.

    Args:
        recipe: a YAML file, a `rledit.json` of an earlier merge, the same as plain data, or a list
            of documents that use one another's results.
        out: the folder to write; it appears when it is complete.
        resume, force: as in `sar`.
        **options: `dtype` of the output, before what the recipe says; `device`, `workers` as in
            `sar`; `places` {model as the recipe names it: the folder where it lies instead};
            `shard_bytes` of tensors per output file.

    Raises:
        EditError: anything the user can fix, with the recipe's file, line and key where it is
            there.
    """
    started = time.perf_counter()
    run = Run.of(recipe, **options)
    out = Path(out)
    check_output(out, force=force, inputs=run.folders, resume=resume)
    files, index = shard(run.plan.tensors, run.shard_bytes)
    with Writer(out, files, run.key(), resume=resume, force=force) as writer:
        yield from run.write(writer, files)
        writer.finish(small_files(run.plans) | index)
    return run.merged(writer.size, started)


@dataclass(frozen=True)
class Run:
    """A recipe that is planned, and how it is to be run.

    Attributes:
        plan: of the last document; `earlier`: the results of others that stream into it.
        devices, workers, shard_bytes: see `merge_events`.
    """

    plan: Plan
    earlier: tuple[MergedCheckpoint, ...]
    devices: tuple[str, ...]
    workers: int | None
    shard_bytes: int

    @staticmethod
    def of(
        recipe: Written,
        *,
        dtype: str | None = None,
        device: str = "auto",
        places: Mapping[str, str] | None = None,
        workers: int | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> "Run":
        """Plans a recipe; raises as `merge_events`."""
        devices = resolve_devices(device)
        if dtype is not None and dtype not in DTYPES:
            raise EditError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
        documents = load(recipe)
        results: dict[str, MergedCheckpoint] = {}
        for one in documents[:-1]:
            with one.document.located():
                plan = plan_merge(one, open_inputs(one, places or {}, results))
                results[one.name] = MergedCheckpoint(one.name, plan)
        last = documents[-1]
        with last.document.located():
            plan = plan_merge(last, open_inputs(last, places or {}, results), dtype)
        if workers is None and devices == ("cpu",):
            workers = default_workers() + 1  # one of them waits for the disk
        return Run(plan, tuple(_used(plan)), devices, workers, shard_bytes)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all documents that are used, the last last."""
        return (*(one.plan for one in self.earlier), self.plan)

    @property
    def folders(self) -> list[Path]:
        """Of every model."""
        return [model.folder for plan in self.plans for model in plan.inputs.models]

    def key(self, *, times: bool = True) -> str:
        """What identifies the run; see `Plan.key`."""
        return " ".join(plan.key(times=times) for plan in self.plans)

    def merger(self) -> Generator[Progress, None, Merger]:
        """Runs the reductions over all tensors that come first, and returns what computes."""
        for one in self.earlier:
            one.totals = yield from self._totals(one.plan)
        totals = yield from self._totals(self.plan)
        return Merger(self.plan, totals)

    def write(self, writer: Writer, files: Mapping[str, Mapping[str, Any]]) -> Iterator[Progress]:
        """Computes and writes every tensor of `files` that no earlier run finished."""
        home = {name: file for file, tensors in files.items() for name in tensors}
        todo = {
            output.name: output
            for output in self.plan.outputs
            if output.name in home and output.name not in writer.records
        }
        try:
            merger = yield from self.merger()
            work = partial(_write, merger, todo, writer, home)
            jobs = [job(self.plan, output) for output in todo.values()]
            yield from run_jobs(jobs, None, work, self.workers, self.devices)
        except UnusableInput:
            writer.discard()
            raise

    def merged(self, size: int, started: float) -> Merged:
        """The result of a finished run.

        Args:
            size: of the output, in bytes.
            started: by `time.perf_counter`.
        """
        return Merged(
            method=self.plan.recipe.method.name,
            models=self.plan.inputs.labels,
            merged=len(self.plan.merged),
            copied={why: len(names) for why, names in self.plan.copied.items()},
            dtype=self.plan.dtype,
            output_bytes=size,
            peak_bytes=peak_memory(),
            seconds=time.perf_counter() - started,
            notes=self.plan.notes,
        )

    def _totals(self, plan: Plan) -> Generator[Progress, None, Totals]:
        """Runs the reductions of one plan's stages and method."""
        totals = Totals()
        if any(two_pass(call) for o in plan.merged for one in o.inputs for call in one.stages):
            sums = yield from self._pass(plan, Merger(plan).stage_totals)
            totals = Totals(stages=sums)
        if plan.recipe.method.totals is not None:
            sums = yield from self._pass(plan, Merger(plan, totals).method_totals)
            totals = Totals(totals.stages, sums)
        return totals

    def _pass(
        self, plan: Plan, reduce: Callable[[Output], list[float]]
    ) -> Generator[Progress, None, tuple[float, ...]]:
        outputs = {output.name: output for output in plan.merged}
        found: dict[str, list[float]] = {}

        def work(job: Job, _: None) -> list[float]:
            return reduce(outputs[job.name])

        jobs = [job(plan, output) for output in outputs.values()]
        yield from run_jobs(jobs, None, work, self.workers, self.devices, found)
        return summed(found)


def _used(plan: Plan) -> list[MergedCheckpoint]:
    """The results that a plan's models stream from, directly or through one another, in order."""
    found: list[MergedCheckpoint] = []
    for model in plan.inputs.models:
        if isinstance(model, MergedCheckpoint):
            found += [one for one in (*_used(model.plan), model) if one not in found]
    return found


def _write(
    merger: Merger,
    outputs: Mapping[str, Output],
    writer: Writer,
    home: Mapping[str, str],
    job: Job,
    _: None,
) -> None:
    """Computes and writes one tensor."""
    output = outputs[job.name]
    at = 0
    for piece in merger.pieces(output):
        data = raw_bytes(piece)
        writer.write(home[output.name], output.name, data, at)
        at += len(data)
    writer.commit(output.name, True)
