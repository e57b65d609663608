"""The chat template of a model folder, in any of the places that transformers looks at."""

from collections.abc import Mapping
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.io.jsonfile import read_object

TEMPLATE = "chat_template.jinja"
LEGACY = "chat_template.json"
CONFIG = "tokenizer_config.json"


def read_chat_template(folder: Path) -> str | None:
    """The text of the folder's chat template, None where it has none; of several by name, the one
    called `default`."""
    path = folder / TEMPLATE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EditError(f"{path} cannot be read: {error}") from None
    for name in (CONFIG, LEGACY):
        found = read_object(folder / name, optional=True).get("chat_template")
        if isinstance(found, list):
            named = {it.get("name"): it.get("template") for it in found if isinstance(it, Mapping)}
            found = named.get("default")
        if isinstance(found, str):
            return found
    return None
