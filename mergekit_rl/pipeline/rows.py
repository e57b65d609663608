"""Rows of measures, and how they add up."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

# What each measure of a matrix counts by when matrices are added up; measures that are not named
# here are amounts, and are summed.
_ENERGY, _ENTRIES, _MATRICES = "update_energy", "entries", None
WEIGHTS: dict[str, str | None] = {
    "truncation": _ENERGY, "stable_rank": _MATRICES, "effective_rank": _MATRICES,
    "effective_share": _MATRICES, "diagonal_share": _ENERGY, "diagonal_chance": _ENERGY,
    "angle_u_mean": _MATRICES, "angle_u_max": _MATRICES, "angle_v_mean": _MATRICES,
    "angle_v_max": _MATRICES, "spectral_shift": "base_energy", "unchanged": _ENTRIES,
    "bf16_unchanged": _ENTRIES, "visible_bfloat16": _ENTRIES, "visible_float16": _ENTRIES,
    "visible_float32": _ENTRIES, "principal_overlap": _ENTRIES, "principal_chance": _ENTRIES,
    "low_overlap": _ENTRIES, "low_chance": _ENTRIES, "chance": "truncated_energy",
    "cosine": "norms", "sign_conflict": "shared", "jaccard": "either", "unique": "moved",
    "unique_other": "moved_other", "overlap_u": "norms", "overlap_u_chance": "norms",
    "overlap_v": "norms", "overlap_v_chance": "norms",
}  # fmt: skip
_PLACE = {"expert", "other", "tensor", "layer", "kind", "index", "m", "n", "k"}
# Ratios of sums rather than means of ratios: {measure: (above, below)}.
_RATIOS = {
    "kept": ("kept_energy", "update_energy"),
    "projection_share": ("kept_energy", "truncated_energy"),
    "enrichment": ("kept_energy", "chance_energy"),
}


def summed(rows: Sequence[Row], *by: str) -> list[Row]:
    """One row for each value of the columns `by`, in order of appearance: amounts added, shares
    averaged by what they are shares of, `matrices` counted."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in by), []).append(row)
    return [
        {**dict(zip(by, place, strict=True)), "matrices": len(group), **total(group)}
        for place, group in groups.items()
    ]


def total(rows: Sequence[Row]) -> Row:
    """The measures of several matrices as if of one."""
    found: Row = {}
    for key in rows[0]:
        if key in _PLACE or key in _RATIOS or key == "relative":
            continue
        weight = weight_of(key)
        if weight == "sum":
            found[key] = sum(row[key] for row in rows)
        else:
            weights = [1.0 if weight is None else row[weight] for row in rows]
            whole = sum(weights)
            parts = sum(row[key] * w for row, w in zip(rows, weights, strict=True))
            found[key] = parts / whole if whole else 0.0
    for key, (above, below) in _RATIOS.items():
        if above in found:
            found[key] = found[above] / found[below] if found[below] else 0.0
    if "base_energy" in found:
        base = found["base_energy"]
        found["relative"] = (found["update_energy"] / base) ** 0.5 if base else 0.0
    return found


def weight_of(key: str) -> str | None:
    """The column a measure is averaged by, None for a plain mean, `sum` for an amount."""
    if key.startswith("block_"):
        return _ENERGY
    return WEIGHTS.get(key, "sum")
