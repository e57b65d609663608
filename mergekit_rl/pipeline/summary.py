"""What an extraction kept: figures over all targets, and sentences that say what they mean."""

import math
import resource
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mergekit_rl.io.names import module_kind
from mergekit_rl.pipeline.plan import Files, Plan, stored_numbers

CHANCE_ODDS = 1.5
"""The projection keeps no more than chance where the odds of what it keeps, share / (1 − share),
are less than this many times those of a random subspace of its dimensions."""
UNUSUAL_UPDATE = 0.05
"""‖Δ‖/‖W₀‖ from which a pair does not look like a base and its RL child, which differ by 1e-4 to
1e-2."""


@dataclass(frozen=True)
class Summary:
    """Figures of an extraction; energies are squared Frobenius norms, shares are of 1.

    Attributes:
        targets: how many tensors were edited; `kinds` counts them by module kind.
        unchanged: targets whose update is 0.
        relative_update: ‖Δ‖/‖W₀‖ over the targets.
        kept: ‖Δ*‖²/‖Δ‖² over the targets, before `--scale`.
        size: ‖scale·Δ*‖/‖Δ‖ over the targets.
        truncation: ‖Δ_k‖²/‖Δ‖²: what `--projection none` keeps at the same rank.
        projection_share: ‖P Δ_k P‖²/‖Δ_k‖², and `chance`, what random subspaces of the same
            dimensions would keep of it; None for `project-first`, where that is not known.
        outside: share of the whole update's energy that lies outside the targets.
        rewiring_numbers: Σ b²; `factor_numbers`: Σ k(m + n); `model_numbers`: all of the base.
        visible: share of the targets' entries that differ from the base's in the output's dtype.
        rounding: ‖cast(W₀ + Δ*) − W₀ − Δ*‖/‖Δ*‖; None where Δ* is 0.
        seconds_reading, seconds_computing, seconds_writing: over all threads together; of a sweep,
            of all its ranks.
        seconds: of the whole run; `peak_bytes`: largest resident memory of the process so far.
        output_bytes: size of the tensor files written.
        notes: what the user should know, a sentence each.
    """

    targets: int
    kinds: Mapping[str, int]
    unchanged: int
    relative_update: float
    kept: float
    size: float
    truncation: float
    projection_share: float
    chance: float | None
    outside: float
    rewiring_numbers: int
    factor_numbers: int
    model_numbers: int
    dtype: str
    visible: float
    rounding: float | None
    side_files_from: str
    not_copied: tuple[str, ...]
    seconds_reading: float
    seconds_computing: float
    seconds_writing: float
    seconds: float
    peak_bytes: int
    output_bytes: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def finished(self, seconds: float, output_bytes: int) -> "Summary":
        """With the figures known only at the end."""
        return replace(self, seconds=seconds, output_bytes=output_bytes, peak_bytes=peak_memory())


def summarise(
    plan: Plan, files: Files, records: Mapping[str, Mapping[str, Any]], seconds: float
) -> Summary:
    """Adds the records of all tensors up."""
    targets = [records[name] for name in plan.targets]
    inside, outside = _total(targets, "update_energy"), _total(records.values(), "update_energy")
    outside = max(0.0, outside - inside)
    truncated, core = _total(targets, "truncated_energy"), _total(targets, "core_energy")
    entries = sum(math.prod(plan.pair.base.tensors[name].shape) for name in plan.targets)
    kept = _total(targets, "kept_energy")
    found = Summary(
        targets=len(targets),
        kinds=dict(Counter(module_kind(name) for name in plan.targets)),
        unchanged=sum(record["update_energy"] == 0 for record in targets),
        relative_update=math.sqrt(_share(inside, _total(targets, "base_energy"))),
        kept=_share(kept, inside),
        size=math.sqrt(_share(core, inside)),
        truncation=_share(truncated, inside),
        projection_share=_share(kept, truncated),
        chance=_chance(targets, truncated),
        outside=_share(outside, inside + outside),
        rewiring_numbers=int(_total(targets, "rewiring_numbers")),
        factor_numbers=stored_numbers(plan, files.stored),
        model_numbers=plan.pair.base.parameters,
        dtype="/".join(sorted({plan.output_dtype(name) for name in plan.targets})),
        visible=_share(_total(targets, "changed"), entries),
        rounding=math.sqrt(_total(targets, "rounding_energy") / core) if core > 0 else None,
        side_files_from=plan.donor.whose,
        not_copied=plan.donor.skipped,
        seconds_reading=_total(records.values(), "reading"),
        seconds_computing=_total(targets, "computing"),
        seconds_writing=_total(records.values(), "writing"),
        seconds=seconds,
        peak_bytes=peak_memory(),
        output_bytes=0,
        notes=(),
    )
    return replace(found, notes=tuple(_notes(plan, files, records, found)))


def beyond_chance(share: float, chance: float) -> bool:
    """Whether a projection keeps clearly more than random subspaces of its dimensions would."""
    if chance >= 1.0:
        return False
    return share * (1 - chance) >= CHANCE_ODDS * chance * (1 - share)


def peak_memory() -> int:
    """Largest resident memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _notes(plan: Plan, files: Files, records: Mapping[str, Any], s: Summary) -> list[str]:
    notes = list(plan.pair.notes)
    if s.relative_update == 0:
        notes.append("base and expert are identical in every target: the core is empty")
    elif s.relative_update > UNUSUAL_UPDATE:
        notes.append(
            f"the update is {s.relative_update:.2g} of the weights, far above what RL leaves "
            f"(below {UNUSUAL_UPDATE:g}): this does not look like a base and its RL child"
        )
    if plan.options.projection == "spectral" and plan.options.mask == "full" and s.relative_update:
        if s.chance is None:
            pass
        elif s.chance > 1 - 1e-9:
            notes.append(
                "every target that changed is square, and the base's space all of it: the "
                "projection changes nothing here, and the core is the truncated update"
            )
        elif not beyond_chance(s.projection_share, s.chance):
            notes.append(
                f"the projection keeps no more than chance would: {s.projection_share:.2f} of the "
                f"truncated update, random subspaces of the same size {s.chance:.2f}; "
                f"--projection none at the same size keeps {s.truncation:.3f} of the whole update, "
                f"this core {s.kept:.3f}"
            )
    uncompared = [name for name, record in records.items() if record.get("not_compared")]
    if uncompared:
        notes.append(
            f"{', '.join(uncompared[:3])} cannot be compared and is not in the share outside"
        )
    if plan.saves_core:
        dtype_bytes = sum(info.nbytes for info in plan.pair.base.tensors.values())
        if 4 * s.factor_numbers > 0.5 * dtype_bytes:
            notes.append(
                f"the fp32 factors take {4 * s.factor_numbers / dtype_bytes:.0%} of the model's "
                "own size: a smaller --rank, or --save model, may serve better"
            )
    return notes


def _chance(targets: list[Mapping[str, Any]], truncated: float) -> float | None:
    if any(record["chance_energy"] is None for record in targets):
        return None
    return _share(_total(targets, "chance_energy"), truncated)


def _total(records: Any, key: str) -> float:
    return sum(record.get(key, 0) for record in records)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
