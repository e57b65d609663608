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
@click.option(
    "--cache/--no-cache", default=True, help="Keep figures for further runs, and use those kept."
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="One row per matrix and expert, as CSV.")
def command(
    base: str, experts: tuple[str, ...], as_json: bool, as_csv: bool, **options: object
) -> None:
    """Measure the updates that training left between BASE and each of EXPERTS.

    Each may be a folder, a Hub id, an adapter or a core. Columns of the tables: update, the
    update's norm over the weights'; unchanged, entries equal in bf16's resolution; eff. rank/r,
    how evenly the update is spread over its ranks; F(k), energy its k leading directions hold;
    projected and chance, the share of those that lies in the base's space, and in random ones of
    its size, and their ratio, the enrichment; diagonal, the share that rescales the base's
    directions; shift, of the base's singular values; principal and low, the share of the moved
    entries among the largest of rank-k W0 and the smallest of W0 (by chance --alpha).
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms of the same: give one")
    from mergekit_rl.pipeline.inspect import inspect_events
    from rledit.progress import follow
    from rledit.show import inspection_csv, inspection_text, print_result

    found = follow(inspect_events(base, experts, **options))
    print_result(found, as_json, inspection_csv if as_csv else inspection_text)
