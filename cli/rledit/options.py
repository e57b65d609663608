"""The options that commands share."""

from collections.abc import Callable

import click


def common(command: Callable) -> Callable:
    """--out, --dtype and how a run starts, goes on and reports."""
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
        click.option("--out", required=True, type=click.Path(), help="The folder to write."),
    ):
        command = option(command)
    return command
