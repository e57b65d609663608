"""A merge recipe, read, checked and resolved."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mergekit_rl.recipe.document import Document
from mergekit_rl.recipe.reference import ModelReference
from mergekit_rl.recipe.schema import (
    MergeRecipe,
    TokenizerEntry,
    TokenRow,
)
from mergekit_rl.recipe.schema_parts import StageCall
from mergekit_rl.recipe.settings import Level, resolve
from mergekit_rl.recipe.yaml_reader import KeyPath, key_text
from mergekit_rl.registry import Function


@dataclass(frozen=True)
class Source:
    """One model's entry.

    Attributes:
        model: the reference.
        layers: [first, end) of its layers; None for the whole model.
        parameters: settings written there.
        preprocess: what is done to its delta, those of the whole recipe first.
        path: the keys that lead to the entry.
    """

    model: ModelReference
    layers: tuple[int, int] | None
    parameters: Mapping[str, Any]
    preprocess: tuple[StageCall, ...]
    path: KeyPath


@dataclass(frozen=True)
class Piece:
    """Models merged layer by layer: an output slice, or the whole of `models`."""

    sources: tuple[Source, ...]
    base_model: ModelReference | None
    parameters: Mapping[str, Any]
    path: KeyPath


@dataclass(frozen=True)
class Block:
    """A sub-model, "" for the whole model, and its pieces in order."""

    name: str
    pieces: tuple[Piece, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One document of a recipe, checked.

    Attributes:
        method: the merge method.
        blocks: what is merged.
        tokenizer: the vocabulary of the output; None for the donor's.
        notes: what is accepted and changes nothing.
        document: what was read, for provenance and messages.
        entry: the rest of the recipe as it was read.
    """

    method: Function
    blocks: tuple[Block, ...]
    tokenizer: TokenizerEntry | None
    notes: tuple[str, ...]
    document: Document
    entry: MergeRecipe

    @property
    def name(self) -> str | None:
        """What other documents call the result."""
        return self.entry.name

    @property
    def base_model(self) -> ModelReference | None:
        """The base."""
        return self.entry.base_model

    @property
    def dtype(self) -> str | None:
        """The dtype that the recipe computes in, where it is mergekit's; of the output."""
        return self.entry.dtype

    @property
    def out_dtype(self) -> str | None:
        """The dtype of the output, before `dtype`."""
        return self.entry.out_dtype

    @property
    def chat_template(self) -> str | None:
        """`auto`, a name or a template."""
        return self.entry.chat_template

    @property
    def postprocess(self) -> tuple[StageCall, ...]:
        """What is done to the merged delta."""
        return tuple(self.entry.postprocess)

    @property
    def rest(self) -> "str | ModelReference":
        """Whose tensors are taken where the method does not merge: `base`, `mean` or a model."""
        return self.entry.rest

    @property
    def router(self) -> "str | ModelReference":
        """What becomes of tensors that choose experts: `merge`, or as `rest`."""
        return self.entry.router

    @property
    def seed(self) -> int:
        """Of random masks and subspaces."""
        return self.entry.seed

    @property
    def embeddings(self) -> str | None:
        """`tie`, `untie` or None."""
        return self.entry.embeddings

    def models(self) -> tuple[ModelReference, ...]:
        """All models, each once, in order of appearance; a base that is not listed first."""
        return tuple(dict.fromkeys(model for _, model in self._named()))

    def wants(self, name: str, layer: int | None, kind: str) -> bool:
        """Whether include and exclude let a tensor through."""
        include, exclude = self.entry.include, self.entry.exclude
        if include is not None and not any(one.matches(name, layer, kind) for one in include):
            return False
        return exclude is None or not any(one.matches(name, layer, kind) for one in exclude)

    def settings(
        self,
        block: Block,
        piece: Piece,
        inputs: Sequence[tuple[Source, str]],
        output: str,
        t: float,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The method's keyword arguments for one tensor, and where each was written.

        Args:
            inputs: (entry, name of its tensor) of every model that is merged.
            output: name of the tensor in the output.
            t: its depth, 0 to 1.

        Raises:
            EditError: a setting without a value.
        """
        shared = [
            Level(piece.parameters, output, key_text(piece.path)),
            Level(block.parameters, output, f"modules.{block.name}"),
            Level(self.entry.parameters, output, "parameters"),
        ]
        shared = [level for level in shared if level.parameters]
        values: dict[str, Any] = {}
        origins: dict[str, Any] = {}
        for setting in self.method.settings.values():
            if setting.per_model:
                found = [
                    resolve(
                        setting,
                        [Level(source.parameters, name, key_text(source.path)), *shared],
                        t,
                    )
                    for source, name in inputs
                ]
                values[setting.parameter] = [value for value, _ in found]
                origins[setting.parameter] = [where for _, where in found]
            else:
                levels = shared or [Level({}, output, "")]
                value, where = resolve(setting, levels, t)
                values[setting.parameter], origins[setting.parameter] = value, where
        return values, origins

    def path_of(self, model: ModelReference) -> KeyPath:
        """The keys that lead to where a model is first named."""
        return next(path for path, one in self._named() if one == model)

    def written(self, setting: str, piece: Piece | None) -> KeyPath:
        """The keys that lead to where a setting is written for the tensors of a piece."""
        homes = () if piece is None else (*(s.path for s in piece.sources), piece.path)
        homes += (piece.path[:2] if piece and piece.path[:1] == ("modules",) else (), ())
        paths = [(*home, "parameters", setting) for home in homes]
        return next((path for path in paths if path in self.document.lines), ("parameters",))

    def _named(self) -> Iterator[tuple[KeyPath, ModelReference]]:
        """(path of keys, model) wherever one is named; a base that is not listed first."""
        pieces = [piece for block in self.blocks for piece in block.pieces]
        listed = [((*s.path, "model"), s.model) for piece in pieces for s in piece.sources]
        bases = [(("base_model",), self.base_model)]
        bases += [((*piece.path, "base_model"), piece.base_model) for piece in pieces]
        inner = [model for _, model in listed]
        yield from ((path, one) for path, one in bases if one is not None and one not in inner)
        yield from listed
        yield from ((path, one) for path, one in bases if one is not None)
        yield from self._consulted()

    def _consulted(self) -> Iterator[tuple[KeyPath, ModelReference]]:
        """Models that are asked for tokens or copied tensors."""
        named: list[tuple[KeyPath, Any]] = [
            (("rest",), self.rest),
            (("router",), self.router),
        ]
        if self.tokenizer is not None:
            key = ("tokenizer_source",) if self.entry.tokenizer is None else ("tokenizer", "source")
            named.append((key, self.tokenizer.source))
            for text, entry in self.tokenizer.tokens.items():
                source = entry.source
                model = source.model if isinstance(source, TokenRow) else source
                named.append((("tokenizer", "tokens", text, "source"), model))
        yield from ((path, model) for path, model in named if isinstance(model, ModelReference))
