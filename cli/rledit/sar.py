"""`rledit sar`."""

import click

from rledit.options import common


@click.command("sar", short_help="Extract the core of an RL update.")
@click.argument("base")
@click.argument("rl")
@click.option(
    "--rank",
    default=["0.01"],
    show_default=True,
    multiple=True,
    metavar="R",
    help="Rank kept of each update: a share of min(m, n) (0.01), a number (8), the least "
    "that keeps a share of its energy (energy:0.9), or full; 1 is one direction, 1.0 all of them. "
    "Given several times, a folder each from one decomposition.",
)
@click.option(
    "--base-rank",
    default="full",
    show_default=True,
    metavar="R",
    help="Rank of the base's spectral space: full, a share or a number.",
)
@click.option(
    "--projection",
    default="spectral",
    show_default=True,
    metavar="spectral|random|none",
    help="Controls: random subspaces of the same size; none, the truncated update itself, a plain "
    "low-rank extraction.",
)
@click.option(
    "--mask",
    default="full",
    show_default=True,
    metavar="full|diagonal|off-diagonal",
    help="Of the rewiring matrix: rescale the base's directions only, or re-route only.",
)
@click.option(
    "--order",
    default="truncate-first",
    show_default=True,
    metavar="truncate-first|project-first",
    help="project-first keeps the best rank-k part of the projected update.",
)
@click.option(
    "--norm-match",
    metavar="R",
    help="A control: scale what is kept of each target to the norm of the core of rank R.",
)
@click.option("--scale", default=1.0, show_default=True, help="Factor on the kept part.")
@click.option("--include", metavar="REGEX", help="Edit only targets whose name it is found in.")
@click.option("--exclude", metavar="REGEX", help="Leave out targets whose name it is found in.")
@click.option(
    "--rest",
    default="base",
    show_default=True,
    metavar="base|rl",
    help="Whose embeddings, norms and other tensors to keep; rl needs --save model.",
)
@click.option(
    "--save",
    default="core",
    show_default=True,
    metavar="core|model|both",
    help="A core (a PEFT adapter), the whole edited model, or OUT/core and OUT/model.",
)
@click.option(
    "--svd",
    default="auto",
    show_default=True,
    metavar="auto|exact|gram|krylov",
    help="How updates are decomposed.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="cpu|cuda[:i,…]",
    help="Where to compute; auto takes every CUDA device, or the CPU where there is none.",
)
@click.option("--seed", default=0, show_default=True, help="Of random starts and random subspaces.")
@click.option(
    "--cache/--no-cache",
    default=None,
    help="Keep decompositions for further runs, and use kept ones.  [default: with several ranks]",
)
@click.option(
    "--part",
    metavar="I/N",
    help="Compute one share of the tensors, 0/3, 1/3 or 2/3, into OUT.part-I-of-N: for several "
    "machines, with no communication.",
)
@click.option("--join", is_flag=True, help="Put the parts beside OUT together.")
@common
def command(base: str, rl: str, out: str, as_json: bool, **options: object) -> None:
    """Extract the core of the update that training left between BASE and RL.

    BASE and RL are folders or Hub ids (org/name[@revision]); RL may be a PEFT LoRA folder.
    """
    from pathlib import Path

    from mergekit_rl.pipeline.parts import Part, join_events, part_events
    from mergekit_rl.pipeline.sar import sar_events
    from rledit.progress import follow
    from rledit.show import extraction_text, part_text, print_result

    ranks, part, join = list(options.pop("rank")), options.pop("part"), options.pop("join")
    if part is not None and join:
        raise click.UsageError("--part computes a share and --join puts them together: give one")
    if part is not None:
        folder = Part.parse(part).folder(Path(out))
        events = part_events(base, rl, out, part, rank=ranks, **options)
        done = follow(events, folder, force=options["force"])
        print_result(done, as_json, part_text)
        return
    if join:
        del options["workers"]
    events = (join_events if join else sar_events)(base, rl, out, rank=ranks, **options)
    summaries = follow(events, out, force=options["force"])
    result = summaries if len(ranks) > 1 else summaries[0]
    print_result(
        result, as_json, lambda _: extraction_text(summaries, ranks, base, rl, out, options)
    )
