"""Measures in words."""

from collections.abc import Sequence

from mergekit_rl.pipeline.rows import Row, summed, total

# Where RL and SFT updates were reported to differ (arXiv:2511.08567, arXiv:2505.11711); each is a
# tendency, so they are counted and named, not combined into a verdict of their own.
SMALL_UPDATE = 1e-2
SPARSE = 0.5
SPREAD = 0.3


def headline(rows: Sequence[Row], pairs: Sequence[Row]) -> list[str]:
    """Sentences: size, sparsity, likeness, place of each update; how experts collide."""
    lines = []
    for expert in dict.fromkeys(row["expert"] for row in rows):
        lines += _expert(expert, [row for row in rows if row["expert"] == expert])
    for row in summed(pairs, "expert", "other"):
        lines.append(
            f"{row['expert']} and {row['other']}: cosine {row['cosine']:.3f}, "
            f"{row['sign_conflict']:.1%} of the entries both move are moved in opposite "
            f"directions, {row['jaccard']:.1%} of those either moves are moved by both; their "
            f"leading subspaces overlap by {row['overlap_u']:.3f} (chance "
            f"{row['overlap_u_chance']:.3f})"
        )
    return lines


def _expert(name: str, rows: list[Row]) -> list[str]:
    all_of = total(rows)
    if all_of["update_energy"] == 0:
        return [f"{name}: no projection differs from the base"]
    kinds = summed(rows, "kind")
    most = max(kinds, key=lambda row: row["update_energy"])
    layers = [row for row in summed(rows, "layer") if row["update_energy"]]
    layers.sort(key=lambda row: -row["update_energy"])
    top = layers[: max(1, len(layers) // 4)]
    share = sum(row["update_energy"] for row in top) / all_of["update_energy"]
    return [
        f"{name}: the update is {all_of['relative']:.2g} of the weights' norm; "
        f"{all_of['bf16_unchanged']:.1%} of the weights are unchanged in bf16's resolution",
        f"{name}: {_likeness(all_of)}",
        f"{name}: {most['kind']} holds {most['update_energy'] / all_of['update_energy']:.1%} of "
        f"the update's energy; its largest quarter of layers, "
        f"{', '.join(str(row['layer']) for row in sorted(top, key=lambda row: row['layer']))}, "
        f"holds {share:.1%}",
        f"{name}: the projection onto the base's space keeps {all_of['projection_share']:.3f} of "
        f"the truncated update, chance {all_of['chance']:.3f} (enrichment "
        f"{all_of['enrichment']:.2f}); truncation keeps {all_of['truncation']:.3f} of the whole",
    ]


def _likeness(row: Row) -> str:
    signs = [
        (row["relative"] < SMALL_UPDATE, "small", "large"),
        (row["bf16_unchanged"] > SPARSE, "sparse in bf16", "dense in bf16"),
        (row["effective_share"] > SPREAD, "spread over many ranks", "in few ranks"),
        (
            row["principal_overlap"] < row["principal_chance"],
            "off the principal weights",
            "on the principal weights",
        ),
    ]
    rl = [yes for holds, yes, _ in signs if holds]
    sft = [no for holds, _, no in signs if not holds]
    if len(rl) > len(sft):
        but = f", though {' and '.join(sft)}" if sft else ""
        return f"looks like RL: {', '.join(rl)}{but}"
    if len(sft) > len(rl):
        but = f", though {' and '.join(rl)}" if rl else ""
        return f"looks like SFT: {', '.join(sft)}{but}"
    return f"between RL and SFT: {', '.join(rl)}, but {', '.join(sft)}"
