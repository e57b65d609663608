"""YAML as plain data that knows where each of its keys is written."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mergekit_rl.errors import EditError

KeyPath = tuple[str | int, ...]

_MOST_BYTES = 1_000_000
_MOST_NODES = 100_000
_DEEPEST = 30
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None,
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
}  # fmt: skip
_TAG = "tag:yaml.org,2002:"
_TAGS = ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "value", "merge")


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
        return EditError(f"{self.where(path)}: {message}")


def key_text(path: Sequence[str | int]) -> str:
    """A path of keys as a person writes it.

    >>> key_text(("models", 0, "parameters", "weight"))
    'models[0].parameters.weight'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


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
    documents = []
    reader = _Reader(file)
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            if node is None or (isinstance(node, yaml.ScalarNode) and node.value == ""):
                continue
            documents.append(reader.document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EditError(f"{file}:{line}: is no YAML: {what}") from None
    except RecursionError:
        raise EditError(f"{file}:1: is nested deeper than {_DEEPEST} levels") from None
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


class _Loader(yaml.SafeLoader):
    """Composes nodes only; the values are made here."""


class _Reader:
    """Turns nodes into plain values and notes their lines."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0

    def document(self, node: yaml.Node) -> Document:
        lines: dict[KeyPath, int] = {}
        data = self._value(node, (), lines)
        if not isinstance(data, dict):
            raise EditError(
                f"{self._file}:{node.start_mark.line + 1}: is {_kind(data)}, expected keys and "
                "values such as merge_method: linear"
            )
        return Document(data, self._file, lines)

    def _fail(self, node: yaml.Node, message: str) -> EditError:
        return EditError(f"{self._file}:{node.start_mark.line + 1}: {message}")

    def _value(self, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise self._fail(node, f"has more than {_MOST_NODES} values, aliases followed")
        if len(path) > _DEEPEST:
            raise self._fail(node, f"is nested deeper than {_DEEPEST} levels")
        if not node.tag.startswith(_TAG) or node.tag.removeprefix(_TAG) not in _TAGS:
            raise self._fail(node, f"{key_text(path)} has the tag {node.tag}: only plain values")
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(one, (*path, i), lines) for i, one in enumerate(node.value)]
        return self._mapping(node, path, lines)

    def _mapping(
        self, node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in self._pairs(node):
            if not isinstance(key, yaml.ScalarNode):
                raise self._fail(key, f"{key_text(path)} has a key that is no text")
            name = key.value
            if name in found:
                where = f" in {key_text(path)}" if path else ""
                raise self._fail(key, f"{name!r} is written twice{where}")
            lines[(*path, name)] = key.start_mark.line + 1
            found[name] = self._value(value, (*path, name), lines)
        return found

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """The keys and values, those of a merged mapping (`<<: *other`) after the own ones."""
        own = [(k, v) for k, v in node.value if k.tag != f"{_TAG}merge"]
        yield from own
        names = {key.value for key, _ in own}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                if not isinstance(value, yaml.MappingNode):
                    raise self._fail(key, "<< merges something that is no mapping")
                yield from ((k, v) for k, v in value.value if k.value not in names)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        if node.style is not None or (node.tag == f"{_TAG}str" and not _FLOAT.fullmatch(text)):
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INT.fullmatch(text):
            return int(text)
        if _NOT_FINITE.fullmatch(text):
            raise self._fail(node, f"{key_text(path)} is {text}, expected a finite number")
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self._fail(node, f"{key_text(path)} is {text}, expected a finite number")
            return number
        return text


def _plain(value: Any, file: str = "", path: KeyPath = ()) -> Any:
    """Data that came from Python or JSON as plain values.

    Raises:
        EditError: something else is in it, or it is nested too deep.
    """
    where = f"{file}:1" if file else "recipe"
    if len(path) > _DEEPEST:
        raise EditError(f"{where}: is nested deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise EditError(f"{where}: {key_text(path)} has the key {key!r}, expected a text")
        return {key: _plain(one, file, (*path, key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, file, (*path, i)) for i, one in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise EditError(f"{where}: {key_text(path)} is {value}, expected a finite number")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = type(value).__name__
    raise EditError(f"{where}: {key_text(path)} is of type {kind}, expected plain values")


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a single value"
