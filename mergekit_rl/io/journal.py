"""The record of what a run has finished, from which a killed run goes on."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError


class Lock:
    """Keeps a second run out of a folder while the first lives; the system frees it on a kill."""

    def __init__(self, path: Path, what: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise
            raise EditError(f"another run is writing {what}; wait for it or stop it") from None

    def release(self) -> None:
        os.close(self._fd)


class Journal:
    """Lines of JSON, each synced: first the plan's key, then one per finished unit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def load(self) -> tuple[str | None, dict[str, Any]]:
        """The plan's key, None where there is no journal, and {unit: its record}. A last line that
        a kill tore is dropped."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None, {}
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            os.truncate(self._path, len(whole))
        key, records = None, {}
        try:
            for line in whole.splitlines():
                entry = json.loads(line)
                if key is None:
                    key = entry["plan"]
                else:
                    records[entry["unit"]] = entry["record"]
        except (ValueError, KeyError, TypeError):
            raise EditError(
                f"{self._path} is damaged: start over with --force instead of --resume"
            ) from None
        return key, records

    def start(self, key: str) -> None:
        """Begins a new journal for the plan `key`."""
        self._append([{"plan": key}])

    def add(self, records: dict[str, Any]) -> None:
        """Records finished units; their data must be synced before."""
        self._append([{"unit": unit, "record": record} for unit, record in records.items()])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, entries: list[dict[str, Any]]) -> None:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        while text:
            text = text[os.write(self._fd, text) :]
        os.fsync(self._fd)
