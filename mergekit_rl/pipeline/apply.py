"""A base plus a core: the whole edited model."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from mergekit_rl import __version__
from mergekit_rl.errors import EditError, UnusableInput
from mergekit_rl.io.adapter import AdaptedCheckpoint, open_adapted
from mergekit_rl.io.checkpoint import FLOATS, TORCH_DTYPES, Checkpoint
from mergekit_rl.io.core import Core
from mergekit_rl.io.digest import ValueDigest
from mergekit_rl.io.hub import locate
from mergekit_rl.io.output import MARKER, check_output
from mergekit_rl.io.shards import SHARD_BYTES, shard
from mergekit_rl.io.sidefiles import side_files
from mergekit_rl.io.writer import Writer
from mergekit_rl.pipeline.documents import config_digest, described
from mergekit_rl.pipeline.donor import with_dtype
from mergekit_rl.pipeline.options import DTYPES
from mergekit_rl.pipeline.run import Job, Progress, drain, run_jobs
from mergekit_rl.pipeline.tensors import fitting, matrices, raw_bytes
from mergekit_rl.spectral.edit import edit


@dataclass(frozen=True)
class Applied:
    """What `apply_core` did.

    Attributes:
        targets: tensors the core was added to, of `tensors`.
        other_base: tensors whose values are not those of the base the core was made from.
        output_bytes: size of the tensor files.
        seconds: of the whole run.
        notes: what the user should know.
    """

    targets: int
    tensors: int
    other_base: tuple[str, ...]
    output_bytes: int
    seconds: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def apply_core(
    base: "str | Path | Checkpoint",
    core: "str | Path",
    out: "str | Path",
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Applied:
    """Writes the model W₀ + scale·Δ* to the folder `out`; see `apply_events` for the options.

    With the scale and dtype it was made with, the tensors are byte for byte those that
    `sar(…, save="model")` writes on the same machine.
    """
    return drain(apply_events(base, core, out, **options), progress)


def apply_events(
    base: "str | Path | Checkpoint",
    core: "str | Path",
    out: "str | Path",
    *,
    scale: float = 1.0,
    dtype: str | None = None,
    allow_other_base: bool = False,
    resume: bool = False,
    force: bool = False,
    workers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Generator[Progress, None, Applied]:
    """`apply_core` as a generator: yields a `Progress` after every tensor.

    Args:
        base, core: the base the core was made from, and a folder that `sar` wrote.
        scale: factor on the core, on top of the one it was made with.
        dtype: of the output; None for the one the core names.
        allow_other_base: go on where the base's values are not those the core was made from.
        resume, force, workers: as in `sar`.

    Raises:
        EditError: the base is another (unless allowed); the core is damaged; see `sar`.
    """
    started = time.perf_counter()
    if not math.isfinite(scale):
        raise EditError(f"--scale is {scale}, expected a finite number")
    if dtype is not None and dtype not in DTYPES:
        raise EditError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    folder, commit = locate(core)
    description = Core(folder)
    base = base if isinstance(base, Checkpoint) else Checkpoint.open(base)
    _check_names(base, description)
    edited = open_adapted(str(core), folder, commit, base)
    out = Path(out)
    check_output(out, force=force, inputs=[base.folder, folder], resume=resume)
    job = _Apply(base, description, edited, scale, dtype, allow_other_base)
    files, index = shard(job.layout(), shard_bytes)
    with Writer(out, files, job.key(), resume=resume, force=force) as writer:
        job.place(writer, files)
        try:
            yield from run_jobs(job.jobs(writer.records), None, job.work, workers, ["cpu"])
        except UnusableInput:
            writer.discard()
            raise
        others = tuple(sorted(name for name, same in writer.records.items() if not same))
        notes = job.notes(others)
        writer.finish(job.small_files(others, notes) | index)
    return Applied(
        targets=len(description.ranks),
        tensors=len(base.tensors),
        other_base=others,
        output_bytes=writer.size,
        seconds=time.perf_counter() - started,
        notes=notes,
    )


class _Apply:
    """The work on each tensor of the base."""

    def __init__(
        self,
        base: Checkpoint,
        core: Core,
        edited: AdaptedCheckpoint,
        scale: float,
        dtype: str | None,
        allow_other_base: bool,
    ) -> None:
        self._base = base
        self._core = core
        self._edited = edited
        self._scale = scale
        self._allow = allow_other_base
        self._dtypes = {
            name: (DTYPES[dtype] if dtype else core.dtypes[name]) if info.dtype in FLOATS else own
            for name, info in base.tensors.items()
            for own in (info.dtype,)
        }

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {n: (self._dtypes[n], info.shape) for n, info in self._base.tensors.items()}

    def key(self) -> str:
        parts = [__version__, self._scale, self._dtypes, self._allow, self._edited.fingerprint()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def place(self, writer: Writer, files: Any) -> None:
        self._writer = writer
        self._file = {name: file for file, names in files.items() for name in names}

    def jobs(self, done: Any) -> list[Job]:
        found = []
        for name, info in self._base.tensors.items():
            if name not in done:
                matrix = prod(info.shape[-2:]) if name in self._core.ranks else 2**22
                found.append(Job(name, prod(info.shape), info.nbytes + 12 * matrix, info.nbytes))
        return found

    def work(self, job: Job, _: None) -> None:
        name = job.name
        info = self._base.tensors[name]
        digest = ValueDigest(info.shape)
        dtype = TORCH_DTYPES[self._dtypes[name]]
        at = 0
        for piece in self._pieces(name, dtype, digest):
            data = raw_bytes(fitting(piece, name))
            self._writer.write(self._file[name], name, data, at)
            at += len(data)
        same = digest.hexdigest() == self._core.digests[name]
        if not same and not self._allow:
            raise UnusableInput(
                f"{name} of {self._base.ref} has other values than the base this core was made "
                f"from ({self._core.base_name}); give that base, or --allow-other-base"
            )
        self._writer.commit(name, same)

    def _pieces(self, name: str, dtype: torch.dtype, digest: ValueDigest):
        if name not in self._core.ranks:
            for piece in self._base.pieces(name):
                digest.update(piece)
                yield piece.to(dtype)
            return
        b, a = self._core.factors(self._edited, name)
        for index in matrices(self._base, name):
            w0 = self._base.read(name, index)
            digest.update(w0)
            part = slice(None) if index is None else index
            yield edit(w0, b[part], a[part], dtype, self._scale)

    def notes(self, others: tuple[str, ...]) -> tuple[str, ...]:
        notes = []
        if others:
            notes.append(
                f"{len(others)} tensors of this base have other values than those the core was "
                f"made from, such as {others[0]}"
            )
        if config_digest(self._base) != self._core.content["base"].get("config"):
            notes.append("the base's config.json is not the one the core was made from")
        return tuple(notes)

    def small_files(self, others: tuple[str, ...], notes: tuple[str, ...]) -> dict[str, Any]:
        files: dict[str, Any] = {path.name: path for path in side_files(self._core.folder)[0]}
        text = with_dtype(self._core.config_text, self._dtypes)
        if text:
            files["config.json"] = text.encode()
        content = {
            "rledit": __version__,
            "command": "apply",
            "base": described(self._base),
            "core": {"name": self._edited.name, "expert": self._core.content.get("expert")},
            "scale": self._scale,
            "other_base": list(others),
            "notes": list(notes),
        }
        files[MARKER] = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
        return files


def _check_names(base: Checkpoint, core: Core) -> None:
    """The tensors of the base must be those the core was made over, by name; targets by shape."""
    missing = sorted(set(core.digests) - set(base.tensors))
    extra = sorted(set(base.tensors) - set(core.digests))
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"has {extra[0]} besides"
        raise EditError(f"{base.ref} {what}: it is not the base of this core ({core.base_name})")
    for name, shape in core.shapes.items():
        if base.tensors[name].shape != shape:
            raise EditError(
                f"{name} is {base.tensors[name].shape} in {base.ref}, and {shape} in the base of "
                f"this core ({core.base_name})"
            )
