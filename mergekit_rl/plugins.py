"""A user's own merge methods, from files named on the command line or in Python."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from mergekit_rl.errors import EditError


def load_plugins(files: Iterable[str | Path]) -> None:
    """Runs Python files that register functions of their own with `mergekit_rl.registry`.

    A recipe alone never causes code to be loaded; the caller names the files.

    Raises:
        EditError: a file is not there, or fails while it is loaded.
    """
    for number, file in enumerate(files):
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():
            raise EditError(f"--plugin {file} is no Python file here, expected a path like mine.py")
        spec = importlib.util.spec_from_file_location(f"rledit_plugin_{number}_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[spec.name]
            raise EditError(
                f"--plugin {file} failed while it was loaded: {type(error).__name__}: {error}"
            ) from error
