"""The options that commands share."""

from collections.abc import Callable
from functools import partial

import click


def common(command: Callable | None = None, *, out: bool = True) -> Callable:
    """--out, --dtype and how a run starts, goes on and reports; `out` tells whether --out must be
    given."""
    if command is None:
        return partial(common, out=out)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option(
            "--workers",
            type=click.IntRange(1),
            metavar="N",
            help="Compute threads; the result does not depend on it. [default: one a CPU]",
        ),
        click.option("--force", is_flag=True, help="Replace a folder that rledit wrote before."),
        click.option("--resume", is_flag=True, help="Go on with a run that was interrupted."),
        click.option(
            "--dtype",
            metavar="float32|bfloat16|float16",
            help="Of the output.  [default: the expert's, or what the core names]",
        ),
        click.option("--out", required=out, type=click.Path(), help="The folder to write."),
    ):
        command = option(command)
    return command
