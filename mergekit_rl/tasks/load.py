"""A task from what a recipe or the command line says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.tasks.task import Task, find_kind


def load_task(spec: str | Path | Mapping[str, Any]) -> Task:
    """The task that `spec` names: a name, `{"name": …}` with settings, or the path of a JSONL file.

    >>> load_task({"name": "sums", "most": 9}).settings["most"]
    9

    Raises:
        EditError: no such task, no such setting, a wrong value, or an unusable file.
    """
    if isinstance(spec, Mapping):
        settings = dict(spec)
        name = settings.pop("name", "jsonl" if "file" in settings else None)
        if not isinstance(name, str):
            raise EditError(f"the task {dict(spec)!r} has no name, expected one as name: sums")
        return find_kind(name)(**{str(key): value for key, value in settings.items()})
    if not isinstance(spec, str | Path):
        raise EditError(f"the task is {spec!r}, expected a name, a mapping or the path of a file")
    if isinstance(spec, Path) or spec.endswith(".jsonl") or "/" in spec:
        return find_kind("jsonl")(file=str(spec))
    return find_kind(spec)()
