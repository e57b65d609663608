"""Results as a person reads them."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from rledit.escape import plain

if TYPE_CHECKING:
    from mergekit_rl.pipeline.apply import Applied
    from mergekit_rl.pipeline.inspect import Inspection
    from mergekit_rl.pipeline.parts import PartDone
    from mergekit_rl.pipeline.summary import Summary


def print_result(result: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """The result on stdout: JSON, or `text` of it."""
    if as_json:
        several = isinstance(result, list)
        content = [one.as_dict() for one in result] if several else result.as_dict()
        click.echo(json.dumps(content, indent=1))
    else:
        click.echo(plain(text(result)))


def extraction_text(
    summaries: "list[Summary]",
    ranks: list[str],
    base: str,
    rl: str,
    out: str,
    options: Mapping[str, Any],
) -> str:
    """What an extraction kept; of a sweep, the first rank in full and a table of all."""
    text = _one(summaries[0], base, rl, out, options)
    if len(summaries) == 1:
        return text
    rows = [dict(s.as_dict(), rank=rank) for s, rank in zip(summaries, ranks, strict=True)]
    return "\n".join([text, "", *_measures(rows, ("rank",), _SWEEP)])


_SWEEP = (
    ("truncation", "rank cut alone", ".4f"),
    ("kept", "kept", ".4f"),
    ("projection_share", "projection's share", ".4f"),
    ("chance", "by chance", ".4f"),
    ("visible", "visible", ".4f"),
    ("factor_numbers", "stored factors", ",d"),
    ("output_bytes", "bytes", ",d"),
)


def _one(s: "Summary", base: str, rl: str, out: str, options: Mapping[str, Any]) -> str:
    """A summary of an extraction."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in s.kinds.items())
    unchanged = f", {s.unchanged} of them unchanged" if s.unchanged else ""
    rows = [
        ("targets", f"{s.targets} ({kinds}){unchanged}"),
        ("update", f"{s.relative_update:.2e} of the weights' norm"),
        ("kept", f"{s.kept:.4f} of the update's energy in the targets"),
        ("  rank cut alone", f"{s.truncation:.4f}"),
    ]
    if options["projection"] != "none":
        chance = "" if s.chance is None else f", by chance {s.chance:.4f}"
        rows.append(("  projection's share", f"{s.projection_share:.4f}{chance}"))
    rows.append(("size", f"{s.size:.4f} of the update's norm in the targets, as scaled"))
    left = "kept" if options["rest"] == "rl" else "left at the base"
    rows += [
        ("outside the targets", f"{s.outside:.4f} of the whole update's energy, {left}"),
        ("rewiring matrices", _count(s.rewiring_numbers, s)),
        ("stored factors", _count(s.factor_numbers, s)),
        ("model", f"{s.model_numbers:,} numbers"),
        ("visible", f"{s.visible:.4f} of the targets' entries differ in {s.dtype}; {_lost(s)}"),
        ("side files", f"from {s.side_files_from}{_skipped(s)}"),
        (
            "time",
            f"{s.seconds:.1f} s; over all threads {s.seconds_reading:.1f} reading, "
            f"{s.seconds_computing:.1f} computing, {s.seconds_writing:.1f} writing",
        ),
        ("peak memory", f"{s.peak_bytes / 1e6:.0f} MB"),
        ("written", f"{out}, {s.output_bytes / 1e6:.1f} MB"),
    ]
    lines = [f"core of {rl} over {base}", *_table(rows)]
    return "\n".join([*lines, *(f"note: {note}" for note in s.notes)])


def part_text(done: "PartDone") -> str:
    """What a share holds, and what comes next."""
    return (
        f"part {done.part.index}/{done.part.count}: {done.tensors} of {done.of} tensors in "
        f"{done.folder}\nonce all are there: the same command with --join instead of --part"
    )


def applied_text(a: "Applied", out: str) -> str:
    """What `apply` did."""
    rows = [
        ("edited", f"{a.targets} of {a.tensors} tensors"),
        ("base", "another than the core's" if a.other_base else "the core's, by its digests"),
        ("written", f"{out}, {a.output_bytes / 1e6:.1f} MB in {a.seconds:.1f} s"),
    ]
    return "\n".join([*_table(rows), *(f"note: {note}" for note in a.notes)])


_COLUMNS = (
    ("relative", "update", ".1e"),
    ("bf16_unchanged", "unchanged", ".3f"),
    ("effective_share", "eff. rank/r", ".3f"),
    ("truncation", "F(k)", ".3f"),
    ("projection_share", "projected", ".3f"),
    ("chance", "chance", ".3f"),
    ("enrichment", "enrichment", ".2f"),
    ("diagonal_share", "diagonal", ".4f"),
    ("spectral_shift", "shift", ".1e"),
    ("principal_overlap", "principal", ".3f"),
    ("low_overlap", "low", ".3f"),
)
_PAIR_COLUMNS = (
    ("cosine", "cosine", ".3f"),
    ("sign_conflict", "conflict", ".3f"),
    ("jaccard", "jaccard", ".3f"),
    ("unique", "unique", ".3f"),
    ("unique_other", "of other", ".3f"),
    ("overlap_u", "overlap U", ".3f"),
    ("overlap_v", "overlap V", ".3f"),
)


def inspection_text(found: "Inspection") -> str:
    """The findings in words, and tables by module kind and layer."""
    lines = list(found.headline)
    lines += ["", *_measures(found.by_kind, ("expert", "kind"), _COLUMNS)]
    lines += ["", *_measures(found.by_layer, ("expert", "layer"), _COLUMNS)]
    if found.pairs:
        lines += ["", *_measures(found.pairs_by_kind, ("expert", "other", "kind"), _PAIR_COLUMNS)]
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def inspection_csv(found: "Inspection") -> str:
    """One line per matrix and expert, then one per matrix and two experts, told apart by the
    column `other`."""
    rows = found.rows + found.pairs
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _measures(rows: list[dict], places: tuple[str, ...], columns: tuple) -> list[str]:
    """Aligned columns; numbers to the right."""
    table = [[*places, *(title for _, title, _ in columns)]]
    for row in rows:
        cells = [str(row[place]) for place in places]
        table.append(cells + [_number(row[key], form) for key, _, form in columns])
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < len(places) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(label) for label, _ in rows)
    return [f"  {label:<{width}}  {value}" for label, value in rows]


def _count(numbers: int, s: "Summary") -> str:
    return f"{numbers:,} numbers, {numbers / s.model_numbers:.2%} of the model"


def _lost(s: "Summary") -> str:
    if s.rounding is None:
        return "nothing was kept"
    return f"rounding moves the result by {s.rounding:.2f} of what was kept"


def _skipped(s: "Summary") -> str:
    if not s.not_copied:
        return ""
    more = f" and {len(s.not_copied) - 5} more" if len(s.not_copied) > 5 else ""
    return f"; not copied: {', '.join(s.not_copied[:5])}{more}"
