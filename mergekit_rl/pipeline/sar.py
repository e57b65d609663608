"""Extracting the core of an RL update: plan, run, result."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.output import check_output
from mergekit_rl.io.shards import SHARD_BYTES
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.documents import core_files, model_files
from mergekit_rl.pipeline.options import parse_options
from mergekit_rl.pipeline.pair import open_pair
from mergekit_rl.pipeline.plan import Files, Plan, plan_files, plan_sar
from mergekit_rl.pipeline.run import Job, Progress, drain, run_jobs
from mergekit_rl.pipeline.summary import Summary, summarise
from mergekit_rl.pipeline.tensors import Rewirer, measure_rank


def sar(
    base: "str | Path | Checkpoint",
    rl: "str | Path | Checkpoint",
    out: "str | Path",
    *,
    resume: bool = False,
    force: bool = False,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Summary:
    """Extracts the core of an RL update into the folder `out`, and returns what was kept.

    Every targeted weight's update Δ = W₁ − W₀ is cut to rank k and projected onto the spectral
    space of W₀; see `spectral.projection.rewire`.

    Args:
        base, rl: folders, Hub ids `org/name[@revision]`, or open checkpoints; `rl` may be a PEFT
            LoRA folder.
        out: the folder to write; it appears when it is complete.
        resume: continue a run that was killed; the bytes are those of an uninterrupted one.
        force: replace a folder that an earlier run wrote.
        workers: compute threads, ≥ 1; the result does not depend on it. None: one per CPU.
        progress: called after every tensor.
        **options: `rank`, `base_rank`, `projection`, `scale`, `include`, `exclude`, `rest`, `save`,
            `dtype`, `svd`, `device`, `seed`, with the command's meanings; see `SarOptions`.

    Raises:
        EditError: anything the user can fix, before a byte is written where it can be known then.

    Source: Subspace-Aligned Rewiring (Zhang et al., 2026, arXiv:2607.03065).
    """
    run = sar_events(base, rl, out, resume=resume, force=force, workers=workers, **options)
    return drain(run, progress)


def sar_events(
    base: "str | Path | Checkpoint",
    rl: "str | Path | Checkpoint",
    out: "str | Path",
    *,
    resume: bool = False,
    force: bool = False,
    workers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    **options: Any,
) -> Generator[Progress, None, Summary]:
    """`sar` as a generator: yields a `Progress` after every tensor, returns the summary.

    Everything that headers and configs tell is checked before the first event.
    """
    started = time.perf_counter()
    parsed = parse_options(**options)
    out = Path(out)
    pair = open_pair(base, rl)
    check_output(out, force=force, inputs=[pair.base.folder, pair.expert.folder], resume=resume)
    plan = plan_sar(pair, parsed)
    ranks = yield from _ranks(plan, workers)
    files = plan_files(plan, ranks, shard_bytes)
    with Writer(out, files.layout, plan.key(), resume=resume, force=force) as writer:
        yield from _rewire(plan, files, writer, workers)
        records = _by_tensor(writer.records)
        summary = summarise(plan, files, records, seconds=time.perf_counter() - started)
        small: dict[str, bytes | Path] = {}
        if plan.saves_core:
            small |= core_files(plan, files, records, summary, plan.folder("core"))
        if plan.saves_model:
            small |= model_files(plan, files, summary, plan.folder("model"))
        writer.finish(small)
    return summary.finished(time.perf_counter() - started, writer.size)


def _ranks(plan: Plan, workers: int | None) -> Generator[Progress, None, Mapping[str, int]]:
    """{target: rank}: from the shapes, or by a pass over the updates for `energy:…`."""
    options = plan.options
    shapes = {name: plan.pair.base.tensors[name].shape for name in plan.targets}
    if options.rank.energy is None:
        return {name: options.rank.of(min(shape[-2:])) for name, shape in shapes.items()}
    jobs = [_job(plan, name) for name in plan.targets]
    measure = partial(measure_rank, plan, options.rank.energy)
    ranks: dict[str, int] = {}
    yield from run_jobs(jobs, None, measure, workers, options.device, ranks)
    return {name: ranks[name] for name in plan.targets}


def _rewire(plan: Plan, files: Files, writer: Writer, workers: int | None) -> Iterator[Progress]:
    """Runs every tensor that no earlier run finished; a group of the adapter is one unit."""
    rewirer = Rewirer(plan, files, writer)
    jobs = [_job(plan, name) for name in rewirer.names if rewirer.unit(name) not in writer.records]
    yield from run_jobs(jobs, rewirer.load, rewirer.work, workers, plan.options.device)


def _job(plan: Plan, name: str) -> Job:
    pair = plan.pair
    infos = [pair.base.tensors.get(name)]
    infos.append(pair.expert.tensors.get(pair.names.get(name, name)))
    size = sum(info.nbytes for info in infos if info is not None)
    info = infos[0] or infos[1]
    if name not in plan.targets or len(info.shape) < 2:
        return Job(name, cost=100 * prod(info.shape) / 1e6, memory=2**26, size=size)
    m, n = info.shape[-2:]
    # Beside the inputs as stored: the update in fp64 and fp32, the base in fp64, two Gram matrices.
    memory = size // max(1, prod(info.shape[:-2])) + 20 * m * n + 16 * min(m, n) ** 2
    return Job(name, cost=prod(info.shape) * min(m, n) / 1e6, memory=memory, size=size)


def _by_tensor(records: Mapping[str, Any]) -> dict[str, Any]:
    """{tensor: its record}, in an order that is not that of the work: sums round by order."""
    found = {name: record for unit in records.values() for name, record in unit.items()}
    return {name: found[name] for name in sorted(found)}
