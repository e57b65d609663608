"""Writing a checkpoint of known layout: any order, any thread, nothing half-written.

DIR.partial/lock       held while a run lives
DIR.partial/journal    the plan's key, then each finished unit, synced after its data
DIR.partial/data/      the folder to be, every shard at its final size from the start
DIR.partial/replaced/  the folder that stood at DIR, while the new one takes its place
DIR                    data/, renamed once complete and verified
"""

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.disk import sync, sync_data, sync_folders, write_all
from mergekit_rl.io.journal import Journal, Lock
from mergekit_rl.io.output import (
    DATA,
    JOURNAL,
    LOCK,
    REPLACED,
    check_partial,
    check_space,
    partial_of,
    restore,
    take_place,
)
from mergekit_rl.io.tensor_files import Layout, TensorFiles

_SYNC_SECONDS = 2.0
_log = logging.getLogger(__name__)


class Writer:
    """Writes the tensors of a planned folder at their final offsets as they arrive.

    Units are what a run finishes one by one (here: one tensor of the base and all that is written
    for it). Memory is what callers have in flight. A killed run is resumed by opening a Writer with
    the same layout and key and `resume=True`: `records` then holds the units that need no redoing;
    it grows with every commit. After a failed write or sync nothing more is recorded: what the
    system dropped then would count as done.

    Args:
        out: the folder to write; see `check_output`.
        layout: every file and tensor of it.
        key: what identifies the plan, its options and its inputs; a resume under another, or with
            another layout, is refused.
        resume: go on from `DIR.partial` where there is one.
        force: replace an `out` that stands; without `resume`, discard a `DIR.partial`.

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
        self._data = self.partial / DATA
        self._aside = self.partial / REPLACED
        self._force = force
        self._files = TensorFiles(layout)
        self._fds: dict[str, int] = {}
        self._pending: dict[str, Any] = {}
        self._failure: EditError | None = None
        self._begun = (self.partial / JOURNAL).exists()
        self._mutex = threading.Lock()
        self._synced_at = time.monotonic()
        with self._plain_errors():
            self._open(_full_key(key, self._files.headers), resume)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Size of the tensors and headers of the output."""
        return sum(self._files.sizes.values())

    def write(self, file: str, name: str, data: memoryview, at: int = 0) -> None:
        """Writes `data`, raw little-endian bytes, `at` bytes into the tensor `name` of `file`."""
        offset = self._files.offset(file, name, data, at)
        with self._plain_errors():
            write_all(self._fds[file], data, offset)

    def commit(self, unit: str, record: Any) -> None:
        """Records that all data of `unit` was written; `record` comes back on resume. Synced in
        batches, so a kill loses the last two seconds at most."""
        with self._mutex, self._plain_errors():
            self.records[unit] = self._pending[unit] = record
            if time.monotonic() - self._synced_at >= _SYNC_SECONDS:
                self._flush()

    def finish(self, files: Mapping[str, bytes | Path]) -> None:
        """Adds the small files {path within the folder: content or file to copy}, verifies every
        tensor file, and renames the folder into place."""
        with self._mutex, self._plain_errors():
            if not self.complete:
                self._flush()
                self._add(files)
                self._files.verify(self._data)
                sync_folders(self._data)
                self._take_place()
            self._remove_partial()

    def discard(self) -> None:
        """Gives the run up: nothing of it is kept."""
        with self._mutex, self._plain_errors():
            self._close_files()
            restore(self.out, self._aside)
            self._remove_partial()

    def close(self) -> None:
        """Syncs what is recorded and frees the folder for a later resume."""
        with self._mutex:
            if self._failure is None and self._pending and self._data.exists():
                with suppress(OSError):  # the units of this batch are redone on resume
                    self._flush()
            self._close_files()
            self._lock.release()

    def _open(self, key: str, resume: bool) -> None:
        check_partial(self.partial)
        self.partial.mkdir(exist_ok=True)
        try:
            self._lock = Lock(self.partial / LOCK, self.out)
        except OSError:
            with suppress(OSError):
                self.partial.rmdir()
            raise
        self._journal = Journal(self.partial / JOURNAL)
        try:
            self._take_up(key, resume)
            if not self.complete:
                for file in self._files.layout:
                    self._fds[file] = os.open(self._data / file, os.O_RDWR)
        except BaseException:
            self._close_files()
            if not self._begun and not self._aside.exists():
                with suppress(OSError):
                    self._remove_partial()
            self._lock.release()
            raise

    def _take_up(self, key: str, resume: bool) -> None:
        """Goes on from what is there, or begins."""
        found, records = self._journal.load() if resume or not self._force else (None, {})
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
        if found is not None and self._files.laid_out(self._data):
            self.records = records
        elif found is not None and not self._data.exists() and self._files.laid_out(self.out):
            self.complete = True  # killed after the rename
            self.records = records
        else:
            if records:
                _log.warning("%s lost files of its unfinished run: starting over", self.partial)
            self._begin(key)

    def _begin(self, key: str) -> None:
        restore(self.out, self._aside)
        (self.partial / JOURNAL).unlink(missing_ok=True)
        self._begun = False
        sync(self.partial)
        if self._data.exists():
            shutil.rmtree(self._data)
        check_space(self.partial, self.size)
        self._data.mkdir()
        self._files.create(self._data)
        self._journal.start(key)
        sync(self.partial)
        sync(self.partial.parent)
        self._begun = True

    def _flush(self) -> None:
        for fd in self._fds.values():
            sync_data(fd)
        if self._pending:
            self._journal.add(self._pending)
            self._pending = {}
        self._synced_at = time.monotonic()

    def _add(self, files: Mapping[str, bytes | Path]) -> None:
        """Adds the small files; those an interrupted finish left and are not of them go."""
        planned = {self._data / file for file in (*self._files.layout, *files)}
        for path in self._data.rglob("*"):
            if path not in planned and not path.is_dir():
                path.unlink()
        for file, content in files.items():
            path = self._data / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                shutil.copyfile(content, path)
            sync(path)

    def _take_place(self) -> None:
        try:
            take_place(self._data, self.out, self._aside, force=self._force)
        except EditError as error:
            raise EditError(
                f"{error}. The finished result waits in {self.partial}: move {self.out} away and "
                "repeat the command with --resume"
            ) from None
        self.complete = True

    def _remove_partial(self) -> None:
        """Removes `DIR.partial`, the journal last, so that a kill in between is known for what it
        is; its empty folder would harm nothing."""
        for folder in (self._aside, self._data):
            if folder.exists():
                shutil.rmtree(folder)
        (self.partial / JOURNAL).unlink(missing_ok=True)
        with suppress(OSError):
            (self.partial / LOCK).unlink()
            self.partial.rmdir()

    def _close_files(self) -> None:
        for fd in self._fds.values():
            with suppress(OSError):  # what counts was synced
                os.close(fd)
        self._fds = {}
        with suppress(OSError):
            self._journal.close()

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turns a failing disk into one line for the user, now and at every later call."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except OSError as error:
            what = error.filename or self.partial
            text = f"writing {what} failed: {error.strerror}"
            if self.complete:
                text = f"{self.out} is complete; removing {what} failed: {error.strerror}"
            elif self._begun:
                text += (
                    f"; what was finished is kept in {self.partial}, and --resume continues once "
                    "the cause is gone"
                )
            self._failure = EditError(text)
            raise self._failure from error


def _full_key(key: str, headers: Mapping[str, bytes]) -> str:
    """The key of a plan and its layout together."""
    digest = hashlib.sha256(json.dumps([key, list(headers)]).encode())
    for header in headers.values():
        digest.update(header)
    return digest.hexdigest()
