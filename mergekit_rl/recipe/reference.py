"""How a recipe names a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelReference:
    """A model, and an adapter over it or none.

    Attributes:
        path: a folder, a Hub id, or the name of an earlier document.
        revision: of a Hub id.
        lora, lora_revision: of an adapter that is laid over it.
    """

    path: str
    revision: str | None = None
    lora: str | None = None
    lora_revision: str | None = None

    @staticmethod
    def parse(value: Any) -> "ModelReference":
        """From `path-or-id[@revision][+lora[@revision]]`, or {model: {path, revision}, lora:
        {path, revision}}. An existing path wins over its parts.

        >>> ModelReference.parse("org/name@main+me/lora")
        ModelReference(path='org/name', revision='main', lora='me/lora', lora_revision=None)

        Raises:
            ValueError: another form.
        """
        if isinstance(value, ModelReference):
            return value
        if isinstance(value, str):
            return _from_text(value)
        if isinstance(value, Mapping) and "model" in value:
            _only(value, ("model", "lora"))
            path, revision = _part(value["model"], "model")
            lora = (None, None) if value.get("lora") is None else _part(value["lora"], "lora")
            return ModelReference(path, revision, *lora)
        if isinstance(value, Mapping) and "path" in value:
            return ModelReference(*_part(value, "model"))
        raise ValueError("expected a folder, a Hub id, or {model: {path: …}}")

    def __str__(self) -> str:
        text = self.path + (f"@{self.revision}" if self.revision else "")
        if self.lora is not None:
            text += f"+{self.lora}" + (f"@{self.lora_revision}" if self.lora_revision else "")
        return text


def _from_text(text: str) -> ModelReference:
    if not text.strip() or "\0" in text:
        raise ValueError("expected a folder or a Hub id")
    if _exists(text):
        return ModelReference(text)
    model, plus, lora = text.partition("+")
    if plus and not _exists(model):
        # A folder whose own name has a plus: the longest that is there.
        cuts = [at for at, letter in enumerate(text) if letter == "+" and _exists(text[:at])]
        if cuts:
            model, lora = text[: cuts[-1]], text[cuts[-1] + 1 :]
    if not model or (plus and not lora):
        raise ValueError("expected a model on both sides of +")
    path, revision = _revised(model)
    return ModelReference(path, revision, *(_revised(lora) if plus else (None, None)))


def _revised(text: str) -> tuple[str, str | None]:
    if _exists(text):
        return text, None
    path, _, revision = text.rpartition("@")
    return (path, revision) if path and revision else (text, None)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _part(value: Any, what: str) -> tuple[str, str | None]:
    if isinstance(value, str):
        value = {"path": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {what}: {{path: …, revision: …}}")
    _only(value, ("path", "revision"))
    path, revision = value.get("path"), value.get("revision")
    if not isinstance(path, str) or not path:
        raise ValueError(f"{what} has no path")
    if revision is not None and not isinstance(revision, str):
        raise ValueError(f"the revision of {what} is {revision!r}, expected a text")
    return path, revision


def _only(value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise ValueError(f"unknown key {key!r}, expected {' and '.join(known)}")
