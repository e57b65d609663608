"""Results kept between runs, a file each, under a cap.

No result depends on it: what cannot be kept, or read again, is computed again.
"""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.cache_entry import Kept, encoded, read, write
from mergekit_rl.io.jsonfile import open_file

KINDS = ("decomposition", "rank", "measures", "collision")
"""Of updates; of a share of their energy; of a matrix beside its base; of two experts."""

FOLDER, LIMIT = "RLEDIT_CACHE", "RLEDIT_CACHE_LIMIT"
_DEFAULT_LIMIT = 10 * 10**9
_ENTRY = re.compile(rf"({'|'.join(KINDS)})-[0-9a-f]{{64}}\.safetensors")
_UNFINISHED = re.compile(rf"\.{_ENTRY.pattern}\..+\.tmp")
_ABANDONED = 3600  # seconds after which nobody is writing a file any more
_SPARE = 2**28  # bytes of the disk that are left to others
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    """What a cache holds.

    Attributes:
        folder: where; limit: bytes it may take; bytes: those it takes.
        kinds: a row per kind: kind, entries, bytes, and when the entry unused for longest and the
            one used last were last used, in seconds since 1970.
    """

    folder: str
    limit: int
    entries: int
    bytes: int
    kinds: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Freed:
    """What clearing a cache removed: files, and the bytes they took."""

    folder: str
    entries: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class _File(NamedTuple):
    path: Path
    size: int
    used: float
    kind: str | None  # None where it was never finished


class Cache:
    """A folder of results by the digest of all that they depend on. Threads and processes may share
    it.

    When it grows past its limit the entries unused for longest go, but none that this object has
    read or written: a run that needs more than the limit keeps the part that fits, and finds that
    part again next time.

    Args:
        folder: made when the first entry is written. None: `$RLEDIT_CACHE`, else
            `$XDG_CACHE_HOME/rledit`, else `~/.cache/rledit`.
        limit: bytes, ≥ 0. None: `$RLEDIT_CACHE_LIMIT`, such as 500MB or 10GB, else 10 GB.

    Raises:
        EditError: an environment variable's value cannot be used.
    """

    def __init__(self, folder: "str | Path | None" = None, limit: int | None = None) -> None:
        self.folder = _default_folder() if folder is None else Path(folder)
        self.limit = _default_limit() if limit is None else limit
        self._mutex = threading.Lock()
        self._usable = True
        self._total: int | None = None  # as this object knows it; others write too
        self._ours: dict[str, int] = {}

    def get(self, kind: str, digest: str) -> Kept | None:
        """The entry, or None; a damaged one is removed."""
        path = self._path(kind, digest)
        try:
            with open_file(path) as file:
                kept, size = read(file, path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.debug("%s is not read: %s", path, error)
            return None
        except (EditError, ValueError) as error:
            _log.debug("%s is damaged and removed: %s", path, error)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        with self._mutex:
            self._ours[path.name] = size
        return kept

    def put(
        self,
        kind: str,
        digest: str,
        tensors: Mapping[str, Tensor] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps tensors of any device and values that JSON can hold, if there is room; where the
        disk does not let it, the rest of this object's entries are not written either."""
        if not self._usable:
            return
        path = self._path(kind, digest)
        pieces = encoded(path.name, tensors or {}, figures or {})
        try:
            if self._make_room(path.name, sum(map(len, pieces))):
                write(path, pieces)
        except OSError as error:
            _log.debug("%s is not written, and nothing after it: %s", path, error)
            self._usable = False

    def listing(self) -> Listing:
        """What it holds, by kind.

        Raises:
            EditError: the folder cannot be read.
        """
        found = [file for file in self._scanned() if file.kind is not None]
        rows = []
        for kind in KINDS:
            files = [file for file in found if file.kind == kind]
            if files:
                used = sorted(file.used for file in files)
                rows.append(
                    {
                        "kind": kind,
                        "entries": len(files),
                        "bytes": sum(file.size for file in files),
                        "unused_since": used[0],
                        "last_used": used[-1],
                    }
                )
        total = sum(file.size for file in found)
        return Listing(str(self.folder), self.limit, len(found), total, rows)

    def clear(self) -> Freed:
        """Removes every entry and what a killed run left of one; nothing else in the folder, and
        links are not followed.

        Raises:
            EditError: the folder cannot be read, or an entry not removed.
        """
        count = size = 0
        for file in self._scanned():
            try:
                file.path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise EditError(f"{file.path} cannot be removed: {error.strerror}") from None
            count, size = count + 1, size + file.size
        with self._mutex:
            self._total = None
            self._ours.clear()
        return Freed(str(self.folder), count, size)

    def _path(self, kind: str, digest: str) -> Path:
        name = f"{kind}-{digest}.safetensors"
        if not _ENTRY.fullmatch(name):
            raise ValueError(f"{kind!r} and {digest!r} name no entry")
        return self.folder / name

    def _make_room(self, name: str, size: int) -> bool:
        """Whether an entry of `size` bytes may be written; older ones of others go for it."""
        with self._mutex:
            ours = sum(self._ours.values()) - self._ours.get(name, 0)
            if ours + size > self.limit:
                return False
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._total is None or self._total + size > self.limit:
                self._total = self._evict(self.limit - size)
            if shutil.disk_usage(self.folder).free - size < _SPARE:
                return False
            self._total += size
            self._ours[name] = size
            return True

    def _evict(self, most: int) -> int:
        """Removes entries where they take more than `most` bytes, with some to spare so that the
        folder is not scanned again at once; the bytes that are left."""
        files = sorted(_scan(self.folder), key=lambda file: file.used)
        total = sum(file.size for file in files)
        goal = most if total <= most else most - self.limit // 10
        for file in files:
            abandoned = file.kind is None and file.used < time.time() - _ABANDONED
            due = file.kind is not None and total > goal and file.path.name not in self._ours
            if abandoned or due:
                with suppress(FileNotFoundError):
                    file.path.unlink()
                total -= file.size
        return total

    def _scanned(self) -> list[_File]:
        try:
            return list(_scan(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EditError(f"{self.folder} cannot be read: {error.strerror}") from None


def usable_cache() -> Cache | None:
    """The cache of the environment; None where its limit is 0.

    Raises:
        EditError: an environment variable's value cannot be used.
    """
    cache = Cache()
    return cache if cache.limit else None


def parse_size(text: str, where: str) -> int:
    """Bytes from `500MB`, `1.5 GB`, `10GiB` or a plain number.

    Raises:
        EditError: another form; the message starts with `where`.
    """
    match = re.fullmatch(
        r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE | re.ASCII
    )
    if not match or (match[3] and not match[2]):
        raise EditError(f"{where} is {text!r}, expected a size such as 500MB or 10GB")
    return int(float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2].lower()])


def _default_folder() -> Path:
    named = os.environ.get(FOLDER)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named:
            folder = Path(named).expanduser()
        else:  # a relative path there is to be ignored, says its specification
            home = Path(shared) if shared.startswith("/") else Path.home() / ".cache"
            folder = home / "rledit"
    except RuntimeError:
        raise EditError(f"no home folder is known to keep a cache in: set {FOLDER}") from None
    with suppress(OSError):
        if folder.exists() and not folder.is_dir():
            raise EditError(f"the cache {folder} is no folder: name another in {FOLDER}")
    return folder


def _default_limit() -> int:
    named = os.environ.get(LIMIT)
    return parse_size(named, LIMIT) if named else _DEFAULT_LIMIT


def _scan(folder: Path) -> Iterator[_File]:
    """Every file of a cache in its folder; what vanishes meanwhile is passed over."""
    with os.scandir(folder) as entries:
        for entry in entries:
            finished = _ENTRY.fullmatch(entry.name)
            if not finished and not _UNFINISHED.fullmatch(entry.name):
                continue
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    kind = finished[1] if finished else None
                    yield _File(Path(entry.path), found.st_size, found.st_mtime, kind)
