"""Writing a checkpoint of known layout: any order, any thread, nothing half-written.

DIR.partial/lock       held while a run lives
DIR.partial/journal    the plan's key, then each finished unit, synced after its data
DIR.partial/data/      the folder to be, every shard at its final size from the start
DIR                    data/, renamed once complete and verified
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.header import build_header, read_header, tensor_bytes
from mergekit_rl.io.journal import Journal, Lock
from mergekit_rl.io.output import MARKER, check_space, partial_of, restore, sync, take_place

Layout = Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]]
"""{file: {tensor name: (dtype, shape)}}; files are paths within the output folder."""

_SYNC_SECONDS = 2.0


class Writer:
    """Writes the tensors of a planned folder at their final offsets as they arrive.

    Units are what a run finishes one by one (here: one tensor of the base and all that is written
    for it). Memory is what callers have in flight. A killed run is resumed by opening a Writer with
    the same layout and key and `resume=True`: `records` then holds the units that need no redoing;
    it grows with every commit.

    Args:
        out: the folder to write; see `check_output`.
        layout: every file and tensor of it.
        key: what identifies the plan, its options and its inputs; a resume under another is
            refused.
        resume: go on from `DIR.partial` where there is one.
        force: discard a `DIR.partial` and replace an `out` that stands.

    Raises:
        EditError: another run holds the folder; a partial run is there and neither resumed nor
            discarded, or is of another plan; the disk is too small.
    """

    def __init__(
        self, out: Path, layout: Layout, key: str, *, resume: bool = False, force: bool = False
    ) -> None:
        self.out = out
        self.partial = partial_of(out)
        self.records: dict[str, Any] = {}
        self.complete = False
        self._data = self.partial / "data"
        self._aside = self.partial / "replaced"
        self._layout = layout
        self._headers = {file: build_header(tensors) for file, tensors in layout.items()}
        self._offsets = {
            file: dict(zip(tensors, self._headers[file][1], strict=True))
            for file, tensors in layout.items()
        }
        self._fds: dict[str, int] = {}
        self._pending: dict[str, Any] = {}
        self._mutex = threading.Lock()
        self._synced_at = time.monotonic()
        with _plain_errors(self.partial):
            self._open(key, resume, force)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Size of the tensors and headers of the output."""
        return sum(self._file_size(file) for file in self._layout)

    def write(self, file: str, name: str, data: memoryview, at: int = 0) -> None:
        """Writes `data`, raw little-endian bytes, `at` bytes into the tensor `name` of `file`."""
        dtype, shape = self._layout[file][name]
        if at < 0 or at + len(data) > tensor_bytes(dtype, shape):
            raise ValueError(f"{len(data)} bytes at {at} do not fit {name} {dtype} {shape}")
        offset = self._offsets[file][name] + at
        with _plain_errors(self.partial):
            _write_all(self._fds[file], data, offset)

    def commit(self, unit: str, record: Any) -> None:
        """Records that all data of `unit` was written; `record` comes back on resume. Synced in
        batches, so a kill loses the last two seconds at most."""
        with self._mutex:
            self.records[unit] = self._pending[unit] = record
            if time.monotonic() - self._synced_at < _SYNC_SECONDS:
                return
            with _plain_errors(self.partial):
                self._flush()

    def finish(self, files: Mapping[str, bytes | Path]) -> None:
        """Adds the small files {path within the folder: content or file to copy}, verifies every
        tensor file, and renames the folder into place."""
        with _plain_errors(self.partial), self._mutex:
            if not self.complete:
                self._flush()
                for file, content in files.items():
                    self._add_file(self._data / file, content)
                self._verify()
                for folder in {(self._data / file).parent for file in (*files, *self._layout)}:
                    sync(folder)
                sync(self._data)
                take_place(self._data, self.out, self._aside)
            shutil.rmtree(self.partial)

    def discard(self) -> None:
        """Gives the run up: nothing of it is kept."""
        with self._mutex:
            for fd in self._fds.values():
                os.close(fd)
            self._fds = {}
        restore(self.out, self._aside)
        shutil.rmtree(self.partial)

    def close(self) -> None:
        """Syncs what is recorded and frees the folder for a later resume."""
        with self._mutex:
            try:
                if self._fds and self._data.exists():
                    self._flush()
            except OSError:
                pass  # the units of this batch are redone on resume
            for fd in self._fds.values():
                os.close(fd)
            self._fds = {}
            self._journal.close()
            self._lock.release()

    def _open(self, key: str, resume: bool, force: bool) -> None:
        self.partial.mkdir(exist_ok=True)
        self._lock = Lock(self.partial / "lock", self.out)
        self._journal = Journal(self.partial / "journal")
        try:
            found, records = self._journal.load() if not force or resume else (None, {})
            if found is not None and not resume:
                raise EditError(
                    f"{self.partial} holds an unfinished run ({len(records)} tensors done): "
                    "continue it with --resume or discard it with --force"
                )
            if found is not None and found != key:
                raise EditError(
                    f"{self.partial} was begun with other inputs or options; repeat those, or "
                    "discard it with --force and without --resume"
                )
            if found is not None and not self._data.exists() and (self.out / MARKER).is_file():
                self.complete = True  # killed after the rename
                self.records = records
            elif found is not None and self._preallocated():
                self.records = records
            else:
                self._begin(key)
            if not self.complete:
                self._fds = {file: os.open(self._data / file, os.O_RDWR) for file in self._layout}
        except BaseException:
            self._journal.close()
            self._lock.release()
            if not (self.partial / "journal").exists() and not self._aside.exists():
                shutil.rmtree(self.partial, ignore_errors=True)
            raise

    def _begin(self, key: str) -> None:
        restore(self.out, self._aside)
        (self.partial / "journal").unlink(missing_ok=True)
        sync(self.partial)
        if self._data.exists():
            shutil.rmtree(self._data)
        check_space(self.partial, self.size)
        self._data.mkdir()
        for file in self._layout:
            path = self._data / file
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                _reserve(fd, self._file_size(file))
                _write_all(fd, memoryview(self._headers[file][0]), 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            sync(path.parent)
        sync(self._data)
        self._journal.start(key)
        sync(self.partial)

    def _preallocated(self) -> bool:
        paths = {file: self._data / file for file in self._layout}
        return all(
            path.is_file() and path.stat().st_size == self._file_size(file)
            for file, path in paths.items()
        )

    def _file_size(self, file: str) -> int:
        data = sum(tensor_bytes(dtype, shape) for dtype, shape in self._layout[file].values())
        return len(self._headers[file][0]) + data

    def _flush(self) -> None:
        if self._pending:
            for fd in self._fds.values():
                _fdatasync(fd)
            self._journal.add(self._pending)
            self._pending = {}
        self._synced_at = time.monotonic()

    def _add_file(self, path: Path, content: bytes | Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            shutil.copyfile(content, path)
        sync(path)

    def _verify(self) -> None:
        from safetensors import safe_open

        for file, tensors in self._layout.items():
            path = self._data / file
            found = {name: (i.dtype, i.shape) for name, i in read_header(path)[0].items()}
            with safe_open(path, framework="numpy") as reader:
                names = set(reader.keys())
            if found != dict(tensors) or names != set(tensors):
                raise RuntimeError(f"{path} does not hold what was planned")


def _reserve(fd: int, size: int) -> None:
    """Takes the space of a file now, so that a full disk is known before the work."""
    try:
        os.posix_fallocate(fd, 0, size)
    except (OSError, AttributeError) as error:
        unsupported = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
        if isinstance(error, OSError) and error.errno not in unsupported:
            raise
        os.ftruncate(fd, size)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _fdatasync(fd: int) -> None:
    getattr(os, "fdatasync", os.fsync)(fd)


@contextmanager
def _plain_errors(partial: Path) -> Iterator[None]:
    """Turns a failing disk into one line for the user."""
    try:
        yield
    except OSError as error:
        what = error.filename or partial
        raise EditError(
            f"writing {what} failed: {error.strerror}; what was finished is kept in {partial}, "
            "and --resume continues once the cause is gone"
        ) from error
