"""The tokens of a model, read from its tokenizer's files; no tokenizer is built."""

import filecmp
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.jsonfile import read_object

TOKENIZER = "tokenizer.json"
_FILES = (TOKENIZER, "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "tekken.json")
_UNREAD = _FILES[3:]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and their ids.

    Attributes:
        ids: {token as the tokenizer writes it: row of the embedding}.
        added: {token: its entry} of those that stand beside the tokenizer's own model.
    """

    ids: Mapping[str, int]
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def texts(self) -> dict[int, str]:
        """{id: token}, in the order of the ids."""
        return {number: text for text, number in sorted(self.ids.items(), key=lambda it: it[1])}

    @property
    def rows(self) -> int:
        """The least number of embedding rows that hold every token."""
        return max(self.ids.values(), default=-1) + 1


def tokenizer_file(folder: Path) -> Path | None:
    """The file of a folder that says what its tokens are; None where it has no tokenizer."""
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def same_file(one: Path, other: Path) -> bool:
    """Whether two files hold the same bytes under the same name."""
    return one == other or (one.name == other.name and filecmp.cmp(one, other, shallow=False))


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The tokens of a folder's tokenizer; None where it has none, or one that is only read by the
    library it was made with (SentencePiece, Tekken).

    Raises:
        EditError: its files are no tokenizer's.
    """
    path = tokenizer_file(folder)
    if path is None or path.name in _UNREAD:
        return None
    if path.name == TOKENIZER:
        return _fast(path)
    if path.name == "vocab.txt":
        lines = path.read_text(encoding="utf-8").splitlines()
        ids: dict[str, int] = {text: number for number, text in enumerate(lines)}
    else:
        ids = dict(read_object(path))
    more = read_object(folder / "added_tokens.json", optional=True)
    return Vocabulary(_checked(ids | more, path), {text: {"content": text} for text in more})


def _fast(path: Path) -> Vocabulary:
    content = read_object(path)
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocab, list) and all(isinstance(it, list) and it for it in vocab):
        vocab = {it[0]: number for number, it in enumerate(vocab)}  # Unigram: [token, score]
    added = content.get("added_tokens") or []
    fits = isinstance(vocab, Mapping) and isinstance(added, list)
    if not fits or not all(isinstance(it, Mapping) and "content" in it for it in added):
        raise EditError(
            f"{path} has no model.vocab and added_tokens, expected the file that "
            "AutoTokenizer.save_pretrained writes"
        )
    ids = dict(vocab) | {it["content"]: it.get("id") for it in added}
    return Vocabulary(_checked(ids, path), {it["content"]: it for it in added})


def _checked(ids: Mapping[Any, Any], path: Path) -> dict[str, int]:
    seen: dict[int, str] = {}
    for text, number in ids.items():
        if not isinstance(text, str) or type(number) is not int or not 0 <= number < 2**31:
            raise EditError(f"{path}: token {text!r} has the id {number!r}, expected a number")
        if seen.setdefault(number, text) != text:
            raise EditError(f"{path}: {seen[number]!r} and {text!r} have the same id, {number}")
    return dict(ids)
