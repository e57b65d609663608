"""The record of what a run has finished, from which a killed run goes on."""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.disk import write_all


class Lock:
    """Keeps a second run out of a folder while the first lives; the system frees it on a kill.

    Raises:
        EditError: another run holds it, or was just removing it.
    """

    def __init__(self, path: Path, what: Path) -> None:
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(self._fd), path.stat())
        except (BlockingIOError, PermissionError, FileNotFoundError):
            ours = False
        except BaseException:
            self.release()
            raise
        if not ours:
            self.release()
            raise EditError(f"another run is writing {what}; wait for it or stop it")

    def release(self) -> None:
        """Lets the next run in."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with suppress(OSError):
                os.close(fd)


class Journal:
    """Lines of JSON, each synced: first the plan's key, then one per finished unit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._size = 0  # of the whole lines; what lies beyond is overwritten

    def load(self) -> tuple[str | None, dict[str, Any]]:
        """The plan's key, None where there is no journal, and {unit: its record}. What a kill or a
        power cut tore is dropped, with all that follows it: those units are done again."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None, {}
        key, records, size = None, {}, 0
        for line in text.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                if key is None:
                    key = str(entry["plan"])
                else:
                    records[entry["unit"]] = entry["record"]
            except (ValueError, KeyError, TypeError):
                if key is None:
                    raise EditError(
                        f"{self._path} is damaged: start over with --force instead of --resume"
                    ) from None
                break
            size += len(line)
        self._size = size
        return key, records

    def start(self, key: str) -> None:
        """Begins a new journal for the plan `key`."""
        self._size = 0
        self._append([{"plan": key}])

    def add(self, records: dict[str, Any]) -> None:
        """Records finished units; their data must be synced before."""
        self._append([{"unit": unit, "record": record} for unit, record in records.items()])

    def close(self) -> None:
        """Closes the file; what was added stays."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _append(self, entries: list[dict[str, Any]]) -> None:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        os.ftruncate(self._fd, self._size)  # lines that an attempt before this one tore
        write_all(self._fd, memoryview(text), self._size)
        os.fsync(self._fd)
        self._size += len(text)
