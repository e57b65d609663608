"""`rledit apply`."""

import click

from rledit.options import common


@click.command("apply", short_help="Add a core to its base: the whole edited model.")
@click.argument("base")
@click.argument("core")
@click.option("--scale", default=1.0, show_default=True, help="Factor on the core.")
@click.option(
    "--allow-other-base",
    is_flag=True,
    help="Go on where the base is not the one the core was made from.",
)
@common
def command(base: str, core: str, out: str, as_json: bool, **options: object) -> None:
    """Write the model that BASE plus the core in the folder CORE makes.

    The base is checked against the digests in the core.
    """
    from mergekit_rl.pipeline.apply import apply_events
    from rledit.progress import follow
    from rledit.show import applied_text, print_result

    applied = follow(apply_events(base, core, out, **options), out, force=options["force"])
    print_result(applied, as_json, lambda a: applied_text(a, out))
