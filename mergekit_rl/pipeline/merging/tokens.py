"""Which model has which vocabulary, and how two differ."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.vocabulary import Vocabulary, read_vocabulary, same_file, tokenizer_file


class Vocabularies:
    """The vocabularies of several models, each file read once and only where it is needed.

    Attributes:
        folders: where each model's tokenizer lies, or would.
    """

    def __init__(self, models: Sequence[Checkpoint], labels: Sequence[str]) -> None:
        self.folders = [_folder(model) for model in models]
        self._files = [tokenizer_file(folder) for folder in self.folders]
        self._labels = labels
        self._read: dict[Path, Vocabulary | None] = {}
        self._fits: set[tuple[int, int]] = set()

    def of(self, model: int) -> Vocabulary | None:
        """A model's vocabulary; None where it has no tokenizer that can be read."""
        file = self._files[model]
        if file is None:
            return None
        if file not in self._read:
            twin = next((other for other in self._read if same_file(file, other)), None)
            self._read[file] = read_vocabulary(file.parent) if twin is None else self._read[twin]
        return self._read[file]

    def check(self, model: int, donor: int) -> None:
        """Raises EditError where a model's vocabulary is another than the donor's; models without a
        tokenizer are taken to have the donor's."""
        if (model, donor) in self._fits:
            return
        one, other = self._files[model], self._files[donor]
        if one is not None and other is not None and not same_file(one, other):
            self._compare(model, donor)
        self._fits.add((model, donor))

    def _compare(self, model: int, donor: int) -> None:
        ours, theirs = self.of(donor), self.of(model)
        if ours is None or theirs is None or ours.ids == theirs.ids:
            return
        told = [
            _listed([text for text in theirs.ids if text not in ours.ids], "only in the former"),
            _listed([text for text in ours.ids if text not in theirs.ids], "only in the latter"),
            _listed(
                [text for text, n in theirs.ids.items() if ours.ids.get(text, n) != n],
                "with other ids",
            ),
        ]
        raise EditError(
            f"{self._labels[model]} has another vocabulary than {self._labels[donor]}: "
            f"{', '.join(filter(None, told))}; add a tokenizer to the recipe, such as "
            "tokenizer: {source: union} or {source: base}"
        )


def _folder(model: Checkpoint) -> Path:
    while isinstance(model, AdaptedCheckpoint) and tokenizer_file(model.folder) is None:
        model = model.base
    return model.folder


def _listed(texts: Sequence[str], what: str) -> str:
    if not texts:
        return ""
    first = ", ".join(map(repr, islice(texts, 3)))
    more = f" and {len(texts) - 3:,} more" if len(texts) > 3 else ""
    return f"{first}{more} {what}"
