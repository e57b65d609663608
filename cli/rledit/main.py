"""`rledit`: the group of commands, and how errors reach the user."""

import sys
from importlib import import_module
from typing import Any

import click

from mergekit_rl import EditError, __version__
from rledit.escape import plain

_COMMANDS = {
    "sar": "Extract the core of an RL update.",
    "apply": "Add a core to its base: the whole edited model.",
    "merge": "Merge models by a recipe.",
    "methods": "List merge methods and their settings.",
    "recipes": "List the recipes that come along, or print one.",
    "explain": "Say how one tensor of a merge comes about.",
    "schema": "Print the JSON Schema of recipes, for editors.",
    "inspect": "Measure what training changed, and where.",
    "cache": "List or clear what earlier runs kept.",
    "demo": "Make a small pair and extract its core.",
}


class _Group(click.Group):
    """Loads a command's module when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return import_module(f"rledit.{name}").command if name in _COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EditError as error:
            click.echo(f"Error: {plain(str(error))}", err=True)
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rledit")
def cli() -> None:
    """Edit and merge RL-tuned checkpoints: keep what the run taught, see what changed."""
