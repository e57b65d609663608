"""`rledit recipes`."""

import click


@click.command("recipes", short_help="List the recipes that come along, or print one.")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the recipes that come along, or print the one called NAME: `rledit recipes ties >
    mine.yaml` is a start."""
    from mergekit_rl.shipped import shipped_recipe, shipped_recipes

    if name is not None:
        click.echo(shipped_recipe("merge", name).read_text(encoding="utf-8"), nl=False)
        return
    found = shipped_recipes("merge")
    wide = max(map(len, found), default=0)
    for one, path in found.items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        click.echo(f"{one:<{wide}}  {first.lstrip('# ')}")
