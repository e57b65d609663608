"""What pydantic finds wrong with a recipe, as one line for a person."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from mergekit_rl.errors import EditError
from mergekit_rl.recipe.document import Document
from mergekit_rl.recipe.schema import (
    MergeRecipe,
    ModelEntry,
    ModuleEntry,
    SliceEntry,
    SourceEntry,
    TokenizerEntry,
)
from mergekit_rl.recipe.yaml_reader import key_text, shown
from mergekit_rl.registry import suggestion


def readable(document: Document, error: ValidationError) -> EditError:
    """The first fault pydantic found, as one line; an unknown key before the key that it may be
    meant for."""
    faults = error.errors()
    fault = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    path = tuple(part for part in fault["loc"] if not _is_tag(part, document, fault["loc"]))
    here = key_text(path)
    if fault["type"] == "extra_forbidden":
        known = _known(path[:-1])
        inside = f" in {key_text(path[:-1])}" if path[:-1] else ""
        hint = suggestion(str(path[-1]), known) or f"; known are {', '.join(known)}"
        return document.error(path, f"unknown key {shown(path[-1])}{inside}{hint}")
    if fault["type"] == "missing":
        inside = f"{key_text(path[:-1])} has" if path[:-1] else "the recipe has"
        return document.error(path[:-1], f"{inside} no {path[-1]}")
    message = fault["msg"].removeprefix("Value error, ").replace("\n", " ")
    if fault["type"] == "too_short":
        message = "expected at least one entry"
    elif fault["type"] != "value_error":
        message = f"e{message[1:]}" if message.startswith("Input should be") else message
        message = message.replace("enput should be", "expected")
    if message.startswith("expected"):
        message = f"{here} is {shown(fault.get('input'))}, {message}" if here else message
    named = not here or here in message or message.startswith("there is no ")
    return document.error(path, message if named else f"{here}: {message}")


def _is_tag(part: str | int, document: Document, loc: tuple[str | int, ...]) -> bool:
    """Whether a part of pydantic's path is the name of an alternative, not a key."""
    value: Any = document.data
    for one in loc[: loc.index(part)]:
        try:
            value = value[one]
        except (KeyError, IndexError, TypeError):
            return isinstance(part, str)
    if isinstance(part, int):
        return not isinstance(value, list)
    return not isinstance(value, Mapping)


def _known(path: Sequence[str | int]) -> list[str]:
    """The keys that a mapping at a path may have."""
    model: type[BaseModel] = MergeRecipe
    homes: dict[str, type[BaseModel]] = {
        "models": ModelEntry, "slices": SliceEntry, "sources": SourceEntry,
        "modules": ModuleEntry, "tokenizer": TokenizerEntry,
    }  # fmt: skip
    for part in path:
        model = homes.get(str(part), model)
    if "tokens" in path:
        return ["source", "force"]
    if "include" in path or "exclude" in path:
        return ["name", "layers", "kinds"]
    return list(model.model_fields)
