"""YAML as plain data that knows where each of its keys is written."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError, UnusableInput
from mergekit_rl.recipe.yaml_reader import (
    DEEPEST,
    KeyPath,
    cut,
    is_text,
    key_text,
    read_yaml,
    shown,
)

_MOST_BYTES = 1_000_000


class RecipeError(EditError):
    """Something a recipe says, with file and line."""


@dataclass(frozen=True)
class Document:
    """One document of a recipe file.

    Attributes:
        data: plain values.
        file: name of the file for messages, "" for data that came from Python.
        lines: {path of keys: line, from 1}.
    """

    data: dict[str, Any]
    file: str = ""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def where(self, path: Sequence[str | int] = ()) -> str:
        """`recipe.yaml:12`, the line of a key or of the nearest one around it."""
        if not self.file:
            return "recipe"
        path = tuple(path)
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}:{self.lines.get(path, 1)}"

    def error(self, path: Sequence[str | int], message: str) -> EditError:
        """An error about what stands at a path of keys."""
        return RecipeError(f"{self.where(path)}: {cut(message, 900)}")

    def renamed(self, key: str, to: str) -> "Document":
        """The document whose messages take one key's line for another's."""
        return replace(self, lines={**self.lines, (to,): self.lines.get((key,), 1)})

    @contextmanager
    def located(self, path: Sequence[str | int] = ()) -> Iterator[None]:
        """Says of an error that is raised within what line of the recipe it comes from."""
        try:
            yield
        except (RecipeError, UnusableInput):
            raise
        except EditError as error:
            key = key_text(path)
            named = f"{error}" if key in str(error) else f"{key}: {error}"
            raise self.error(path, named) from error


def read_documents(source: "str | Path | Mapping[str, Any] | Sequence[Any]") -> list[Document]:
    """The documents of a YAML file, of a `rledit.json`, or of plain data.

    Raises:
        EditError: the file cannot be read or is no YAML of plain values, with the line.
    """
    if isinstance(source, Mapping):
        return [Document(_plain(dict(source)))]
    if isinstance(source, str | Path):
        return _from_file(Path(source))
    if not isinstance(source, Sequence) or not all(isinstance(one, Mapping) for one in source):
        raise EditError("a recipe is a file, a mapping, or a list of mappings")
    return [Document(_plain(dict(one))) for one in source]


def parse_text(text: str, file: str) -> list[Document]:
    """The documents of a YAML text.

    Raises:
        EditError: as `read_documents`.
    """
    if len(text) > _MOST_BYTES:
        raise EditError(f"{file}: is larger than {_MOST_BYTES} bytes, which no recipe is")
    documents = [Document(data, file, lines) for data, lines in read_yaml(text, file)]
    if not documents:
        raise EditError(f"{file}:1: is empty, expected a recipe (`rledit recipes` has some)")
    return documents


def _from_file(path: Path) -> list[Document]:
    try:
        if path.stat().st_size > _MOST_BYTES * (20 if path.suffix == ".json" else 1):
            raise EditError(f"{path}: is larger than {_MOST_BYTES} bytes, which no recipe is")
        text = path.read_bytes().decode("utf-8")
    except IsADirectoryError:
        raise EditError(f"{path} is a folder, expected a recipe file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise EditError(f"{path} cannot be read: {reason}") from None
    if path.suffix == ".json":
        return _from_json(path, text)
    return parse_text(text, path.name)


def _from_json(path: Path, text: str) -> list[Document]:
    """The recipe in what an earlier merge wrote beside its model, or a recipe in JSON."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EditError(f"{path.name}:1: is no JSON: {error}") from None
    if isinstance(content, Mapping) and "rledit" in content:
        if "recipe" not in content:
            raise EditError(f"{path.name}:1: holds no recipe: it is not of a merge")
        content = content["recipe"]
    several = content if isinstance(content, list) else [content]
    if not several or not all(isinstance(one, Mapping) for one in several):
        raise EditError(f"{path.name}:1: holds no recipe, expected a mapping or a list of them")
    return [Document(_plain(dict(one), path.name), path.name) for one in several]


def _plain(value: Any, file: str = "", path: KeyPath = ()) -> Any:
    """Data that came from Python or JSON as plain values.

    Raises:
        EditError: something else is in it, or it is nested too deep.
    """
    where = f"{file}:1" if file else "recipe"
    if len(path) > DEEPEST:
        raise EditError(f"{where}: is nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not is_text(key):
                home = key_text(path) or "the recipe"
                raise EditError(f"{where}: {home} has the key {shown(key)}, expected a text")
        return {key: _plain(one, file, (*path, key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, file, (*path, i)) for i, one in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise EditError(f"{where}: {key_text(path)} is {value}, expected a finite number")
    if isinstance(value, str) and not is_text(value):
        raise EditError(f"{where}: {key_text(path)} is {shown(value)}, expected a text")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = type(value).__name__
    raise EditError(f"{where}: {key_text(path)} is of type {kind}, expected plain values")
