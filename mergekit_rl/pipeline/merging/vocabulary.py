"""The vocabulary of a merged model, and every model's token rows laid over it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.modules import is_embedding
from mergekit_rl.io.vocabulary import Vocabulary
from mergekit_rl.pipeline.merging.inputs import Inputs, shown
from mergekit_rl.pipeline.merging.union import united
from mergekit_rl.recipe.recipe import Recipe
from mergekit_rl.recipe.schema import TokenEntry, TokenizerEntry, TokenRow
from mergekit_rl.registry import suggestion

if TYPE_CHECKING:
    from mergekit_rl.pipeline.merging.plan import Input

_LACKING = -1
_ZERO = (None, 0)


@dataclass(frozen=True)
class TokenRows:
    """A vocabulary and where each model has the row of each of its tokens.

    A token that a model lacks has there the row that the recipe's `tokens` says, else the base's,
    else its sole owner's, else the mean of its owners'. Rows without a token have the mean of all
    rows of the vocabulary's donor, unless a model has one there.

    Attributes:
        vocabulary: of the output.
        count: rows of the output's embedding.
        donor: number of the model whose tokenizer the output has.
        base: number of the base model, None without one.
        own: of each model, the row of each token of the output, (count,); -1 for none.
        said: {row of the output: (model, row there), or (None, 0) for zeros}, from the recipe.
        united: {token: its entry in tokenizer.json} of the tokens that the donor's lacks.
        notes: what the user should know.
    """

    vocabulary: Vocabulary
    count: int
    donor: int
    base: int | None
    own: tuple[Tensor, ...]
    said: Mapping[int, tuple[int | None, int]]
    united: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(recipe: Recipe, inputs: Inputs) -> "TokenRows | None":
        """What the recipe's `tokenizer` says; None where it says nothing, or changes nothing.

        Raises:
            EditError: a model without a vocabulary, or a token that is not there.
        """
        asked = recipe.tokenizer
        if asked is None:
            return None
        return _Reader(asked, inputs).rows()

    def read(self, inputs: Inputs, ones: Sequence["Input"], wide: torch.dtype) -> list[Tensor]:
        """Tensors of several models laid over the output's vocabulary, (count, …) on the CPU.

        Args:
            ones: which; all stand for the same tensor of the output.
            wide: fp32 or fp64, of the results.
        """
        rows = _Rows(self, inputs, ones, wide)
        return [rows.laid(one.model) for one in ones]

    @property
    def digest(self) -> str:
        """What tells these rows from others, in hex."""
        running = hashlib.sha256(repr(sorted(self.said.items())).encode())
        for own in self.own:
            running.update(own.numpy().tobytes())
        return running.hexdigest()

    def described(self) -> dict[str, Any]:
        """Counts for a person: rows, tokens, and how many each model lacks."""
        texts = self.vocabulary.ids.values()
        tokens = torch.tensor(sorted(texts), dtype=torch.int64)
        return {
            "count": self.count,
            "tokens": len(tokens),
            "lacking": [int((own[tokens] == _LACKING).sum()) for own in self.own],
            "new": list(self.united),
        }

    def renumbered(self, number: int, theirs: Vocabulary) -> int | None:
        """The output's id of the token that has an id in another vocabulary; None for none."""
        return self.vocabulary.ids.get(theirs.texts.get(number, ""))


class _Rows:
    """Token rows of one tensor of the output, read once per model."""

    def __init__(
        self, plan: TokenRows, inputs: Inputs, ones: Sequence["Input"], wide: torch.dtype
    ) -> None:
        self._plan, self._inputs, self._wide = plan, inputs, wide
        self._names = {one.model: one.name for one in ones}
        self._example = ones[0].name
        self._read: dict[int, Tensor | None] = {}
        lacking = torch.zeros(plan.count, dtype=torch.bool)
        for one in ones:
            lacking |= self._own(one.model) == _LACKING
        self._lacking = lacking.nonzero().flatten()  # rows that some model lacks
        self._filled = self._fill() if len(self._lacking) else None

    def laid(self, model: int) -> Tensor:
        """The rows of one model over the output's vocabulary."""
        raw, own = self._raw(model), self._own(model)
        found = raw[own.clamp_min(0)]
        if self._filled is not None:
            here = own[self._lacking] == _LACKING
            found[self._lacking[here]] = self._filled[here]
        return found

    def _raw(self, model: int) -> Tensor | None:
        if model not in self._read:
            name = self._names.get(model) or self._inputs.find(model, self._example)
            self._read[model] = (
                None if name is None else self._inputs.models[model].read(name).to(self._wide)
            )
        return self._read[model]

    def _own(self, model: int) -> Tensor:
        own = self._plan.own[model]
        raw = self._raw(model)
        if raw is None:
            return torch.full_like(own, _LACKING)
        return torch.where(own < raw.shape[0], own, _LACKING)

    def _fill(self) -> Tensor:
        """What stands in the rows that some model lacks, (lacking, …)."""
        plan, rows = self._plan, self._lacking
        example = self._raw(next(iter(self._names)))
        sums = torch.zeros(len(rows), *example.shape[1:], dtype=self._wide)
        owners = torch.zeros(len(rows), dtype=self._wide)
        base = None if plan.base is None else self._own(plan.base)[rows]
        for model in range(len(plan.own)):
            own = self._own(model)[rows]
            counts = own != _LACKING
            if base is not None and model != plan.base:
                counts &= base == _LACKING  # else the base's row is taken
            at = counts.nonzero().flatten()
            if len(at):
                sums[at] += self._raw(model)[own[at]]
                owners[at] += 1
        found = sums / owners.clamp_min(1).reshape(-1, *[1] * (sums.dim() - 1))
        nobody = owners == 0
        if bool(nobody.any()):
            giver = self._raw(plan.donor)
            found[nobody] = (example if giver is None else giver).mean(dim=0)
        for row, (model, theirs) in plan.said.items():
            at = (rows == row).nonzero().flatten()
            if len(at):
                found[at] = 0 if model is None else self._said(model, theirs)
        return found

    def _said(self, model: int, row: int) -> Tensor:
        raw = self._raw(model)
        if raw is None or row >= raw.shape[0]:
            label = self._inputs.labels[model]
            raise EditError(f"tokenizer.tokens: {label} has no row {row} in {self._example}")
        return raw[row]


class _Reader:
    """A recipe's `tokenizer` read beside the models' vocabularies."""

    def __init__(self, asked: TokenizerEntry, inputs: Inputs) -> None:
        self._asked = asked
        self._inputs = inputs
        whole = isinstance(asked.source, str)
        self._donor = inputs.donor if whole else inputs.number(asked.source)
        self._notes: list[str] = []

    @cached_property
    def _vocabularies(self) -> list[Vocabulary]:
        found = []
        for number, label in enumerate(self._inputs.labels):
            own = self._inputs.vocabularies.of(number)
            if own is None:
                own = self._inputs.vocabularies.of(self._donor)
                if own is None or self._rows_of(number) < own.rows:
                    raise EditError(
                        f"{label} has no tokenizer.json to lay its vocabulary beside others: load "
                        "its tokenizer with transformers and save it with save_pretrained"
                    )
                if number != self._donor:
                    giver = self._inputs.labels[self._donor]
                    self._notes.append(f"{label} has no tokenizer: taken to have that of {giver}")
            found.append(own)
        return found

    def rows(self) -> TokenRows | None:
        vocabularies = self._vocabularies
        donor = vocabularies[self._donor]
        vocabulary, new = donor, {}
        if self._asked.source == "union":
            others = [one for n, one in enumerate(vocabularies) if n != self._donor]
            vocabulary, new = united(donor, others)
        count = max(vocabulary.rows, self._rows_of(self._donor))
        step = self._asked.pad_to_multiple_of or 1
        count = -(-count // step) * step
        said, forced = self._said(vocabulary)
        same = all(one.ids == vocabulary.ids for one in vocabularies)
        sizes = {self._rows_of(number) for number in range(len(vocabularies))}
        if same and sizes == {count} and not said and self._donor == self._inputs.donor:
            return None
        own = [self._own(number, vocabulary, count) for number in range(len(vocabularies))]
        for one in own:
            one[forced] = _LACKING
        found = TokenRows(vocabulary, count, self._donor, self._inputs.base, tuple(own), said, new)
        return replace(found, notes=(*self._notes, *self._told(found)))

    def _rows_of(self, number: int) -> int:
        tensors = self._inputs.models[number].tensors
        return next((it.shape[0] for name, it in tensors.items() if is_embedding(name)), 0)

    def _own(self, number: int, vocabulary: Vocabulary, count: int) -> Tensor:
        theirs = self._vocabularies[number]
        own = torch.full((count,), _LACKING, dtype=torch.int64)
        # Rows that are no token's, here and there, stay where they are.
        free = torch.arange(min(count, self._rows_of(number)))
        taken = torch.zeros(max(count, theirs.rows, len(free)), dtype=torch.bool)
        taken[list(theirs.ids.values())] = True
        taken[list(vocabulary.ids.values())] = True
        free = free[~taken[: len(free)]]
        own[free] = free
        if theirs.ids:
            shared = [(row, theirs.ids.get(text, _LACKING)) for text, row in vocabulary.ids.items()]
            rows, found = torch.tensor(shared, dtype=torch.int64).unbind(1)
            own[rows] = torch.where(found < self._rows_of(number), found, _LACKING)
        return own

    def _said(self, vocabulary: Vocabulary) -> tuple[dict[int, tuple[int | None, int]], list[int]]:
        said, forced = {}, []
        for text, entry in self._asked.tokens.items():
            if text not in vocabulary.ids:
                hint = suggestion(text, vocabulary.ids)
                raise EditError(f"tokenizer.tokens: the vocabulary has no token {text!r}{hint}")
            row = vocabulary.ids[text]
            said[row] = self._row(text, entry)
            if entry.force:
                forced.append(row)
        return said, forced

    def _row(self, text: str, entry: TokenEntry) -> tuple[int | None, int]:
        source = entry.source
        if isinstance(source, TokenRow):
            if source.kind == "zero":
                return _ZERO
            number = self._inputs.number(source.model)
            if source.token_id is not None:
                if source.token_id >= self._rows_of(number):
                    raise EditError(
                        f"tokenizer.tokens.{text}: token_id is {source.token_id}, and "
                        f"{source.model} has {self._rows_of(number):,} rows"
                    )
                return number, source.token_id
            text, reference = source.token, source.model
        else:
            number, reference = self._inputs.number(source), source
        theirs = self._vocabularies[number].ids
        if text not in theirs:
            hint = suggestion(text, theirs)
            raise EditError(f"tokenizer.tokens: {reference} has no token {text!r}{hint}")
        return number, theirs[text]

    def _told(self, rows: TokenRows) -> list[str]:
        told = []
        if rows.united:
            told.append(
                f"{len(rows.united):,} tokens join the vocabulary: {shown(map(repr, rows.united))}"
            )
        counts = rows.described()["lacking"]
        for label, lacking in zip(self._inputs.labels, counts, strict=True):
            if lacking:
                told.append(
                    f"{label} lacks {lacking:,} of the {len(rows.vocabulary.ids):,} tokens: their "
                    "rows come from the models that have them"
                )
        return told
