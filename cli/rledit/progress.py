"""Progress on stderr: a bar with rate and time left on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from rledit.escape import plain

if TYPE_CHECKING:
    from mergekit_rl.pipeline.run import Progress

Result = TypeVar("Result")
_LINE_SECONDS = 10.0


def follow(
    run: "Generator[Progress, None, Result]",
    out: str | Path | None = None,
    *,
    force: object = False,
) -> Result:
    """Runs the events to their end and returns the run's result. An interrupt ends it with one line
    that says how to go on, and exit code 130."""
    try:
        return _bar(run) if sys.stderr.isatty() else _lines(run)
    except KeyboardInterrupt:
        run.close()
        click.echo(f"Interrupted: {_kept(out, bool(force))}", err=True)
        sys.exit(130)


def _kept(out: str | Path | None, force: bool) -> str:
    """What an interrupted run leaves."""
    partial = None if out is None else Path(out).with_name(Path(out).name + ".partial")
    if partial is None or not partial.exists():
        return "nothing was written"
    again = "--resume --force" if force else "--resume"
    return f"what was finished is kept in {partial}; continue with {again}"


def _bar(run: "Generator[Progress, None, Result]") -> Result:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        TextColumn("{task.fields[tensors]}"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, tensors="", name="")
        while True:
            try:
                event = next(run)
            except StopIteration as stop:
                return stop.value
            bar.update(
                task,
                total=event.bytes_total,
                completed=event.bytes_done,
                tensors=f"{event.done}/{event.total} tensors",
                name=plain(event.name),
            )


def _lines(run: "Generator[Progress, None, Result]") -> Result:
    started = last = time.monotonic()
    while True:
        try:
            event = next(run)
        except StopIteration as stop:
            return stop.value
        now = time.monotonic()
        if now - last >= _LINE_SECONDS:
            last = now
            left = (now - started) * (event.bytes_total / max(1, event.bytes_done) - 1)
            click.echo(
                f"{event.done}/{event.total} tensors, "
                f"{event.bytes_done / (now - started) / 1e6:.0f} MB/s, {left:.0f} s left",
                err=True,
            )
