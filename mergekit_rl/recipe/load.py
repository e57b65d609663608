"""Reading and checking a merge recipe."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mergekit_rl.recipe.checks import check_models, check_parameters, told
from mergekit_rl.recipe.document import Document, read_documents
from mergekit_rl.recipe.faults import readable
from mergekit_rl.recipe.recipe import Block, Piece, Recipe, Source
from mergekit_rl.recipe.schema import (
    MergeRecipe,
    ModelEntry,
    ModuleEntry,
    SliceEntry,
    SourceEntry,
    TokenizerEntry,
)
from mergekit_rl.registry import find_method

# Keys of mergekit's own documents that have no meaning here.
_NOTHING = {
    "architecture": "names, shapes and configs tell what there is",
    "tokenizer_config": "the tokenizer is copied as it is",
}


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
