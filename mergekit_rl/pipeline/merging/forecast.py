"""What a merge would do, need and take; nothing is written."""

import resource
import sys
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from mergekit_rl.io.shards import shard
from mergekit_rl.io.tensor_files import TensorFiles
from mergekit_rl.pipeline.merging.compute import job
from mergekit_rl.pipeline.merging.plan import Output
from mergekit_rl.pipeline.merging.run import Run, Written
from mergekit_rl.pipeline.run import Progress, memory_limit, worker_count

_SAMPLE_NUMBERS = 2**25


@dataclass(frozen=True)
class Forecast:
    """What a merge would do.

    Attributes:
        method, models: as in `Merged`.
        tensors: one row per tensor of the output: name, dtype, shape, what is done to it, the
            tensors it is made of, and every resolved setting.
        merged, copied: how many are merged; {reason: how many are passed on}.
        dtype: that most of the output has.
        output_bytes: of disk that the tensor files take; `read_bytes`: of the inputs.
        memory_bytes: that the process will have allocated at its peak.
        seconds: at the rate at which some tensors were computed just now.
        notes: what the user should know.
    """

    method: str
    models: tuple[str, ...]
    tensors: list[dict[str, Any]]
    merged: int
    copied: dict[str, int]
    dtype: str
    output_bytes: int
    read_bytes: int
    memory_bytes: int
    seconds: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def plan_events(recipe: Written, **options: Any) -> Generator[Progress, None, Forecast]:
    """Plans a merge and measures on a few tensors how fast it would go; options as in
    `merge_events`.

    Yields a `Progress` per tensor that is computed for the measurement.
    """
    run = Run.of(recipe, **options)
    plan = run.plan
    jobs = {output.name: job(plan, output) for output in plan.outputs}
    workers = worker_count(run.workers, run.devices)
    largest = sorted((one.memory for one in jobs.values()), reverse=True)[:workers]
    in_flight = min(sum(largest), memory_limit(list(jobs.values()), workers))
    files, _ = shard(plan.tensors, run.shard_bytes)
    rate = yield from _rate(run, workers)
    cost = sum(one.cost for one in jobs.values())
    return Forecast(
        method=plan.recipe.method.name,
        models=plan.inputs.labels,
        tensors=[row(run, output) for output in plan.outputs],
        merged=len(plan.merged),
        copied={why: len(names) for why, names in plan.copied.items()},
        dtype=plan.dtype,
        output_bytes=sum(TensorFiles(files).sizes.values()),
        read_bytes=sum(one.size for one in jobs.values()),
        memory_bytes=_allocated() + in_flight,
        seconds=cost * rate,
        notes=plan.notes,
    )


def row(run: Run, output: Output) -> dict[str, Any]:
    """What is done to one tensor, as plain values."""
    labels = run.plan.inputs.labels
    found = {
        "name": output.name,
        "dtype": output.dtype,
        "shape": list(output.shape),
        "bytes": output.nbytes,
        "action": f"copy: {output.why}" if output.method is None else output.method.name,
        "base": None if output.base is None else [labels[output.base.model], output.base.name],
        "from": [[labels[one.model], one.name] for one in output.inputs],
    }
    if output.method is not None:
        found["settings"] = {
            name.removesuffix("_"): value for name, value in output.settings.items()
        }
        found["stages"] = [[call.name for call in one.stages] for one in output.inputs]
    return found


def _rate(run: Run, workers: int) -> Generator[Progress, None, float]:
    """Seconds per unit of cost, from some tensors of the plan: of each shape one, the commonest
    first, up to a number of entries."""
    counts: dict[tuple[int, ...], list[Output]] = {}
    for output in run.plan.merged:
        counts.setdefault(output.shape, []).append(output)
    chosen, numbers = [], 0
    for outputs in sorted(counts.values(), key=lambda o: -len(o) * prod(o[0].shape)):
        size = prod(outputs[0].shape)
        if chosen and numbers + size > _SAMPLE_NUMBERS:
            break
        chosen.append(outputs[0])
        numbers += size
    merger = yield from run.merger()
    cost = spent = 0.0
    for number, output in enumerate(chosen, 1):
        started = time.perf_counter()
        for _ in merger.pieces(output):
            pass
        spent += time.perf_counter() - started
        cost += job(run.plan, output).cost
        yield Progress(output.name, number, len(chosen), number, len(chosen))
    return spent / max(cost, 1.0) / workers


def _allocated() -> int:
    """Bytes that this process holds now, files mapped into memory aside."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
            return next(int(line.split()[1]) * 1024 for line in status if "RssAnon" in line)
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
