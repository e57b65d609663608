"""Where a result may be written, and how a finished folder takes its place."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.io.disk import sync

MARKER = "rledit.json"
LOCK, JOURNAL, DATA, REPLACED = "lock", "journal", "data", "replaced"


def partial_of(out: Path) -> Path:
    """The folder in which `out` is made."""
    return out.with_name(out.name + ".partial")


def check_output(out: Path, *, force: bool, inputs: Iterable[Path], resume: bool = False) -> None:
    """Raises EditError where `out` may not be written.

    A folder that exists and holds something is refused; with `force` it is replaced, but only one
    that this tool wrote (it holds `rledit.json`), and never one that holds an input, the working
    directory or a repository. So is a `DIR.partial` that is no unfinished run of ours.
    """
    try:
        _check_place(out)
        partial = partial_of(out)
        check_partial(partial)
        for path in inputs:
            for ours in (out, partial):
                if _overlap(ours.resolve(), path.resolve()):
                    raise EditError(
                        f"--out {out} and the input {path} hold one another; choose another"
                    )
        if not _stands(out):
            return
        unfinished = resume and (partial / JOURNAL).exists()
        if unfinished and not (partial / DATA).exists() and (out / MARKER).is_file():
            return  # killed after it took its place: the Writer knows
        if unfinished and not force:
            raise EditError(
                f"--out {out} exists and is not empty; add --force to --resume to have it replaced"
            )
        check_replaceable(out, force)
    except OSError as error:
        raise EditError(f"--out {out}: {error.strerror}; choose another") from None


def check_partial(partial: Path) -> None:
    """Raises EditError where something that is no unfinished run stands in the way."""
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise EditError(f"{partial} is in the way: it is no folder; move it away")
    names = {path.name for path in partial.iterdir()} if partial.exists() else set()
    if names and not (LOCK in names and names <= {LOCK, JOURNAL, DATA, REPLACED}):
        raise EditError(f"{partial} is in the way: it is no unfinished run; move it away")


def check_replaceable(out: Path, force: bool) -> None:
    """Raises EditError where the standing folder `out` may not be replaced."""
    if not force:
        raise EditError(f"--out {out} exists and is not empty; choose another or add --force")
    if not (out / MARKER).is_file():
        raise EditError(
            f"--force replaces only folders written by rledit, and {out} holds no {MARKER}; "
            "remove it yourself if it can go"
        )
    if Path.cwd().resolve().is_relative_to(out.resolve()):
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


def take_place(data: Path, out: Path, aside: Path, *, force: bool) -> None:
    """Renames the finished folder `data` to `out`; an `out` that stands is kept as `aside`.

    Raises:
        EditError: a folder stands that may not be replaced: it came while the run worked.
    """
    if _stands(out):
        check_replaceable(out, force)
        out.rename(aside)
    data.rename(out)
    sync(out.parent)


def restore(out: Path, aside: Path) -> None:
    """Puts back the folder that an interrupted replacement had moved aside; one whose place is
    taken was replaced, and goes."""
    if not aside.exists():
        return
    if _stands(out):
        shutil.rmtree(aside)
    else:
        aside.rename(out)


def _check_place(out: Path) -> None:
    if out.name in ("", ".", ".."):
        raise EditError(f"--out {out} names no new folder")
    if not out.parent.is_dir():
        raise EditError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise EditError(f"--out {out} exists and is no folder; choose another name")
    if os.path.ismount(out):
        raise EditError(f"--out {out} is a mount point; name a folder inside it")


def _stands(out: Path) -> bool:
    """Whether there is anything that a rename to `out` would not simply replace."""
    return out.exists() and (not out.is_dir() or any(out.iterdir()))


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
