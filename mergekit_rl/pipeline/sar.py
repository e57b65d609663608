"""Extracting the core of an RL update: plan, run, result."""

import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from mergekit_rl.errors import UnusableInput
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.output import MARKER, check_output
from mergekit_rl.io.shards import SHARD_BYTES
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.documents import documents, sweep_marker
from mergekit_rl.pipeline.options import parse_options
from mergekit_rl.pipeline.pair import open_pair
from mergekit_rl.pipeline.plan import Files, Plan, plan_files, plan_sar
from mergekit_rl.pipeline.run import Job, Progress, drain, run_jobs
from mergekit_rl.pipeline.summary import Summary, summarise
from mergekit_rl.pipeline.tensors import Rewirer, measure_rank
from mergekit_rl.spectral.rank import Rank


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
) -> "Summary | list[Summary]":
    """Extracts the core of an RL update into the folder `out`, and returns what was kept.

    Every targeted weight's update Δ = W₁ − W₀ is cut to rank k and projected onto the spectral
    space of W₀; see `spectral.projection.Projector`.

    Args:
        base, rl: folders, Hub ids `org/name[@revision]`, or open checkpoints; `rl` may be a PEFT
            LoRA folder.
        out: the folder to write; it appears when it is complete.
        resume: continue a run that was killed; the bytes are those of an uninterrupted one.
        force: replace a folder that an earlier run wrote.
        workers: compute threads, ≥ 1; the result does not depend on it. None: one per CPU.
        progress: called after every tensor.
        **options: `rank`, `base_rank`, `projection`, `mask`, `order`, `norm_match`, `scale`,
            `include`, `exclude`, `rest`, `save`, `dtype`, `svd`, `device`, `seed`, `cache`, with
            the command's meanings; see `SarOptions`. A list of ranks makes a sweep: one
            decomposition per matrix, a folder `rank-…` each, and a list of summaries.

    Raises:
        EditError: anything the user can fix, before a byte is written where it can be known then.

    Source: Subspace-Aligned Rewiring (Zhang et al., 2026, arXiv:2607.03065).
    """
    run = sar_events(base, rl, out, resume=resume, force=force, workers=workers, **options)
    summaries = drain(run, progress)
    several = isinstance(options.get("rank"), list | tuple)
    return summaries if several else summaries[0]


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
) -> Generator[Progress, None, list[Summary]]:
    """`sar` as a generator: yields a `Progress` after every tensor, returns a summary per rank.

    Everything that headers and configs tell is checked before the first event.
    """
    started = time.perf_counter()
    parsed = parse_options(**options)
    out = Path(out)
    pair = open_pair(base, rl)
    check_output(out, force=force, inputs=[pair.base.folder, pair.expert.folder], resume=resume)
    plan = plan_sar(pair, parsed)
    variants = []
    for rank in parsed.ranks:
        ranks = yield from known_ranks(plan, rank, plan.targets, workers)
        variants.append(plan_files(plan, rank, ranks, shard_bytes))
    layout = {file: tensors for files in variants for file, tensors in files.layout.items()}
    with Writer(out, layout, plan.key(), resume=resume, force=force) as writer:
        yield from rewire_all(plan, variants, writer, workers)
        return finish(plan, variants, writer, started)


def rewire_all(
    plan: Plan,
    variants: Sequence[Files],
    writer: Writer,
    workers: int | None,
    units: Container[str] | None = None,
) -> Iterator[Progress]:
    """Does the work on every tensor, or on those of `units`, that no earlier run finished."""
    rewirer = Rewirer(plan, variants, writer)
    jobs = []
    for name in plan.names:
        unit = rewirer.unit(name)
        if unit not in writer.records and (units is None or unit in units):
            jobs.append(job(plan, name))
    try:
        yield from run_jobs(jobs, rewirer.load, rewirer.work, workers, plan.options.devices)
    except UnusableInput:
        writer.discard()
        raise


def finish(plan: Plan, variants: Sequence[Files], writer: Writer, started: float) -> list[Summary]:
    """Adds the small files, completes the output, and returns a summary per rank."""
    small: dict[str, bytes | Path] = {}
    summaries = []
    for index, files in enumerate(variants):
        records = _by_tensor(writer.records, index)
        summary = summarise(plan, files, records, seconds=time.perf_counter() - started)
        small |= documents(plan, files, records, summary)
        summaries.append(summary)
    small.setdefault(MARKER, sweep_marker(plan))
    writer.finish(small)
    seconds = time.perf_counter() - started
    return [
        summary.finished(seconds, files.size)
        for summary, files in zip(summaries, variants, strict=True)
    ]


def known_ranks(
    plan: Plan, rank: Rank, targets: Sequence[str], workers: int | None
) -> Generator[Progress, None, dict[str, int]]:
    """{target: rank}: from the shapes, or by a pass over the updates for `energy:…`."""
    shapes = {name: plan.pair.base.tensors[name].shape for name in targets}
    if rank.energy is None:
        return {name: rank.of(min(shape[-2:])) for name, shape in shapes.items()}
    jobs = [job(plan, name) for name in targets]
    measure = partial(measure_rank, plan, rank.energy)
    ranks: dict[str, int] = {}
    yield from run_jobs(jobs, None, measure, workers, plan.options.devices, ranks)
    return {name: ranks[name] for name in targets}


def job(plan: Plan, name: str) -> Job:
    """What the work on one tensor takes."""
    pair = plan.pair
    infos = [pair.base.tensors.get(name)]
    infos.append(pair.expert.tensors.get(pair.names.get(name, name)))
    size = sum(info.nbytes for info in infos if info is not None)
    info = infos[0] or infos[1]
    if name not in plan.targets or len(info.shape) < 2:
        # In pieces, but for what an adapter touches.
        touched = isinstance(pair.expert, AdaptedCheckpoint) and pair.expert.touches(
            pair.names.get(name, name)
        )
        memory = 2**26 + (24 * prod(info.shape) if touched else 0)
        return Job(name, cost=100 * prod(info.shape) / 1e6, memory=memory, size=size)
    m, n = info.shape[-2:]
    # Beside the inputs as stored: the update in fp64 and fp32, the base in fp64, two Gram matrices.
    memory = size // max(1, prod(info.shape[:-2])) + 20 * m * n + 16 * min(m, n) ** 2
    return Job(name, cost=prod(info.shape) * min(m, n) / 1e6, memory=memory, size=size)


def _by_tensor(records: Mapping[str, Any], variant: int) -> dict[str, Any]:
    """{tensor: its record} of one variant, in an order that is not that of the work: sums round by
    order."""
    found = {name: record for unit in records.values() for name, record in unit.items()}
    return {name: found[name][variant] for name in sorted(found)}
