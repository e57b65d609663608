"""Where a result may be written, and how a finished folder takes its place."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from mergekit_rl.errors import EditError

MARKER = "rledit.json"


def partial_of(out: Path) -> Path:
    """The folder in which `out` is made."""
    return out.with_name(out.name + ".partial")


def check_output(out: Path, *, force: bool, inputs: Iterable[Path], resume: bool = False) -> None:
    """Raises EditError where `out` may not be written.

    A folder that exists and holds something is refused; with `force` it is replaced, but only one
    that this tool wrote (it holds `rledit.json`), and never one that holds an input, the working
    directory or a repository.
    """
    if out.name in ("", ".", ".."):
        raise EditError(f"--out {out} names no new folder")
    if not out.parent.is_dir():
        raise EditError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise EditError(f"--out {out} exists and is no folder; choose another name")
    real = out.resolve()
    for path in inputs:
        if path.resolve().is_relative_to(real) or real.is_relative_to(path.resolve()):
            raise EditError(f"--out {out} and the input {path} hold one another; choose another")
    if not out.exists() or not any(out.iterdir()):
        return
    if resume and (partial_of(out) / "journal").exists():
        return  # killed while it took its place: the Writer knows
    if not force:
        raise EditError(f"--out {out} exists and is not empty; choose another or add --force")
    if not (out / MARKER).is_file():
        raise EditError(
            f"--force replaces only folders written by rledit, and {out} holds no {MARKER}; "
            "remove it yourself if it can go"
        )
    if Path.cwd().resolve().is_relative_to(real):
        raise EditError(f"--force may not replace {out}: the working directory lies in it")
    if next(out.rglob(".git"), None) is not None:
        raise EditError(f"--force may not replace {out}: it holds a .git")


def check_space(folder: Path, needed: int) -> None:
    """Raises EditError where the file system of `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise EditError(
            f"{folder.resolve()} has {free / 1e9:.2f} GB free and the output takes "
            f"{needed / 1e9:.2f} GB; free some space or write elsewhere"
        )


def sync(path: Path) -> None:
    """Has what was written to a file or folder reach the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def take_place(data: Path, out: Path, aside: Path) -> None:
    """Renames the finished folder `data` to `out`; an `out` that is there is kept as `aside`
    until then. Safe to repeat after a kill at any point."""
    if data.exists():
        if out.exists() and any(out.iterdir()):
            out.rename(aside)
        data.rename(out)
    sync(out.parent)


def restore(out: Path, aside: Path) -> None:
    """Puts back the folder that an interrupted replacement had moved aside."""
    if aside.exists() and not out.exists():
        aside.rename(out)
