"""`rledit methods`."""

import click


@click.command("methods", short_help="List merge methods and their settings.")
@click.argument("name", required=False)
@click.option(
    "--plugin", "plugins", multiple=True, metavar="FILE", help="A Python file with your own."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(name: str | None, plugins: tuple[str, ...], as_json: bool) -> None:
    """List the merge methods a line each, or tell all of the one called NAME."""
    import json

    import mergekit_rl.methods  # noqa: F401
    from mergekit_rl.plugins import load_plugins
    from mergekit_rl.registry import find_method, methods
    from rledit.show_merge import method_dict, method_text, methods_text

    load_plugins(plugins)
    found = list(methods().values()) if name is None else [find_method(name)]
    if as_json:
        rows = [method_dict(one) for one in found]
        click.echo(json.dumps(rows if name is None else rows[0], indent=1))
    else:
        click.echo(methods_text(found) if name is None else method_text(found[0]))
