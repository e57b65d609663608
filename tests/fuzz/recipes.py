"""Broken merge recipes, and what planning a merge does with one; tiny models for them to name."""

import json
import random
import re
from pathlib import Path
from typing import Any

import yaml
from fuzz import mutations, values
from merge_trio import trio

from mergekit_rl import EditError, sar
from mergekit_rl.pipeline.merging.documents import small_files
from mergekit_rl.pipeline.merging.forecast import row
from mergekit_rl.pipeline.merging.run import Run
from mergekit_rl.recipe.schema import (
    MergeRecipe,
    ModuleEntry,
    SliceEntry,
    SourceEntry,
    TokenizerEntry,
    TokenRow,
)
from mergekit_rl.recipe.schema_parts import Selector
from mergekit_rl.registry import methods, stages
from mergekit_rl.shipped import shipped_recipes

NAME = "recipe.yaml"
_MODELS = ("base", "math", "code", "base+lora", "lora", "math-core", "code-core", "absent", "a@b+c")
_PARTS = (
    MergeRecipe, ModuleEntry, SliceEntry, SourceEntry, Selector, TokenizerEntry, TokenRow,
)  # fmt: skip
_KEYS = ("method", "filter", "value", "lora", "path", "revision", "force", "architecture")
_WORDS = (
    "self_attn", "mlp", "q_proj", "*", "union", "mean", "base", "tie", "untie", "float32", "bf16",
    "norm", "text_model", "vision_tower", "auto", "chatml", "zero", "model_token", "<s>", "full",
    "energy:0.5", "mean", "l1", "density",
)  # fmt: skip
_PLAIN = (
    "0", "1", "-1", "0.5", "-0.5", "1e-3", "2", "3", "4", "1e400", ".nan", ".inf", "null", "true",
    "false", "[0, 1]", "[0, 2]", "[1, 3]", "[0, 0.5, 1]", "[]", "{}", "[[0, 1]]",
    "99999999999999999",
    "123456789012345678901234567890",
)  # fmt: skip
_YAML = (
    "&a ", "*a", "<<: *a", "<<: [*a]", "? ", "- ", ": ", "!!str ", "!!python/name:os.system ",
    "!x ",
    "---\n", "...\n", "%YAML 1.1\n", "|\n", ">\n", "# ", "'", '"', "[", "]", "{", "}", ",", "\t",
    "\r\n", "\x00", "\ufeff", "\x85", "\u2028", "&a [*a, *a]", "{<<: {? [1] : 2}}", "@", "`", "~",
)  # fmt: skip
_WHOLE = re.compile(r"cannot be read: |is larger than ")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_LINE = re.compile(r"recipe\.yaml:(\d+): (.*)", re.DOTALL)
# Errors about the text as a whole, which is about no key.
_NO_KEY = re.compile(
    r"is no YAML: |is nested deeper|has more than \d+ values|is empty, expected|expected keys and"
    r" values|has no name: |has a key that is no text|half a surrogate"
)


def models(folder: Path) -> dict[str, str]:
    """{model as the recipes name it: its folder}, made on the spot: four layers, 3 KB each."""
    found = trio(folder, "math code", layers=4)
    vocabulary = {f"w{i}": i for i in range(10)}
    content = {"model": {"type": "WordLevel", "vocab": vocabulary}, "added_tokens": []}
    for path in found.values():
        (path / "tokenizer.json").write_text(json.dumps(content))
    for name in ("math", "code"):
        found[f"{name}-core"] = folder / f"{name}-core"
        sar(found["base"], found[name], found[f"{name}-core"], rank=1, workers=1, device="cpu")
    found["lora"] = found["math-core"]
    return {name: str(path) for name, path in found.items()}


def broken(rng: random.Random) -> bytes:
    """The text of a recipe, mostly with something wrong."""
    texts = [path.read_text(encoding="utf-8") for path in shipped_recipes("merge").values()]
    match rng.randrange(8):
        case 0:
            other = rng.choice((rng.choice(texts), "".join(rng.choices(_YAML, k=20))))
            return mutations.of_bytes(rng, rng.choice(texts).encode(), other.encode())
        case 1:
            return _lines(rng, rng.choice(texts)).encode()
        case 2:
            return _written(rng).encode("utf-8", "surrogatepass")
        case 3 | 4 | 5:
            trees = [tree for tree in yaml.safe_load_all(rng.choice(texts)) if tree]
            for _ in range(rng.choice((1, 1, 2, 3))):
                _change(rng, rng.choice(trees))
            return yaml.safe_dump_all(trees).encode()
        case _:
            trees = [tree for tree in yaml.safe_load_all(rng.choice(texts)) if tree]
            dumped = []
            for tree in trees:
                parsed = mutations.parse(json.dumps(tree).encode())
                dumped.append(mutations.of_document(rng, parsed, _key, _content))
            return b"\n---\n".join(dumped)


def plan(path: Path, places: dict[str, str]) -> None:
    """Reads and plans a recipe, and makes every small file of the output.

    Raises:
        EditError: the recipe will not do; in what it says of itself, with line and key.
    """
    run = Run.of(path, places=places, device="cpu", workers=1)
    assert run.key()
    assert small_files(run.plans)
    assert all(row(run, output)["name"] for output in run.plan.outputs)


def unclear(error: EditError, text: bytes) -> str:
    """What an error about the recipe itself lacks; "" where nothing."""
    message = str(error)
    if _WHOLE.search(message):
        return ""
    found = _LINE.match(message)
    if not found:
        return f"names no line: {message[:300]}"
    if not 1 <= int(found[1]) <= len(text.decode("utf-8").splitlines()) + 1:  # or its end
        return f"names a line that is not there: {message[:300]}"
    words = set(_WORD.findall(text.decode("utf-8"))) | _known()
    if not _NO_KEY.search(found[2]) and not words & set(_WORD.findall(found[2])):
        return f"names no key: {message[:300]}"
    return ""


def _known() -> set[str]:
    return {*_KEYS, *(key for part in _PARTS for key in part.model_fields)}


def _key(rng: random.Random) -> str:
    settings = [name for one in methods().values() for name in one.settings]
    lists = (sorted(_known()), settings, _WORDS, values.TEXTS)
    found = rng.choice(rng.choice(lists[: 3 if rng.random() < 0.9 else 4]))
    if rng.random() < 0.2:
        at = rng.randrange(len(found) + 1)
        found = found[:at] + rng.choice("aeiou_ ") + found[at + 1 :]
    return found


def _content(rng: random.Random) -> Any:
    named = [*methods(), *stages("preprocess"), *stages("postprocess")]
    match rng.randrange(8):
        case 0:
            return rng.choice(_MODELS)
        case 1:
            return rng.choice(named)
        case 2:
            return rng.choice(_WORDS)
        case 3 | 4:
            return mutations.Raw(rng.choice(_PLAIN))
        case 5:
            pairs = [[_key(rng), _content(rng)] for _ in range(rng.randrange(3))]
            return mutations.Pairs(pairs)
        case 6:
            return [_content(rng) for _ in range(rng.randrange(3))]
        case _:
            return mutations.value(rng)


def _change(rng: random.Random, tree: dict[str, Any]) -> None:
    """Another value of about the right form, so that planning is reached."""
    number = rng.choice((0, 1, -1, 0.3, 2.5, [0, 1], [0.2, 0.5, 1], 1e30))
    filters = [
        {"filter": rng.choice(_WORDS), "value": number},
        {"value": rng.choice((0, 1, number))},
    ]
    scalar = rng.choice((number, number, filters, filters[:1]))
    entries = [*tree.get("models", ()), *(e for s in tree.get("slices", ()) for e in s["sources"])]
    entry = rng.choice(entries)
    start = rng.randrange(4)
    match rng.randrange(10):
        case 0:
            tree["merge_method"] = rng.choice([*methods()])
        case 1 | 2:
            setting = rng.choice(sorted({n for one in methods().values() for n in one.settings}))
            rng.choice((tree, entry)).setdefault("parameters", {})[setting] = scalar
        case 3:
            rng.choice((tree, entry)).setdefault("parameters", {})["weight"] = scalar
        case 4:
            entry["layer_range"] = [start, start + rng.choice((1, 2, 3, 0, -1))]
        case 5:
            rng.choice((tree, entry)).pop(rng.choice(("base_model", "parameters", "model")), None)
        case 6:
            layers = {"layers": [start, start + 1], "kinds": ["q_proj"]}
            tree[rng.choice(("include", "exclude"))] = rng.choice(
                (layers, "mlp", [], ["z", layers])
            )
        case 7:
            when = rng.choice(("preprocess", "postprocess"))
            name = rng.choice([*stages("preprocess"), *stages("postprocess")])
            settings = {"density": 0.5, "rank": 1, "factor": 2, "alpha": 1, "beta": 1, "to": "min"}
            called = {name: dict(rng.sample(sorted(settings.items()), rng.choice((0, 1, 1, 2))))}
            (tree if when == "postprocess" else rng.choice((tree, entry)))[when] = [called]
        case 8:
            key = rng.choice(("out_dtype", "dtype", "embeddings", "rest", "seed", "chat_template"))
            tree[key] = rng.choice((*_WORDS, *_MODELS, 3, "", "a+"))
        case _:
            rng.choice((tree, entry))[rng.choice(("base_model", "model"))] = rng.choice(_MODELS)


def _lines(rng: random.Random, text: str) -> str:
    """YAML with lines moved, doubled, indented otherwise, or with signs of YAML in them."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 1:
                del lines[at]
            case 2:
                lines[at] = " " * rng.randrange(5) + lines[at].lstrip()
            case 3:
                to = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:to] + rng.choice(_YAML) + lines[at][to:]
            case _:
                lines[at] = (
                    f"{lines[at].partition(':')[0]}: {rng.choice(_PLAIN + _WORDS + _MODELS)}"
                )
        lines = lines or [""]
    return "\n".join(lines)


def _written(rng: random.Random) -> str:
    """YAML of random words: a bomb of aliases, deep nesting, or blocks that may be a recipe."""
    match rng.randrange(8):
        case 0:
            width, depth = rng.choice(((10, 8), (3, 20), (300, 3), (2, 40)))
            lines = ["a0: &a0 [x]"]
            lines += [f"a{i}: &a{i} [{f'*a{i - 1}, ' * width}]" for i in range(1, depth)]
            return "\n".join(lines)
        case 1:
            depth = rng.choice((5, 29, 31, 200, 30_000))
            sign, end = rng.choice(
                (("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("&a [", "]"))
            )
            return f"a: {sign * depth}1{end * depth}" if sign[0] in "[{&" else sign * depth + "1"
        case 2:
            return "".join(rng.choices(_YAML + _PLAIN + _WORDS + ("\n", "\n  ", " "), k=30))
        case _:
            return "\n".join(_block(rng, 0))


def _block(rng: random.Random, depth: int) -> list[str]:
    lines = []
    for _ in range(rng.choice((1, 2, 3, 5))):
        start = " " * (2 * depth) + rng.choice(("", "", "", "- ")) + _key(rng) + ":"
        if depth < 4 and rng.random() < 0.4:
            lines += [start, *_block(rng, depth + 1)]
        else:
            lines.append(f"{start} {rng.choice(_PLAIN + _WORDS + _MODELS)}")
    return lines
