"""One vocabulary of several, and the tokenizer files that tell it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.jsonfile import read_object
from mergekit_rl.io.vocabulary import TOKENIZER, Vocabulary

_CONFIG = "tokenizer_config.json"
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}
_PLAIN = {**_FLAGS, "normalized": True, "special": False}


def united(
    first: Vocabulary, others: Iterable[Vocabulary]
) -> tuple[Vocabulary, dict[str, dict[str, Any]]]:
    """The first vocabulary with its ids, then the tokens that only others have, by model and id;
    and those tokens' entries in tokenizer.json.

    >>> vocabulary, new = united(Vocabulary({"a": 0, "b": 1}), [Vocabulary({"c": 0, "a": 1})])
    >>> vocabulary.ids, new["c"]["id"]
    ({'a': 0, 'b': 1, 'c': 2}, 2)
    """
    ids = dict(first.ids)
    added = dict(first.added)
    new: dict[str, dict[str, Any]] = {}
    following = first.rows
    for other in others:
        for text in other.texts.values():
            if text in ids:
                continue
            flags = other.added.get(text, {})
            entry = {"id": following, "content": text}
            new[text] = entry | {name: flags.get(name, _PLAIN[name]) for name in _PLAIN}
            ids[text], added[text] = following, new[text]
            following += 1
    return Vocabulary(ids, added), new


def united_files(folder: Path, new: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """{name: content} of a folder's tokenizer files with more tokens.

    Raises:
        EditError: the folder has no tokenizer.json.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise EditError(
            f"{folder} has no tokenizer.json that tokens could join: load its tokenizer with "
            "transformers and save it with save_pretrained, or take tokenizer: {source: base}"
        )
    found = {TOKENIZER: _text(_joined(read_object(path), new))}
    config = read_object(folder / _CONFIG, optional=True)
    if isinstance(config.get("added_tokens_decoder"), Mapping):
        more = {str(entry["id"]): _without_id(entry) for entry in new.values()}
        config["added_tokens_decoder"] = {**config["added_tokens_decoder"], **more}
        found[_CONFIG] = _text(config)
    plain = read_object(folder / "added_tokens.json", optional=True)
    if plain:
        more = {text: entry["id"] for text, entry in new.items()}
        found["added_tokens.json"] = _text(plain | more)
    return found


def _joined(content: dict[str, Any], new: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return content | {"added_tokens": [*(content.get("added_tokens") or []), *new.values()]}


def _without_id(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "id"}


def _text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
