"""`rledit explain`."""

import click


@click.command("explain", short_help="Say how one tensor of a merge comes about.")
@click.argument("recipe")
@click.argument("tensor")
@click.option("--model", "places", multiple=True, metavar="NAME=PATH", help="As in `merge`.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="As in `merge`.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(
    recipe: str, tensor: str, places: tuple[str, ...], plugins: tuple[str, ...], as_json: bool
) -> None:
    """Say how the tensor TENSOR of the merge RECIPE comes about: of which models, which rows, and
    every setting with the place it was written."""
    import json

    from mergekit_rl.pipeline.merging.explain import explain
    from mergekit_rl.plugins import load_plugins
    from rledit.escape import plain
    from rledit.merge import parse_places
    from rledit.show_merge import explained_text

    load_plugins(plugins)
    found = explain(recipe, tensor, places=parse_places(places))
    click.echo(json.dumps(found, indent=1) if as_json else plain(explained_text(found)))
