"""What a recipe's parts must be together: models for the method, values for its settings."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mergekit_rl.errors import EditError
from mergekit_rl.recipe.document import Document
from mergekit_rl.recipe.settings import FILTER_KEYS, is_filters
from mergekit_rl.recipe.yaml_reader import KeyPath, key_text, shown
from mergekit_rl.registry import Setting, suggestion

if TYPE_CHECKING:
    from mergekit_rl.recipe.recipe import Recipe

# Settings of mergekit that change nothing, whatever the method.
_NOTHING = {"int8_mask": "masks take no memory to speak of", "residual_weight": "it has no effect"}


def check_models(recipe: "Recipe", document: Document) -> None:
    """Raises EditError where a method gets too few or too many models, or lacks a base."""
    method = recipe.method
    least, most = method.models
    for path, piece in _pieces(recipe):
        base = piece.base_model or recipe.base_model
        if base is None and method.base == "required":
            raise document.error(path, f"{method.name} needs a base_model, and there is none")
        listed = [source.model for source in piece.sources]
        counted = listed if method.base == "input" else [m for m in listed if m != base]
        if len(counted) < least or (most is not None and len(counted) > most):
            wanted = str(least) if most == least else f"{least} or more"
            aside = " beside its base_model" if base is not None and method.base != "input" else ""
            are = ", ".join(map(str, counted)) or "none"
            plural = "s" if wanted != "1" else ""
            raise document.error(
                path, f"{method.name} merges {wanted} model{plural}{aside}; there are {are}"
            )
        twice = {
            str(m) for m in counted if counted.count(m) > 1 and piece.sources[0].layers is None
        }
        if twice:
            raise document.error(path, f"{sorted(twice)[0]} is listed twice")
    staged = any(s.preprocess for _, p in _pieces(recipe) for s in p.sources) or recipe.postprocess
    if staged and recipe.base_model is None:
        key = "postprocess" if recipe.postprocess else "preprocess"
        raise document.error((key,), f"{key} works on what models learnt: it needs a base_model")


def check_parameters(recipe: "Recipe", document: Document) -> None:
    """Raises EditError for a setting that the method has not, or that may not have its value."""
    for path, parameters, own in _places(recipe):
        for name, value in parameters.items():
            at = (*path, name)
            if name in _NOTHING or name in recipe.method.ignores:
                continue
            try:
                setting = recipe.method.setting(name)
            except EditError as error:
                raise document.error(at, f"{key_text(path)}: {error}") from None
            if own and not setting.per_model:
                raise document.error(
                    at,
                    f"{key_text(at)} is a setting of the whole merge, not of one model: write it "
                    "in the recipe's own parameters",
                )
            _check_value(setting, value, at, document)


def told(recipe: "Recipe", document: Document) -> list[str]:
    """What is accepted and changes nothing, a sentence each."""
    notes = {}
    for _, parameters, _ in _places(recipe):
        for name in parameters:
            if name in recipe.method.ignores and name not in recipe.method.settings:
                notes[name] = f"{name} changes nothing: {recipe.method.name} does not use it"
            elif name in _NOTHING and name not in recipe.method.settings:
                notes[name] = f"{name} changes nothing: {_NOTHING[name]}"
    return list(notes.values())


def _check_value(setting: Setting, value: Any, path: KeyPath, document: Document) -> None:
    if is_filters(value):
        for number, one in enumerate(value):
            at = (*path, number)
            if not isinstance(one, Mapping) or "value" not in one:
                raise document.error(at, f"{key_text(at)} is no filter: it needs a value")
            for key in one:
                if key not in FILTER_KEYS:
                    hint = suggestion(key, FILTER_KEYS)
                    raise document.error(
                        (*at, key), f"unknown key {shown(key)} in {key_text(at)}{hint}"
                    )
            if not isinstance(one.get("filter", ""), str):
                raise document.error((*at, "filter"), f"{key_text(at)}.filter is no text")
            if isinstance(one["value"], list) and is_filters(one["value"]):
                raise document.error(at, f"{key_text(at)}.value is a list of filters again")
            _check_value(setting, one["value"], (*at, "value"), document)
        return
    entries = value if isinstance(value, list) else [value]
    if isinstance(value, list) and (not value or setting.kind is not float):
        raise document.error(
            path, f"{key_text(path)} is a list, expected {setting.expected}"
            + (" or several of them, a gradient" if setting.kind is float else "")
        )  # fmt: skip
    for entry in entries:
        try:
            setting.parse(entry)
        except EditError as error:
            text = str(error).removeprefix(f"{setting.name} ")
            raise document.error(path, f"{key_text(path)} {text}") from None


def _pieces(recipe: "Recipe") -> Iterator[tuple[KeyPath, Any]]:
    """(path of keys, piece) of every piece."""
    for block in recipe.blocks:
        start = ("modules", block.name) if block.name else ()
        for number, piece in enumerate(block.pieces):
            whole = piece.sources[0].layers is None
            yield ((*start, "models") if whole else (*start, "slices", number)), piece


def _places(recipe: "Recipe") -> Iterator[tuple[KeyPath, Mapping[str, Any], bool]]:
    """(path, parameters, whether they are one model's own) of every place that has some."""
    yield ("parameters",), recipe.entry.parameters, False
    for block in recipe.blocks:
        if block.name:
            yield ("modules", block.name, "parameters"), block.parameters, False
    for path, piece in _pieces(recipe):
        whole = piece.sources[0].layers is None
        if not whole:
            yield (*path, "parameters"), piece.parameters, False
        for number, source in enumerate(piece.sources):
            at = (*path, number) if whole else (*path, "sources", number)
            yield (*at, "parameters"), source.parameters, True
