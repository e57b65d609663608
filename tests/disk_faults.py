"""Faults in the calls by which Python changes a disk: kills, power cuts, errors, short writes.

Every call is counted, whoever makes it, so that a test can walk a fault through all of them.
"""

import errno
import itertools
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATCHED: tuple[tuple[Any, str], ...] = (
    *(
        (os, name)
        for name in (
            "open", "write", "pwrite", "fsync", "fdatasync", "posix_fallocate", "ftruncate",
            "truncate", "rename", "replace", "mkdir", "unlink", "rmdir", "close",
        )
    ),
    (shutil, "copyfile"),
    (Path, "write_bytes"),
)  # fmt: skip
SYSTEM_WRITES = ("write", "pwrite")  # these may take less than they are given
WRITES = (*SYSTEM_WRITES, "copyfile", "write_bytes")
SYNCS = ("fsync", "fdatasync")
CHANGES = (*WRITES, "open", "posix_fallocate", "ftruncate", "rename", "mkdir", "unlink", "rmdir")
_GROWS = (*WRITES, "open", "posix_fallocate", "mkdir")

KILLS = ("kill before", "kill after", "kill midway", "power cut", "power cut, journal survives")
ERRORS = (
    "ENOSPC", "ENOSPC lasting", "EIO", "EIO lasting", "EIO, writes lost", "short",
    "short, then ENOSPC",
)  # fmt: skip


class Disk:
    """While active, counts the calls and does `kind` at call number `at`, counted from 1.

    A power cut loses what was written to a file and not synced: all of it, or all but the
    journal's. "EIO, writes lost" is a sync that fails once and drops what it was to write, as Linux
    does: the next sync succeeds. `names` lists the calls made.
    """

    def __init__(self, at: int = 0, kind: str = "") -> None:
        self.at = at
        self.kind = kind
        self.names: list[str] = []
        self._remembers = kind.startswith("power") or kind == "EIO, writes lost"
        self._unsynced: dict[int, tuple[str, int, bytes]] = {}  # by inode
        self._real = {name: getattr(owner, name) for owner, name in _PATCHED}

    @contextmanager
    def active(self) -> Iterator["Disk"]:
        """Patches the calls; the clock ticks evenly, so that every run makes the same ones."""
        clock, monotonic = itertools.count(0, 1.2), time.monotonic
        for owner, name in _PATCHED:
            setattr(owner, name, self._wrapped(name))
        time.monotonic = lambda: next(clock)
        try:
            yield self
        finally:
            time.monotonic = monotonic
            for owner, name in _PATCHED:
                setattr(owner, name, self._real[name])
            self._forget()

    def _wrapped(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.names.append(name)
            number = len(self.names)
            if number == self.at:
                return self._fail(name, args, kwargs)
            if number > self.at > 0:
                self._still_fail(name, number)
            if self._remembers:
                self._note(name, args)
            return self._real[name](*args, **kwargs)

        return call

    def _fail(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        real = self._real[name]
        if self.kind == "kill before":
            _die()
        if self.kind == "kill after":
            try:
                real(*args, **kwargs)
            finally:
                _die()
        if self.kind == "kill midway":
            self._half(name, args)
            _die()
        if self.kind.startswith("power"):
            self._lose(journal=not self.kind.endswith("journal survives"))
            _die()
        if self.kind.startswith("short"):
            done = self._half(name, args)
            if name in SYSTEM_WRITES:
                return done
            raise self._error(args)
        if self.kind == "EIO, writes lost":
            self._lose()
        if name == "close":
            real(*args)  # the number is free again whatever is reported
        raise self._error(args)

    def _still_fail(self, name: str, number: int) -> None:
        if self.kind == "short, then ENOSPC" and number == self.at + 1 and name in WRITES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "ENOSPC lasting" and name in _GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "EIO lasting" and name != "close":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _error(self, args: tuple[Any, ...]) -> OSError:
        number = errno.EIO if self.kind.startswith("EIO") else errno.ENOSPC
        path = [str(arg) for arg in args[:1] if isinstance(arg, str | Path)]
        return OSError(number, os.strerror(number), *path)

    def _half(self, name: str, args: tuple[Any, ...]) -> int | None:
        """Does half of a write."""
        if name == "copyfile":
            data = Path(args[0]).read_bytes()
            self._real["write_bytes"](Path(args[1]), data[: len(data) // 2])
            return None
        if name not in WRITES:
            return None
        target, data, *offset = args
        return self._real[name](target, data[: (len(data) + 1) // 2], *offset)

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        """Keeps a file's content as it was when last synced."""
        if name in ("pwrite", "write", "ftruncate", "posix_fallocate", *SYNCS):
            path = Path(f"/proc/self/fd/{args[0]}").readlink()
        elif name in ("write_bytes", "copyfile"):
            path = Path(args[-1] if name == "copyfile" else args[0])
        else:
            return
        if path.is_dir():
            return
        fd = self._real["open"](path, os.O_RDWR | os.O_CREAT, 0o666)
        key = os.fstat(fd).st_ino
        if name not in SYNCS and key not in self._unsynced:
            self._unsynced[key] = (path.name, fd, path.read_bytes())
            return
        self._real["close"](fd)
        if name in SYNCS and key in self._unsynced:
            self._real["close"](self._unsynced.pop(key)[1])

    def _lose(self, *, journal: bool = True) -> None:
        """Loses what was written to any file since it was last synced, wherever it is by now."""
        for name, fd, synced in self._unsynced.values():
            if journal or name != "journal":
                self._real["ftruncate"](fd, 0)
                self._real["pwrite"](fd, synced, 0)

    def _forget(self) -> None:
        for _, fd, _ in self._unsynced.values():
            self._real["close"](fd)
        self._unsynced = {}


def killed(run: Callable[[], Any], disk: Disk) -> bool:
    """Runs in a child process; whether the fault killed it (else it came to its end)."""
    pid = os.fork()
    if pid == 0:
        try:
            with disk.active():
                run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
