"""JSON from files nobody vouches for: size and nesting capped, duplicates refused, errors in one
line."""

import json
import os
import re
import stat
from pathlib import Path
from typing import IO, Any

from mergekit_rl.errors import EditError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_BYTES = 64 * 2**20  # an index of 100,000 tensors takes about 10 MB
MAX_DEPTH = 100
_SHOWN = 200  # characters of a value that an error repeats


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`.

    Raises:
        EditError: not UTF-8, not JSON, not an object, nested too deeply, or with a key
            written twice; the message starts with `where`.
    """
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
        if _SURROGATE.search(text):  # escapes of half a character: legal JSON, and no text
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        _check_depth(found)
    except RecursionError:
        raise EditError(
            f"{where} is nested too deeply, expected at most {MAX_DEPTH} levels"
        ) from None
    except ValueError as error:
        raise EditError(f"{where} is not valid JSON: {error}") from None
    except _DuplicateKey as error:
        raise EditError(f"{where} holds the name {shown(error.args[0])} twice") from None
    if not isinstance(found, dict):
        raise EditError(f"{where} holds a JSON {type(found).__name__}, expected an object")
    return found


def read_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in the file `path`; {} where `optional` and there is no such file."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise EditError(f"{path} is {size:,} bytes, expected at most {MAX_BYTES:,}")
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if optional:
            return {}
        raise EditError(f"{path} does not exist") from None
    except OSError as error:
        raise EditError(f"{path} cannot be read: {error.strerror}") from None
    return parse_object(text, str(path))


def open_file(path: Path) -> IO[bytes]:
    """An ordinary file opened for reading; a pipe or device is not waited for.

    Raises:
        OSError: as `open`, and where `path` is no ordinary file.
    """

    def opener(name: str, flags: int) -> int:
        fd = os.open(name, flags | os.O_NONBLOCK)
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # `open` itself refuses a folder
            os.close(fd)
            raise OSError(None, "it is no ordinary file")
        return fd

    return open(path, "rb", opener=opener)


def shown(value: object) -> str:
    """A value of such a file as an error repeats it: one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _DuplicateKey(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKey(key)
            seen.add(key)
    return found


def _check_depth(found: object) -> None:
    level = [found]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for holder in level
            if isinstance(holder, dict | list)
            for part in (holder.values() if isinstance(holder, dict) else holder)
        ]
    if level:
        raise RecursionError
