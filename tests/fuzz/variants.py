"""Per reader: which file of which seed is broken, and how."""

import random
import struct
from collections.abc import Callable
from math import prod

from fuzz import values
from fuzz.corpus import ADAPTER, CONFIG, CORE, INDEX, LORA, WEIGHTS, Seed
from fuzz.mutations import Pairs, Raw, dump, of_bytes, of_document, of_tree, parse, value

Files = dict[str, bytes]
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "U8": 8, "BOOL": 8}
_SHAPES = (
    [], [0], [1], [4], [0, 4], [4, 0], [1, 1], [4, 4], [2, 4], [4, 2], [5, 4], [2, 3, 4], [1] * 64,
    [1] * 65, [0, 2**62], [2**62, 0, 2**62], [0, 2**31, 2**31, 2**31], [2, 0, 3], [12, 4], [3, 3],
)  # fmt: skip


def header(rng: random.Random, files: Files) -> Files:
    """A weights file with a broken header, or a sound one of unexpected tensors."""
    return {WEIGHTS: weights(rng, files[WEIGHTS], values.name)}


def adapter_header(rng: random.Random, files: Files) -> Files:
    """The same of an adapter's file."""
    names = values.KEYS if rng.random() < 0.8 else values.NAMES
    return {ADAPTER: weights(rng, files[ADAPTER], lambda rng: rng.choice(names))}


def index(rng: random.Random, files: Files) -> Files:
    """A shard index with wrong files, names or types."""

    def content(rng: random.Random) -> object:
        return rng.choice(values.PATHS) if rng.random() < 0.5 else value(rng)

    return {INDEX: of_document(rng, parse(files[INDEX]), values.name, content)}


def config(rng: random.Random, files: Files) -> Files:
    """A config.json whose fields have other types, and other families' names."""

    def content(rng: random.Random) -> object:
        return rng.choice(values.MODEL_TYPES) if rng.random() < 0.3 else value(rng)

    return {
        CONFIG: of_document(
            rng, parse(files[CONFIG]), lambda rng: rng.choice(values.FIELDS), content
        )
    }


def adapter_config(rng: random.Random, files: Files) -> Files:
    """An adapter_config.json: its patterns, targets, rows and types."""
    tree = parse(files[LORA])
    match rng.randrange(6):
        case 0 | 1:
            patterns = Pairs(
                [rng.choice(values.REGEXES + values.TARGETS), Raw(rng.choice(("1", "0", "2.5")))]
                for _ in range(rng.choice((1, 1, 3, 20)))
            )
            _put(tree, "alpha_pattern", patterns)
        case 2:
            targets = [rng.choice(values.TARGETS) for _ in range(rng.randrange(4))]
            _put(tree, "target_parameters", targets)
        case 3:
            rows = [Raw(rng.choice(values.NUMBERS)) for _ in range(rng.randrange(4))]
            named = Pairs([[rng.choice(values.FIELDS), rows]])
            _put(tree, "trainable_token_indices", rng.choice((rows, named)))
    if rng.random() < 0.7:
        return {LORA: of_document(rng, tree, lambda rng: rng.choice(values.FIELDS))}
    return {LORA: dump(tree)}


def core(rng: random.Random, files: Files) -> Files:
    """A core.json with other targets, dtypes, digests."""
    return {CORE: of_document(rng, parse(files[CORE]), values.name)}


VARIANTS: dict[str, tuple[Callable[[random.Random, Files], Files], str]] = {
    "header": (header, WEIGHTS),
    "index": (index, INDEX),
    "config": (config, CONFIG),
    "adapter_config": (adapter_config, LORA),
    "adapter_header": (adapter_header, ADAPTER),
    "core": (core, CORE),
}
"""{reader: (makes the broken file, the file that a seed must have)}."""


def candidates(reader: str, seeds: dict[str, Seed]) -> list[str]:
    """The seeds that a reader's variants are made from."""
    return [name for name, seed in seeds.items() if VARIANTS[reader][1] in seed.files]


# Safetensors files


def weights(rng: random.Random, data: bytes, name: Callable[[random.Random], str]) -> bytes:
    """A safetensors file: its bytes broken, its header's JSON broken, or tensors changed so that
    the file is sound again and readers get further."""
    kind = rng.randrange(10)
    if kind == 0:
        return of_bytes(rng, data, data[::-1])
    length = int.from_bytes(data[:8], "little")
    tree, rest = parse(data[8 : 8 + length]), data[8 + length :]
    if kind < 4:
        text = dump(of_tree(rng, tree, name))
        claimed = len(text)
        if rng.random() < 0.2:
            claimed = rng.choice((0, 1, claimed - 1, claimed + 1, 2**31, 10**8, 2**60, 2**64 - 1))
        rest = rest if rng.random() < 0.8 else rest[: rng.randrange(len(rest) + 1)]
        return struct.pack("<Q", claimed % 2**64) + text + rest
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, tree, name)
    return _tiled(rng, tree)


def _change(rng: random.Random, tree: Pairs, name: Callable[[random.Random], str]) -> None:
    """Another name, shape or dtype of a tensor, one more, or one less."""
    at = rng.randrange(len(tree)) if tree else 0
    shape = list(rng.choice(_SHAPES))
    dtype = rng.choice(values.DTYPES) if rng.random() < 0.3 else "F32"
    match rng.randrange(6) if tree else 0:
        case 0:
            entry = Pairs([["dtype", dtype], ["shape", shape], ["data_offsets", [0, 0]]])
            tree.insert(at, [name(rng), entry])
        case 1 | 2:
            tree[at][0] = name(rng)
        case 3:
            _put(tree[at][1], "shape", shape)
        case 4:
            _put(tree[at][1], "dtype", dtype)
        case 5:
            del tree[at]


def _tiled(rng: random.Random, tree: Pairs) -> bytes:
    """A file of these tensors with offsets that fit and data of the right size."""
    at = 0
    for key, entry in tree:
        fields = dict(entry)
        if key != "__metadata__" and "shape" in fields and "dtype" in fields:
            size = prod(fields["shape"]) * _BITS.get(str(fields["dtype"]), 8) // 8
            _put(entry, "data_offsets", [at, at + size])
            at += size
    text = dump(tree)
    if at > 2**20:
        at = 64
    data = b"\x00\x00\x80\x3f" * (at // 4) + bytes(at % 4)  # ones in F32
    if rng.random() < 0.1:
        data = of_bytes(rng, data)
    return len(text).to_bytes(8, "little") + text + data


def _put(pairs: Pairs, key: str, content: object) -> None:
    for pair in pairs:
        if pair[0] == key:
            pair[1] = content
            return
    pairs.append([key, content])
