"""The recipes that come with the package: beside it in a checkout, installed with it elsewhere."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.registry import suggestion

_CHECKOUT = Path(__file__).parent.parent / "recipes"
_INSTALLED = "share/rledit/recipes/"


def shipped_recipes(kind: str) -> dict[str, Path]:
    """{name: file} of the recipes of one kind, `merge` or `train`, by name."""
    if (_CHECKOUT / kind).is_dir():
        found = list((_CHECKOUT / kind).glob("*.yaml"))
    else:
        try:
            listed = files("mergekit-rl") or []
        except PackageNotFoundError:
            listed = []
        found = [
            Path(str(file.locate()))
            for file in listed
            if f"{_INSTALLED}{kind}/" in file.as_posix() and file.suffix == ".yaml"
        ]
    return {path.stem: path for path in sorted(found)}


def shipped_recipe(kind: str, name: str) -> Path:
    """The file of one recipe.

    Raises:
        EditError: there is none of that name.
    """
    known = shipped_recipes(kind)
    if name not in known:
        hint = suggestion(name, known) or f"; there are {', '.join(known) or 'none'}"
        raise EditError(f"there is no recipe {name!r}{hint}")
    return known[name]
