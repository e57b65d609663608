"""The regexes of an adapter's configuration, matched in bounded time.

They come from a file nobody vouches for, and over some of them Python's `re` takes time exponential
in their length. Here every pair of a pattern's part and a place in the name is looked at once.
Understood is what names are matched with: literals, escapes, `.`, classes, groups, `|`,
quantifiers, `^` and `$`. Lookaround, references and flags are refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mergekit_rl.errors import EditError

MAX_CHARACTERS = 10**6  # `rank_pattern` of our own cores names the modules of a rank in one pattern
_MAX_PARTS = 2000
_MAX_DEPTH = 50
_MAX_STEPS = 20_000  # for one name

_LITERAL = r"(?:[^\\.^$*+?{\[|()]|\\[^0-9A-Za-z])"
_LITERALS = re.compile(rf"(?:{_LITERAL}(?![*+?{{]))+|{_LITERAL}", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]|\\[dDwWsS]|\.", re.DOTALL)
_GROUP = re.compile(r"\((?:\?:|(?!\?))")
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(?=[0-9,])([0-9]*)(,?)([0-9]*)\})\??")

_Node = tuple[str, Any]
"""("words", {texts}), ("one", regex of a character), ("at", "^" or "$"), ("choice", sequences) or
("repeat", (node, least, most or None))."""


@dataclass(eq=False, slots=True)
class _Part:
    """What is taken from a name, and what may follow."""

    node: _Node | None
    then: list["_Part"] = field(default_factory=list)


class Pattern:
    r"""A regex that matches as PEFT's patterns do: a whole name, or what follows a dot in it.

    >>> Pattern(r"^model\.layers\.[0-3]\..*_proj").matches("model.layers.2.mlp.up_proj")
    True
    >>> Pattern(r"up_proj|down_proj").matches("model.layers.2.mlp.up_proj")
    True
    >>> Pattern(r"(a+)+$").matches("a" * 1000 + "b")
    False

    Attributes:
        parts: what it takes of memory, and of time at each place of a name.

    Raises:
        EditError: no regex, or none that is understood here; the message is the reason alone.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise EditError(f"{len(text):,} characters, expected at most {MAX_CHARACTERS:,}")
        self._text = text
        self._at = 0
        self.parts = 0
        parsed = self._choice(0)
        if self._at < len(text):
            raise EditError(f"the ) at position {self._at} closes nothing")
        self._end = _Part(None)
        self._start = self._built(parsed, self._end)

    def matches(self, name: str) -> bool:
        """Whether `(.*\\.)?(pattern)$` matches from the start of `name`.

        Raises:
            EditError: it takes too long to find out; the message is the reason alone.
        """
        ends = {len(name), len(name) - name.endswith("\n")}
        dots = (at + 1 for at, c in enumerate(name.partition("\n")[0]) if c == ".")
        left = [(self._start, at) for at in (0, *dots)]
        seen = set()
        while left:
            part, at = left.pop()
            if part is self._end and at in ends:
                return True
            if (part, at) in seen:
                continue
            seen.add((part, at))
            if len(seen) > _MAX_STEPS:
                raise EditError(f"matching {name[:80]!r} takes too long; write it more simply")
            left += [(then, to) for to in _taken(part, name, at, ends) for then in part.then]
        return False

    # Text to nodes

    def _choice(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise EditError(f"groups nested more than {_MAX_DEPTH} deep")
        sequences = [self._sequence(depth)]
        while self._text.startswith("|", self._at):
            self._at += 1
            sequences.append(self._sequence(depth))
        return "choice", sequences

    def _sequence(self, depth: int) -> list[_Node]:
        nodes = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            node = self._atom(depth)
            times = self._match(_QUANTIFIER)
            if times:
                if node[0] == "at" or self._text[self._at : self._at + 1] in ("*", "+", "?"):
                    raise self._fault("a quantifier with nothing to repeat", times.start())
                node = "repeat", (node, *_bounds(times))
            nodes.append(node)
        return nodes

    def _atom(self, depth: int) -> _Node:
        start = self._at
        if found := self._match(_LITERALS):
            return "words", {_ESCAPED.sub(r"\1", found[0])}
        if found := self._match(_CLASS):
            try:
                return "one", re.compile(found[0])
            except re.error as error:
                raise self._fault(str(error), start) from None
        if self._match(_GROUP):
            node = self._choice(depth + 1)
            if not self._text.startswith(")", self._at):
                raise self._fault("a ( that is not closed", start)
            self._at += 1
            return node
        c = self._text[start]
        if c in "*+?" or (c == "{" and _QUANTIFIER.match(self._text, start)):
            raise self._fault("a quantifier with nothing to repeat", start)
        if c in "\\([":
            raise self._fault(f"{self._text[start : start + 3]!r} is not understood", start)
        self._at += 1
        return ("at", c) if c in "^$" else ("words", {c})

    def _match(self, regex: re.Pattern[str]) -> re.Match[str] | None:
        found = regex.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _fault(self, what: str, at: int) -> EditError:
        return EditError(f"{what} (position {at})")

    # Nodes to parts, from the back

    def _built(self, node: _Node, then: _Part) -> _Part:
        """The first of the parts that a node is, when `then` follows."""
        kind, content = node
        self.parts += 1
        if self.parts > _MAX_PARTS:
            raise EditError("too large a pattern; write it more simply")
        if kind == "choice":
            words = {w for s in content if _is_word(s) for w in s[0][1]}
            firsts = [self._row(s, then) for s in content if not _is_word(s)]
            if words:
                firsts.append(self._built(("words", words), then))
            return firsts[0] if len(firsts) == 1 else _Part(None, firsts)
        if kind == "repeat":
            inner, least, most = content
            if most is None:
                loop = _Part(None, [then])
                loop.then.append(self._built(inner, loop))
                then = loop
            for _ in range((most or least) - least):
                then = _Part(None, [self._built(inner, then), then])
            return self._row([inner] * least, then)
        if kind == "words":
            lengths: dict[int, set[str]] = {}
            for word in content:
                lengths.setdefault(len(word), set()).add(word)
            node = kind, lengths
        return _Part(node, [then])

    def _row(self, nodes: list[_Node], then: _Part) -> _Part:
        for node in reversed(nodes):
            then = self._built(node, then)
        return then


def _is_word(sequence: list[_Node]) -> bool:
    return len(sequence) == 1 and sequence[0][0] == "words"


def _bounds(times: re.Match[str]) -> tuple[int, int | None]:
    sign, least, comma, most = times.groups()
    if sign:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
    if len(least) > 4 or len(most) > 4:
        raise EditError(f"the repetition {times[0][:20]} is too large")
    low = int(least or 0)
    high = int(most) if most else None if comma else low
    if high is not None and high < low:
        raise EditError(f"the repetition {times[0]} is none")
    return low, high


def _taken(part: _Part, name: str, at: int, ends: set[int]) -> Iterator[int]:
    """Where in the name a part that begins at `at` may end."""
    kind, content = part.node or ("", None)
    if kind == "words":
        yield from (at + n for n, words in content.items() if name[at : at + n] in words)
    elif kind == "one":
        if at < len(name) and content.fullmatch(name[at]):
            yield at + 1
    elif kind == "" or (at == 0 if content == "^" else at in ends):
        yield at
