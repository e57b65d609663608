"""YAML texts as plain values, and the line of each key."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from mergekit_rl.errors import EditError

KeyPath = tuple[str | int, ...]

DEEPEST = 30
_MOST_NODES = 100_000
_MOST_SHOWN = 60
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None,
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
}  # fmt: skip
_HALF = "it has half a surrogate pair"
_TAG = "tag:yaml.org,2002:"
_TAGS = ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "value", "merge")


def cut(text: str, most: int = _MOST_SHOWN) -> str:
    """A text as a message may show it: in one line, its end left out where it is long."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "…"


def is_text(value: str) -> bool:
    """Whether a text can be written: none where half a surrogate pair stands alone."""
    return not any("\ud800" <= one <= "\udfff" for one in value)


def shown(value: Any) -> str:
    """A value as a message may show it.

    >>> shown("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…"
    """
    return cut(repr(value))


def key_text(path: Sequence[str | int]) -> str:
    """A path of keys as a person writes it.

    >>> key_text(("models", 0, "parameters", "weight"))
    'models[0].parameters.weight'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{cut(part)}" if text else cut(part)
    return text


def read_yaml(text: str, file: str) -> Iterator[tuple[dict[str, Any], Mapping[KeyPath, int]]]:
    """(data, {path of keys: line, from 1}) of every document of a YAML text that is not empty.

    Raises:
        EditError: it is no YAML of plain values in mappings, with the line.
    """
    reader = _Reader(file)
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            if node is None or (isinstance(node, yaml.ScalarNode) and node.value == ""):
                continue
            yield reader.document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EditError(f"{file}:{line}: is no YAML: {what[:200]}") from None
    except RecursionError:
        raise EditError(f"{file}:1: is nested deeper than {DEEPEST} levels") from None


class _Loader(yaml.SafeLoader):
    """Composes nodes only; the values are made here."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Stops where nesting is too deep: the scanner would take long over the rest."""
        if self._depth > DEEPEST:
            raise RecursionError
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_scalar_node(self, anchor: str | None) -> yaml.ScalarNode:
        """A text that is tagged as one is taken as if it stood in quotes."""
        tag = self.peek_event().tag
        node = super().compose_scalar_node(anchor)
        if tag == f"{_TAG}str":
            node.style = node.style or '"'
        return node


class _Reader:
    """Turns nodes into plain values and notes their lines."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0

    def document(self, node: yaml.Node) -> tuple[dict[str, Any], Mapping[KeyPath, int]]:
        lines: dict[KeyPath, int] = {}
        data = self._value(node, (), lines)
        if not isinstance(data, dict):
            kind = "a list" if isinstance(data, list) else "a single value"
            raise self._fail(
                node, f"is {kind}, expected keys and values such as merge_method: linear"
            )
        return data, lines

    def _fail(self, node: yaml.Node, message: str) -> EditError:
        return EditError(f"{self._file}:{node.start_mark.line + 1}: {cut(message, 500)}")

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise self._fail(node, f"has more than {_MOST_NODES} values, aliases followed")
        if depth > DEEPEST:
            raise self._fail(node, f"is nested deeper than {DEEPEST} levels")

    def _value(self, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
        self._count(node, len(path))
        if not node.tag.startswith(_TAG) or node.tag.removeprefix(_TAG) not in _TAGS:
            tag = cut(node.tag)
            raise self._fail(node, f"{key_text(path)} has the tag {tag}: only plain values")
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(one, (*path, i), lines) for i, one in enumerate(node.value)]
        return self._mapping(node, path, lines)

    def _mapping(
        self, node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int]
    ) -> dict[str, Any]:
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in _own(node):
            name = self._name(key, path)
            if name in pairs:
                where = f" in {key_text(path)}" if path else ""
                raise self._fail(key, f"{shown(name)} is written twice{where}")
            pairs[name] = key, value
        for key, value in self._merged(node, len(path)):
            pairs.setdefault(self._name(key, path), (key, value))
        found: dict[str, Any] = {}
        for name, (key, value) in pairs.items():
            lines[(*path, name)] = key.start_mark.line + 1
            found[name] = self._value(value, (*path, name), lines)
        return found

    def _name(self, key: yaml.Node, path: KeyPath) -> str:
        if not isinstance(key, yaml.ScalarNode):
            raise self._fail(key, f"{key_text(path) or 'the recipe'} has a key that is no text")
        if not is_text(key.value):
            raise self._fail(key, f"{key_text((*path, key.value))} is no text: {_HALF}")
        return key.value

    def _merged(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """What `<<: *other` and `<<: [*one, *other]` bring, the first of equal keys first."""
        for key, value in node.value:
            if key.tag != f"{_TAG}merge":
                continue
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(one, yaml.MappingNode):
                    raise self._fail(key, "<< merges something that is no mapping")
                for pair in _own(one):
                    self._count(key, depth)
                    yield pair
                yield from self._merged(one, depth + 1)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        if not is_text(text):
            raise self._fail(node, f"{key_text(path)} is {shown(text)}: {_HALF}")
        if node.style is not None or (node.tag == f"{_TAG}str" and not _FLOAT.fullmatch(text)):
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            raise self._fail(node, f"{key_text(path)} is {cut(text)}, expected a finite number")
        return text


def _own(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    return [(key, value) for key, value in node.value if key.tag != f"{_TAG}merge"]
