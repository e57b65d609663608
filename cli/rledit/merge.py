"""`rledit merge`."""

import re
from pathlib import Path

import click

from rledit.options import common
from rledit.peer_flags import peer_flags


@click.command("merge", short_help="Merge models by a recipe.")
@click.argument("recipe")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be done; write nothing.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="cpu|cuda[:i,…]",
    help="Where to compute; auto takes every CUDA device, or the CPU where there is none.",
)
@click.option(
    "--model",
    "places",
    multiple=True,
    metavar="NAME=PATH",
    help="Where a model of the recipe lies instead; may be given several times.",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    help="A Python file with merge methods of your own; may be given several times.",
)
@click.option("--shard-size", metavar="BYTES", help="Of one output file, as 5GB.")
@click.option(
    "--part",
    metavar="I/N",
    help="Compute one share of the tensors, 0/3, 1/3 or 2/3, into OUT.part-I-of-N: for several "
    "machines, with no communication.",
)
@click.option("--join", is_flag=True, help="Put the parts beside OUT together.")
@common(out=False)
@peer_flags
def command(
    recipe: str,
    out: str | None,
    as_json: bool,
    only_plan: bool,
    places: tuple[str, ...],
    plugins: tuple[str, ...],
    **options: object,
) -> None:
    """Merge models by the YAML file RECIPE, or again by the rledit.json of a merged model.

    `rledit methods` lists the methods, `rledit recipes` prints recipes to begin with.
    """
    from mergekit_rl.pipeline.merging.forecast import plan_events
    from mergekit_rl.pipeline.merging.parts import merge_join_events, merge_part_events
    from mergekit_rl.pipeline.merging.run import merge_events
    from mergekit_rl.pipeline.parts import Part
    from mergekit_rl.plugins import load_plugins
    from rledit.progress import follow
    from rledit.show import part_text, print_result
    from rledit.show_merge import forecast_text, merged_text

    load_plugins(plugins)
    part, join, force = options.pop("part"), options.pop("join"), options["force"]
    options |= {"places": parse_places(places), **shard_bytes(options.pop("shard_size"))}
    if only_plan:
        del options["force"], options["resume"]
        print_result(follow(plan_events(recipe, **options)), as_json, forecast_text)
    elif out is None:
        raise click.UsageError("Missing option '--out': the folder to write.")
    elif part is not None and join:
        raise click.UsageError("--part computes a share and --join puts them together: give one")
    elif part is not None:
        events = merge_part_events(recipe, out, part, **options)
        print_result(
            follow(events, Part.parse(part).folder(Path(out)), force=force), as_json, part_text
        )
    else:
        events = (merge_join_events if join else merge_events)(recipe, out, **options)
        done = follow(events, out, force=force)
        print_result(done, as_json, lambda found: merged_text(found, out))


def parse_places(places: tuple[str, ...]) -> dict[str, str]:
    """{model of the recipe: where it lies} of `NAME=PATH` each."""
    found = dict(place.partition("=")[::2] for place in places)
    if not all(name and path for name, path in found.items()):
        raise click.UsageError(f"--model is {places[-1]!r}, expected NAME=PATH")
    return found


def shard_bytes(size: str | None) -> dict[str, int]:
    """The keyword that `5GB`, `500M` or a number of bytes stands for."""
    if size is None:
        return {}
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?) *([KMGT]?)i?B?", size, re.IGNORECASE)
    if not match or not float(match[1]):
        raise click.UsageError(f"--shard-size is {size!r}, expected a size such as 5GB")
    return {"shard_bytes": int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))}
