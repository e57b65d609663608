"""`rledit demo`."""

import click


@click.command("demo", short_help="Make a small pair and extract its core.")
@click.option(
    "--out",
    default="rledit-demo",
    show_default=True,
    type=click.Path(),
    help="Folder for the pair and its core.",
)
@click.option("--seed", default=0, show_default=True, help="Of the pair's random weights.")
def command(out: str, seed: int) -> None:
    """Make a small random base and an expert whose update is known, extract the core of that
    update, and print what was kept. Needs no download."""
    from pathlib import Path

    from mergekit_rl.pipeline.sar import sar_events
    from mergekit_rl.studies.toy import make_toy_pair
    from rledit.progress import follow
    from rledit.show import extraction_text

    folder = Path(out)
    folder.mkdir(exist_ok=True)
    base, rl = make_toy_pair(folder, seed=seed, force=True)
    core = folder / "core"
    click.echo(f"$ rledit sar {base} {rl} --out {core} --rank 0.05")
    summaries = follow(sar_events(base, rl, core, rank="0.05", force=True), core)
    options = {"projection": "spectral", "rest": "base"}
    click.echo(extraction_text(summaries, ["0.05"], str(base), str(rl), str(core), options))
    click.echo(f"the whole model: rledit apply {base} {core} --out {folder / 'model'}")
