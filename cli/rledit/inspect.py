"""`rledit inspect`."""

import click


@click.command("inspect", short_help="Measure what training changed, and where.")
@click.argument("base")
@click.argument("experts", nargs=-1, required=True)
@click.option(
    "--rank",
    default="0.01",
    show_default=True,
    metavar="R",
    help="Rank of the truncated update and of the subspaces compared: a share or a number.",
)
@click.option(
    "--alpha",
    default=0.1,
    show_default=True,
    help="Share of the weights that count as principal, and as of low magnitude.",
)
@click.option("--include", metavar="REGEX", help="Only tensors whose name it is found in.")
@click.option("--exclude", metavar="REGEX", help="Leave out tensors whose name it is found in.")
@click.option("--device", default="auto", show_default=True, metavar="cpu|cuda[:i,…]")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="[default: one a CPU]")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="One row per matrix and expert, as CSV.")
def command(
    base: str, experts: tuple[str, ...], as_json: bool, as_csv: bool, **options: object
) -> None:
    """Measure the updates that training left between BASE and each of EXPERTS.

    Each may be a folder, a Hub id, an adapter or a core.
    """
    from mergekit_rl.pipeline.inspect import inspect_events
    from rledit.progress import follow
    from rledit.show import inspection_csv, inspection_text, print_result

    found = follow(inspect_events(base, experts, **options))
    print_result(found, as_json, inspection_csv if as_csv else inspection_text)
