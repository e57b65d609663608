"""Limits on what reading one input may do: time, memory, the files it opens."""

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 1.0
HEADROOM = 512 * 2**20  # of address space beyond what the process has when the limit is set


class Hang(BaseException):
    """An input took longer than `SECONDS`; no `except Exception` swallows it."""


class Guard:
    """Watches the inputs of one process.

    Attributes:
        seconds: what the last input took.
        peak: by how many bytes the largest size of the process has grown.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._opened: list[str] | None = None
        self._before = _largest()
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, _raise)
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM, hard))

    @property
    def peak(self) -> int:
        return _largest() - self._before

    @contextmanager
    def watch(self) -> Iterator[list[str]]:
        """Stops what it encloses after `SECONDS`; gives the list of the paths that it opens."""
        self._opened = opened = []
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            yield opened
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._opened = None
            self.seconds = time.perf_counter() - started

    def _audit(self, event: str, args: tuple) -> None:
        if event == "open" and self._opened is not None and isinstance(args[0], str | bytes):
            self._opened.append(os.fsdecode(args[0]))


def strayed(opened: list[str], allowed: list[str]) -> list[str]:
    """The opened files that lie neither in the allowed folders nor in Python's own."""
    own = [*allowed, *{sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)}]
    real = {os.path.realpath(path) for path in opened}
    return sorted(
        path for path in real if not f"{path}/".startswith(tuple(f"{home}/" for home in own))
    )


def _largest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _raise(*_: object) -> None:
    raise Hang
