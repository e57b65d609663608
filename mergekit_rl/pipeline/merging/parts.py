"""One merge by several runs that never talk to each other; see `pipeline.parts`."""

import json
import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.output import MARKER, check_output
from mergekit_rl.io.shards import SHARD_BYTES, shard
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.merging.compute import job
from mergekit_rl.pipeline.merging.documents import small_files
from mergekit_rl.pipeline.merging.run import Merged, Run
from mergekit_rl.pipeline.parts import (
    DONE,
    Part,
    PartDone,
    copy_held,
    found_parts,
    held_tensors,
    part_content,
    shared_out,
)
from mergekit_rl.pipeline.run import Progress


def merge_part_events(
    recipe: Any,
    out: "str | Path",
    part: "str | Part",
    *,
    resume: bool = False,
    force: bool = False,
    **options: Any,
) -> Generator[Progress, None, PartDone]:
    """Computes one share of what `merge` would write to `out`; arguments as there."""
    part = part if isinstance(part, Part) else Part.parse(part)
    run = Run.of(recipe, **options)
    folder = part.folder(Path(out))
    check_output(folder, force=force, inputs=run.folders, resume=resume)
    costs = {output.name: job(run.plan, output).cost for output in run.plan.outputs}
    names = set(shared_out(costs, part.count)[part.index])
    tensors = {name: form for name, form in run.plan.tensors.items() if name in names}
    files, _ = shard(tensors, run.shard_bytes)
    with Writer(folder, files, run.key(), resume=resume, force=force) as writer:
        yield from run.write(writer, files)
        done = {"plan": run.key(times=False), "records": writer.records}
        marker = {"rledit": "part", "part": f"{part.index}/{part.count}"}
        writer.finish({DONE: json.dumps(done).encode(), MARKER: json.dumps(marker).encode()})
    return PartDone(part, folder, len(names), len(run.plan.outputs))


def merge_join_events(
    recipe: Any,
    out: "str | Path",
    *,
    resume: bool = False,
    force: bool = False,
    shard_bytes: int = SHARD_BYTES,
    **options: Any,
) -> Generator[Progress, None, Merged]:
    """Puts the shares that `merge_part_events` left beside `out` together: the bytes of one run.

    Raises:
        EditError: a share is absent, or was made with other inputs or another recipe.
    """
    started = time.perf_counter()
    out = Path(out)
    run = Run.of(recipe, shard_bytes=shard_bytes, **options)
    check_output(out, force=force, inputs=run.folders, resume=resume)
    parts = found_parts(out)
    for part in parts:
        part_content(part.folder(out), run.key(times=False))
    files, index = shard(run.plan.tensors, shard_bytes)
    home = {name: file for file, tensors in files.items() for name in tensors}
    with Writer(out, files, run.key(), resume=resume, force=force) as writer:
        done = len(writer.records)
        total = len(run.plan.outputs)
        for part in parts:
            for (_, name), info in held_tensors(part.folder(out), files).items():
                if name not in writer.records:
                    copy_held(info, writer, home[name], name)
                    writer.commit(name, True)
                    done += 1
                    yield Progress(name, done, total, done, total)
        if done < total:
            raise EditError(f"the parts of {out} do not cover every tensor: compute them again")
        writer.finish(small_files(run.plans) | index)
    for part in parts:
        shutil.rmtree(part.folder(out))
    return run.merged(writer.size, started)
