"""One extraction by several runs, on one machine or many, that never talk to each other.

Every run plans the whole, computes its share of the tensors, and leaves them in a folder of its own
beside the output, DIR.part-0-of-3; a last run joins the folders.
"""

import json
import re
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.header import TensorInfo, read_header
from mergekit_rl.io.jsonfile import read_object
from mergekit_rl.io.output import MARKER, check_output
from mergekit_rl.io.shards import SHARD_BYTES
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.options import parse_options
from mergekit_rl.pipeline.pair import open_pair
from mergekit_rl.pipeline.plan import Files, Plan, plan_files, plan_sar
from mergekit_rl.pipeline.run import Progress
from mergekit_rl.pipeline.sar import finish, job, known_ranks, rewire_all
from mergekit_rl.pipeline.summary import Summary

DONE = "part.json"
_PIECE = 2**24


@dataclass(frozen=True)
class Part:
    """The index-th of `count` shares, from 0."""

    index: int
    count: int

    @staticmethod
    def parse(text: str) -> "Part":
        """`0/3`, `1/3` or `2/3` for thirds.

        Raises:
            EditError: another form, or an index that is not below the count.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or int(match[1]) >= int(match[2]):
            raise EditError(f"--part is {text!r}, expected 0/3, 1/3 or 2/3 for thirds")
        return Part(int(match[1]), int(match[2]))

    def folder(self, out: Path) -> Path:
        """Where this share of `out` lies."""
        return out.with_name(f"{out.name}.part-{self.index}-of-{self.count}")


@dataclass(frozen=True)
class PartDone:
    """A share that is computed: its folder, and how many of how many tensors it holds."""

    part: Part
    folder: Path
    tensors: int
    of: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "part": f"{self.part.index}/{self.part.count}",
            "folder": str(self.folder),
            "tensors": self.tensors,
            "of": self.of,
        }


def part_events(
    base: "str | Path | Checkpoint",
    rl: "str | Path | Checkpoint",
    out: "str | Path",
    part: "str | Part",
    *,
    resume: bool = False,
    force: bool = False,
    workers: int | None = None,
    **options: Any,
) -> Generator[Progress, None, PartDone]:
    """Computes one share of what `sar` would write to `out`; arguments as there."""
    part = part if isinstance(part, Part) else Part.parse(part)
    out = Path(out)
    plan = _plan(base, rl, options)
    folder = part.folder(out)
    inputs = [plan.pair.base.folder, plan.pair.expert.folder]
    check_output(folder, force=force, inputs=inputs, resume=resume)
    units = _shares(plan, part.count)[part.index]
    members = {name for unit in units.values() for name in unit}
    targets = [name for name in plan.targets if name in members]
    variants, known = [], []
    for rank in plan.options.ranks:
        ranks = yield from known_ranks(plan, rank, targets, workers)
        known.append(ranks)
        every = dict.fromkeys(plan.targets, 1) | ranks
        variants.append(_restricted(plan_files(plan, rank, every), plan, units, members))
    layout = {file: tensors for files in variants for file, tensors in files.layout.items()}
    with Writer(folder, layout, plan.key(), resume=resume, force=force) as writer:
        yield from rewire_all(plan, variants, writer, workers, units)
        done = {"plan": plan.key(times=False), "ranks": known, "records": writer.records}
        marker = {"rledit": "part", "part": f"{part.index}/{part.count}"}
        writer.finish({DONE: json.dumps(done).encode(), MARKER: json.dumps(marker).encode()})
    return PartDone(part, folder, len(members), len(plan.pair.base.tensors))


def join_events(
    base: "str | Path | Checkpoint",
    rl: "str | Path | Checkpoint",
    out: "str | Path",
    *,
    resume: bool = False,
    force: bool = False,
    shard_bytes: int = SHARD_BYTES,
    **options: Any,
) -> Generator[Progress, None, list[Summary]]:
    """Puts the shares that `part_events` left beside `out` together: the bytes of one run.

    Raises:
        EditError: a share is absent, or was made with other inputs or options.
    """
    started = time.perf_counter()
    out = Path(out)
    plan = _plan(base, rl, options)
    inputs = [plan.pair.base.folder, plan.pair.expert.folder]
    check_output(out, force=force, inputs=inputs, resume=resume)
    parts = found_parts(out)
    contents = [part_content(part.folder(out), plan.key(times=False)) for part in parts]
    variants = []
    for index, rank in enumerate(plan.options.ranks):
        ranks = {name: k for content in contents for name, k in content["ranks"][index].items()}
        if set(ranks) != set(plan.targets):
            raise EditError(f"the parts of {out} do not cover every tensor: compute them again")
        variants.append(
            plan_files(plan, rank, {name: ranks[name] for name in plan.targets}, shard_bytes)
        )
    layout = {file: tensors for files in variants for file, tensors in files.layout.items()}
    with Writer(out, layout, plan.key(), resume=resume, force=force) as writer:
        total = sum(len(content["records"]) for content in contents)
        done = len(writer.records)
        for part, content in zip(parts, contents, strict=True):
            held = held_tensors(part.folder(out), layout)
            left = {u: r for u, r in content["records"].items() if u not in writer.records}
            if left:
                for (file, name), info in held.items():
                    copy_held(info, writer, file, name)
            for unit, record in left.items():
                writer.commit(unit, record)
                done += 1
                yield Progress(unit, done, total, done, total)
        summaries = finish(plan, variants, writer, started)
    for part in parts:
        shutil.rmtree(part.folder(out))
    return summaries


def _plan(base: Any, rl: Any, options: Mapping[str, Any]) -> Plan:
    return plan_sar(open_pair(base, rl), parse_options(**options))


def _shares(plan: Plan, count: int) -> list[dict[str, tuple[str, ...]]]:
    """{unit: its tensors} of every part."""
    rank = plan.options.ranks[0]
    files = plan_files(plan, rank, dict.fromkeys(plan.targets, 1))  # units do not hang on ranks
    units = {files.members(name)[0]: files.members(name) for name in plan.names}
    costs = {unit: sum(job(plan, name).cost for name in held) for unit, held in units.items()}
    return [{unit: units[unit] for unit in share} for share in shared_out(costs, count)]


def shared_out(costs: Mapping[str, float], count: int) -> list[list[str]]:
    """The units of every part: the costliest unit first, to the part with the least."""
    parts: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for unit in sorted(costs, key=lambda unit: (-costs[unit], unit)):
        lightest = loads.index(min(loads))
        parts[lightest].append(unit)
        loads[lightest] += costs[unit]
    return parts


def _restricted(files: Files, plan: Plan, units: Mapping[str, Any], members: set[str]) -> Files:
    """The files of one rank with only the tensors of some units."""
    keys = {key for group in files.groups if group.members[0] in units for key in group.tensors}
    if plan.options.rest == "rl":
        keys |= {plan.pair.names.get(name, name) for name in members}
    else:
        keys |= members
    layout = {
        file: {name: t for name, t in tensors.items() if name in keys}
        for file, tensors in files.layout.items()
    }
    return replace(files, layout={file: tensors for file, tensors in layout.items() if tensors})


def found_parts(out: Path) -> list[Part]:
    """The parts beside `out`, all of one count."""
    pattern = re.compile(re.escape(out.name) + r"\.part-(\d+)-of-(\d+)")
    found = [pattern.fullmatch(path.name) for path in out.parent.iterdir()]
    parts = sorted((int(m[2]), int(m[1])) for m in found if m)
    if not parts:
        raise EditError(f"there is no {out}.part-…: compute the parts first, with --part 0/N …")
    count = parts[0][0]
    if parts != [(count, index) for index in range(count)]:
        have = ", ".join(f"{index}/{of}" for of, index in parts)
        raise EditError(
            f"the parts of {out} are not complete or of two divisions: there are {have}"
        )
    return [Part(index, count) for _, index in parts]


def part_content(folder: Path, key: str) -> dict[str, Any]:
    """What a part tells of itself.

    Raises:
        EditError: it is of another plan than that of `key`.
    """
    content = read_object(folder / DONE)
    if content.get("plan") != key:
        raise EditError(
            f"{folder} was made with other inputs or options: repeat those, or compute it again "
            "with --force"
        )
    return content


def held_tensors(folder: Path, layout: Mapping[str, Any]) -> dict[tuple[str, str], TensorInfo]:
    """{(file of the output, tensor): where it lies in a part}. Shards differ between both."""
    home = {}
    for file, tensors in layout.items():
        for name in tensors:
            home[Path(file).parent, name] = file
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, info in read_header(path)[0].items():
            file = home.get((path.relative_to(folder).parent, name))
            if file is None or layout[file][name] != (info.dtype, info.shape):
                raise EditError(f"{path} holds {name!r}, which the plan has not in this form")
            found[file, name] = info
    return found


def copy_held(info: TensorInfo, writer: Writer, file: str, name: str) -> None:
    """Writes a part's tensor to its place in the output."""
    for at, data in _pieces(info):
        writer.write(file, name, data, at)


def _pieces(info: TensorInfo) -> Iterator[tuple[int, memoryview]]:
    with info.path.open("rb") as source:
        source.seek(info.offset)
        for at in range(0, info.nbytes, _PIECE):
            data = source.read(min(_PIECE, info.nbytes - at))
            if len(data) < min(_PIECE, info.nbytes - at):
                raise EditError(f"{info.path} ended early: compute its part again with --force")
            yield at, memoryview(data)
