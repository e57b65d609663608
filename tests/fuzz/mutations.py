"""Broken variants of bytes and of JSON documents, all drawn from one generator."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from fuzz import values


class Pairs(list):
    """A JSON object as [[key, value], …], so that a key may come twice."""


class Raw(str):
    """JSON text to be written as it is, valid or not."""


def of_bytes(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """`data` with one to four faults: flips, cuts, repeats, pieces of `other`."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(8):
            case 0 | 1 if at < len(data):
                flipped = data[at] ^ (1 << rng.randrange(8))
                data = data[:at] + bytes([flipped]) + data[at + 1 :]
            case 2:
                data = data[:at]
            case 3:
                data = data[:at] + data[to:]
            case 4:
                data = data[:at] + data[at : at + 200] * 2 + data[at + 200 :]
            case 5:
                data = data[:at] + rng.randbytes(rng.choice((1, 4, 300))) + data[at:]
            case 6:
                start = rng.randrange(len(other) + 1)
                data = data[:at] + other[start : start + rng.choice((3, 40, 1000))] + data[to:]
            case _:
                small = rng.choice((b"\0", b"\xff" * 8, b'"', b"{", b"]", b",", b"\\u0000", b"1e9"))
                data = data[:at] + small + data[at + len(small) * rng.randrange(2) :]
    return data


def parse(data: bytes) -> Any:
    """A JSON document with its objects as `Pairs`."""
    return json.loads(data, object_pairs_hook=lambda pairs: Pairs(list(pair) for pair in pairs))


def dump(tree: Any) -> bytes:
    """The text of a tree."""
    return _text(tree).encode("utf-8", "surrogatepass")


def value(rng: random.Random) -> Any:
    """A value of any type, extreme or a word of the readers."""
    match rng.randrange(8):
        case 0 | 1 | 2:
            return Raw(rng.choice(values.NUMBERS))
        case 3 | 4:
            return Raw(rng.choice(values.OTHERS))
        case 5:
            return _nested(rng)
        case 6 if rng.random() < 0.2:
            return Raw(rng.choice(('"\\ud800"', '"\\ud83d\\ude00"', '"\n"', "01", "'x'", "tru")))
        case _:
            return values.text(rng)


Domain = Callable[[random.Random], Any]


def of_tree(rng: random.Random, tree: Any, key: Domain, content: Domain = value) -> Any:
    """A tree with one to four faults, in place.

    Args:
        key, content: make a new key, and a new value.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return content(rng)
        holder, index = rng.choice(places)
        is_object = isinstance(holder, Pairs)
        match rng.randrange(10):
            case 0 | 1 | 2:
                _set(holder, index, content(rng))
            case 3 if is_object:
                holder[index][0] = key(rng)
            case 4:
                del holder[index]
            case 5:
                holder.insert(index, [key(rng), content(rng)] if is_object else content(rng))
            case 6:
                other, at = rng.choice(places)
                if other is not holder or at < len(holder):
                    _set(holder, index, _copy(_get(other, at)))
            case 7 if is_object:
                holder.insert(rng.randrange(len(holder) + 1), [holder[index][0], content(rng)])
            case 8 if is_object:
                holder[index][0] += rng.choice(values.TEXTS)
            case _:
                _near(rng, holder, index, content)
    return tree


def of_document(rng: random.Random, tree: Any, key: Domain, content: Domain = value) -> bytes:
    """A JSON document with faults of its tree, or of its bytes one time in five."""
    if rng.random() < 0.2:
        return of_bytes(rng, dump(tree))
    return dump(of_tree(rng, tree, key, content))


def _near(rng: random.Random, holder: list, index: int, content: Domain) -> None:
    """A value that is nearly the one that was there."""
    old = _get(holder, index)
    if isinstance(old, int | float):
        _set(
            holder, index, rng.choice((old + 1, old - 1, old * 2, -old, f"{old}", Raw(f"{old}.0")))
        )
    elif isinstance(old, str) and not isinstance(old, Raw):
        at = rng.randrange(len(old) + 1)
        _set(holder, index, old[:at] + rng.choice(values.TEXTS) + old[at + rng.randrange(2) :])
    elif isinstance(old, Pairs):
        rng.shuffle(old)
    elif isinstance(old, list):
        old.append(content(rng))
    else:
        _set(holder, index, content(rng))


def _nested(rng: random.Random) -> Raw:
    depth = rng.choice((3, 90, 101, 900, 1100, 50_000))
    if rng.random() < 0.5:
        return Raw("[" * depth + "]" * depth)
    return Raw('{"a":' * depth + "1" + "}" * depth)


def _places(tree: Any) -> Iterator[tuple[list, int]]:
    if isinstance(tree, list):
        for index in range(len(tree)):
            yield tree, index
            yield from _places(_get(tree, index))


def _get(holder: list, index: int) -> Any:
    return holder[index][1] if isinstance(holder, Pairs) else holder[index]


def _set(holder: list, index: int, new: Any) -> None:
    if isinstance(holder, Pairs):
        holder[index][1] = new
    else:
        holder[index] = new


def _copy(tree: Any) -> Any:
    if isinstance(tree, Pairs):
        return Pairs([key, _copy(part)] for key, part in tree)
    return [_copy(part) for part in tree] if isinstance(tree, list) else tree


def _text(tree: Any) -> str:
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ",".join(f"{json.dumps(k)}:{_text(v)}" for k, v in tree) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_text, tree)) + "]"
    return json.dumps(tree, ensure_ascii=False)
