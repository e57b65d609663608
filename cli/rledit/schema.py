"""`rledit schema`."""

import click


@click.command("schema", short_help="Print the JSON Schema of recipes, for editors.")
def command() -> None:
    """Print the JSON Schema of merge recipes, which editors complete and check YAML by."""
    import json

    import mergekit_rl.methods  # noqa: F401
    from mergekit_rl.recipe.jsonschema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
