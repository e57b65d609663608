"""Looking at experts beside their base: every measure of every projection, as plain rows."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.cache import Cache, usable_cache
from mergekit_rl.io.checkpoint import FLOATS, Checkpoint
from mergekit_rl.io.names import is_projection, layer_index, module_kind
from mergekit_rl.pipeline.headline import headline
from mergekit_rl.pipeline.kept import Content, figures_kept
from mergekit_rl.pipeline.options import name_filter, resolve_devices
from mergekit_rl.pipeline.pair import Pair, open_pair
from mergekit_rl.pipeline.rows import Row, summed
from mergekit_rl.pipeline.run import Job, Progress, current_device, drain, run_jobs
from mergekit_rl.pipeline.tensors import keyed_generator, matrices
from mergekit_rl.spectral import measures
from mergekit_rl.spectral.projection import Projector
from mergekit_rl.spectral.rank import Rank
from mergekit_rl.spectral.svd import truncated_svd
from mergekit_rl.spectral.truncation import truncate

BLOCKS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Leading blocks of the rewiring matrix that a row tells the energy of, as shares of r."""


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        headline: the findings in words.
        rows: one per expert and matrix: names, place, every measure; see `rows.WEIGHTS`.
        pairs: one per two experts and matrix: how they collide.
        by_kind, by_layer: rows of each module kind and each layer, added up.
        pairs_by_kind: the same of `pairs`.
        notes: what does not look like a base and its child.
    """

    headline: list[str]
    rows: list[Row]
    pairs: list[Row]
    by_kind: list[Row]
    by_layer: list[Row]
    pairs_by_kind: list[Row]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Settings:
    rank: Rank
    alpha: float
    seed: int = 0


def inspect(
    base: "str | Path | Checkpoint",
    experts: "Sequence[str | Path | Checkpoint]",
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Inspection:
    """Measures the updates of one or more experts against their base; nothing is written.

    See `inspect_events` for the options and `spectral.measures` for the formulas.
    """
    return drain(inspect_events(base, experts, **options), progress)


def inspect_events(
    base: "str | Path | Checkpoint",
    experts: "Sequence[str | Path | Checkpoint]",
    *,
    rank: "str | int | float | Rank" = "0.01",
    alpha: float = 0.1,
    include: str | None = None,
    exclude: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    cache: bool = True,
) -> Generator[Progress, None, Inspection]:
    """`inspect` as a generator: yields a `Progress` after every tensor.

    Args:
        base: what the experts were trained from.
        experts: one or more; names must differ.
        rank: k of the truncated update and of the subspaces that are compared.
        alpha: share of the weights that count as principal, and as of low magnitude; 0 < α < 1.
        include, exclude: regular expressions searched in the tensors' names.
        device, workers: as in `sar`.
        cache: whether rows of matrices that an earlier run measured are taken from it, and kept.

    Raises:
        EditError: as `sar` does for each pair.
    """
    settings = _Settings(Rank.parse(rank), float(alpha))
    devices = resolve_devices(device)
    if settings.rank.energy is not None:
        raise EditError("--rank is energy:…, expected a share, a number or full")
    if not 0 < settings.alpha < 1:
        raise EditError(f"--alpha is {alpha}, expected a share between 0 and 1")
    wants = name_filter(include, exclude)
    kept = usable_cache() if cache else None
    base = base if isinstance(base, Checkpoint) else Checkpoint.open(base)
    pairs = [open_pair(base, expert) for expert in experts]
    labels = _labels(pairs)
    names = [
        name
        for name, info in base.tensors.items()
        if info.dtype in FLOATS
        and is_projection(name, info.shape)
        and wants(name)
        and all(pair.same_shape(name) for pair in pairs)
    ]
    if not names:
        chosen = f" that --include {include!r} and --exclude {exclude!r} let through"
        asked = chosen if include is not None or exclude is not None else ""
        raise EditError(f"{base.ref} and its experts share no projection{asked}")
    jobs = [_job(pairs, name) for name in names]
    found: dict[str, tuple[list[Row], list[Row]]] = {}
    work = partial(_measure, pairs, labels, settings, kept)
    yield from run_jobs(jobs, None, work, workers, devices, found)
    rows = [row for name in names for row in found[name][0]]
    both = [row for name in names for row in found[name][1]]
    notes = [f"{label}: {note}" for label, p in zip(labels, pairs, strict=True) for note in p.notes]
    return Inspection(
        headline=headline(rows, both),
        rows=rows,
        pairs=both,
        by_kind=summed(rows, "expert", "kind"),
        by_layer=summed(rows, "expert", "layer"),
        pairs_by_kind=summed(both, "expert", "other", "kind"),
        notes=notes,
    )


def _labels(pairs: list[Pair]) -> list[str]:
    """A short name per expert: its own, or the reference where two have the same."""
    names = [pair.expert.name for pair in pairs]
    if len(set(names)) < len(names):
        names = [pair.expert.ref for pair in pairs]
    if len(set(names)) < len(names):
        raise EditError(f"{names[0]} is given twice: experts must differ")
    return names


def _job(pairs: list[Pair], name: str) -> Job:
    info = pairs[0].base.tensors[name]
    m, n = info.shape[-2:]
    count = info.nbytes // max(1, m * n)
    # In fp64: W₀ and its SVD, one expert's weight and update, the rewiring matrix, scratch.
    memory = 8 * (8 + len(pairs)) * m * n
    return Job(name, m * n * min(m, n) * max(1, count), memory, info.nbytes * (1 + len(pairs)))


def _measure(
    pairs: list[Pair],
    labels: list[str],
    settings: _Settings,
    cache: Cache | None,
    job: Job,
    _: None,
) -> tuple[list[Row], list[Row]]:
    """The rows of one tensor of the base."""
    base, name = pairs[0].base, job.name
    rows: list[Row] = []
    both: list[Row] = []
    for index in matrices(base, name):
        w0 = base.read(name, index).to(current_device())
        wide = torch.float64 if w0.dtype == torch.float64 else torch.float32
        spectrum = once(partial(measures.decompose, w0))  # where a row is to be measured
        weight, k = Content(w0), settings.rank.of(min(w0.shape))
        keyed = [k, settings.alpha, settings.seed, name, index or 0]
        place = {"tensor": name, "layer": layer_index(name), "kind": module_kind(name)}
        place |= {"index": index, "m": w0.shape[0], "n": w0.shape[1], "entries": w0.numel()}
        deltas = []
        for pair, label in zip(pairs, labels, strict=True):
            form = pair.delta(name, index)
            delta = torch.zeros_like(w0, dtype=wide) if form is None else form(w0)
            compute = partial(_one, w0, spectrum, delta, settings, name, index or 0)
            deltas.append(Content(delta))
            row = figures_kept(cache, "measures", [weight, deltas[-1]], keyed, compute)
            rows.append({"expert": label, **place, **row})
        for a, b in combinations(range(len(deltas)), 2):
            two = [deltas[a], deltas[b]]
            compute = partial(_two, *(one.tensor for one in two), settings)
            row = figures_kept(cache, "collision", two, [k], compute)
            both.append({"expert": labels[a], "other": labels[b], **place, **row})
    return rows, both


def _one(
    w0: Tensor,
    spectrum: Callable[[], measures.Decomposition],
    delta: Tensor,
    settings: _Settings,
    name: str,
    index: int,
) -> Row:
    """Measures 1 to 6 of one matrix."""
    base = spectrum()
    r = min(w0.shape)
    k = settings.rank.of(r)
    w1 = w0.to(delta.dtype) + delta
    s = torch.linalg.svdvals(delta.to(torch.float64))
    cut = truncate(delta, k, generator=keyed_generator(settings.seed, name, index))
    kept = Projector(w0).rewire(cut)
    energies = measures.truncation_energy(s)
    m = measures.rewiring(base, delta)
    blocks = measures.block_energy(m, cut.energy)
    turned = truncated_svd(w1, k, generator=keyed_generator(settings.seed, name, index))
    u, v = (
        measures.principal_angles(*sides)
        for sides in ((base.U[:, :k], turned.U), (base.Vh[:k].T, turned.Vh.T))
    )
    moved = measures.update_mask(w0, w1)
    principal, principal_chance = measures.mask_overlap(
        moved, measures.principal_mask(base, k, settings.alpha)
    )
    low, low_chance = measures.mask_overlap(moved, measures.low_magnitude_mask(w0, settings.alpha))
    return {
        "k": k,
        "base_energy": float((base.S**2).sum()),
        "update_energy": cut.energy,
        "truncated_energy": cut.kept,
        "kept_energy": kept.kept,
        "chance_energy": cut.kept * kept.chance,
        "relative": measures.relative_size(w0, delta),
        "kept": kept.kept / cut.energy if cut.energy else 0.0,
        "projection_share": kept.kept / cut.kept if cut.kept else 0.0,
        "chance": kept.chance,
        "enrichment": kept.kept / (cut.kept * kept.chance) if cut.kept else 0.0,
        "truncation": float(energies[k - 1]),
        "stable_rank": measures.stable_rank(s),
        "effective_rank": measures.effective_rank(s),
        "effective_share": measures.effective_rank(s) / r,
        **{f"block_{share:g}": float(blocks[max(1, int(share * r)) - 1]) for share in BLOCKS},
        **{f"block_{share:g}_chance": _block_chance(w0, share) for share in BLOCKS},
        "diagonal_share": measures.diagonal_share(m),
        "diagonal_chance": 1 / r,
        "angle_u_mean": float(u.mean()),
        "angle_u_max": float(u.max()),
        "angle_v_mean": float(v.mean()),
        "angle_v_max": float(v.max()),
        "spectral_shift": measures.spectral_shift(
            base.S, torch.linalg.svdvals(w1.to(torch.float64))
        ),
        "unchanged": measures.unchanged_share(w0, w1),
        "bf16_unchanged": measures.bf16_unchanged_share(w0, w1),
        **{
            f"visible_{label}": measures.visible_share(w0, w1, dtype)
            for label, dtype in measures.VISIBLE_IN.items()
        },
        "principal_overlap": principal,
        "principal_chance": principal_chance,
        "low_overlap": low,
        "low_chance": low_chance,
    }


def _block_chance(w0: Tensor, share: float) -> float:
    j = max(1, int(share * min(w0.shape)))
    return j * j / w0.numel()


def _two(a: Tensor, b: Tensor, settings: _Settings) -> Row:
    """Measure 7 of one matrix."""
    m, n = a.shape
    k = settings.rank.of(min(m, n))
    ours, theirs = truncated_svd(a, k), truncated_svd(b, k)
    shared, either = ((a != 0) & (b != 0)), ((a != 0) | (b != 0))
    return {
        "k": k,
        "cosine": measures.cosine(a, b),
        "norms": float(torch.linalg.vector_norm(a)) * float(torch.linalg.vector_norm(b)),
        "shared": int(shared.sum()),
        "either": int(either.sum()),
        "moved": int((a != 0).sum()),
        "moved_other": int((b != 0).sum()),
        "sign_conflict": measures.sign_conflict(a, b),
        "jaccard": measures.support_jaccard(a, b),
        "unique": measures.unique_share(a, b),
        "unique_other": measures.unique_share(b, a),
        "overlap_u": measures.subspace_overlap(ours.U, theirs.U),
        "overlap_u_chance": k / m,
        "overlap_v": measures.subspace_overlap(ours.Vh.T, theirs.Vh.T),
        "overlap_v_chance": k / n,
    }
