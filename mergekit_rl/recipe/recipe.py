"""A merge recipe, read, checked and resolved."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mergekit_rl.recipe.checks import check_models, check_parameters, told
from mergekit_rl.recipe.document import Document, read_documents
from mergekit_rl.recipe.faults import readable
from mergekit_rl.recipe.reference import ModelReference
from mergekit_rl.recipe.schema import (
    MergeRecipe,
    ModelEntry,
    ModuleEntry,
    SliceEntry,
    SourceEntry,
    StageCall,
    TokenizerEntry,
    TokenRow,
)
from mergekit_rl.recipe.settings import Level, resolve
from mergekit_rl.recipe.yaml_reader import KeyPath, key_text
from mergekit_rl.registry import Function, find_method

__all__ = ["Block", "Piece", "Recipe", "Source", "StageCall", "load"]

# Keys of mergekit's own documents that have no meaning here.
_NOTHING = {
    "architecture": "names, shapes and configs tell what there is",
    "tokenizer_config": "the tokenizer is copied as it is",
}


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
        named: list[tuple[KeyPath, Any]] = [(("rest",), self.rest)]
        if self.tokenizer is not None:
            key = ("tokenizer_source",) if self.entry.tokenizer is None else ("tokenizer", "source")
            named.append((key, self.tokenizer.source))
            for text, entry in self.tokenizer.tokens.items():
                source = entry.source
                model = source.model if isinstance(source, TokenRow) else source
                named.append((("tokenizer", "tokens", text, "source"), model))
        yield from ((path, model) for path, model in named if isinstance(model, ModelReference))


def load(source: "str | Path | Mapping[str, Any] | Sequence[Any]") -> list[Recipe]:
    """The documents of a merge recipe, in order.

    Args:
        source: a YAML file, a `rledit.json` of an earlier merge, a mapping or a list of them.

    Raises:
        EditError: what a recipe may not say, with file, line and key.
    """
    documents = read_documents(source)
    recipes = [_recipe(document) for document in documents]
    seen: set[str] = set()
    for number, (document, recipe) in enumerate(zip(documents, recipes, strict=True)):
        if recipe.name is None and number < len(recipes) - 1:
            raise document.error(
                (), "has no name: every document but the last needs one, for others to use it by"
            )
        if recipe.name in seen:
            raise document.error(("name",), f"name is {recipe.name!r}, as an earlier document's is")
        seen.add(recipe.name)
    used = {str(m) for number, one in enumerate(recipes) if number for m in one.models()}
    for document, recipe in zip(documents[:-1], recipes[:-1], strict=True):
        if recipe.name not in used:
            raise document.error(("name",), f"{recipe.name!r} is used by no later document")
    return recipes


def _recipe(document: Document) -> Recipe:
    data = dict(document.data)
    notes = [f"{key} changes nothing: {why}" for key, why in _NOTHING.items() if key in data]
    for key in _NOTHING:
        data.pop(key, None)
    if "method" in data:
        if "merge_method" in data:
            raise document.error(("method",), "method and merge_method say the same: give one")
        data["merge_method"] = data.pop("method")
        document = document.renamed("method", "merge_method")
    try:
        entry = MergeRecipe.model_validate(data)
    except ValidationError as error:
        raise readable(document, error) from None
    method = find_method(entry.merge_method)
    recipe = Recipe(
        method=method,
        blocks=tuple(_blocks(entry)),
        tokenizer=_tokenizer(entry),
        notes=(),
        document=document,
        entry=entry,
    )
    check_models(recipe, document)
    check_parameters(recipe, document)
    notes += told(recipe, document)
    return Recipe(**{**recipe.__dict__, "notes": tuple(notes)})


def _tokenizer(entry: MergeRecipe) -> TokenizerEntry | None:
    if entry.tokenizer_source is not None:
        return TokenizerEntry(source=entry.tokenizer_source)
    return entry.tokenizer


def _blocks(entry: MergeRecipe) -> Iterator[Block]:
    several: list[tuple[str, ModuleEntry | MergeRecipe, tuple[str, ...]]] = [("", entry, ())]
    if entry.modules is not None:
        several = [(name, one, ("modules", name)) for name, one in entry.modules.items()]
    for name, module, path in several:
        pieces = []
        if module.models is not None:
            sources = _sources(entry, module.models, (*path, "models"))
            pieces.append(Piece(sources, None, {}, path))
        for number, one in enumerate(module.slices or ()):
            pieces.append(_piece(entry, one, (*path, "slices", number)))
        yield Block(name, tuple(pieces), module.parameters if name else {})


def _piece(entry: MergeRecipe, one: SliceEntry, path: tuple[str | int, ...]) -> Piece:
    sources = _sources(entry, one.sources, (*path, "sources"))
    return Piece(sources, one.base_model, one.parameters, path)


def _sources(
    entry: MergeRecipe, listed: Sequence[ModelEntry], path: tuple[str | int, ...]
) -> tuple[Source, ...]:
    return tuple(
        Source(
            model=one.model,
            layers=one.layer_range if isinstance(one, SourceEntry) else None,
            parameters=one.parameters,
            preprocess=(*entry.preprocess, *(one.preprocess or ())),
            path=(*path, number),
        )
        for number, one in enumerate(listed)
    )
