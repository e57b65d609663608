"""Several ranks in one run, and the controls, end to end."""

import json

import pytest
import torch
from pairs import contents, make_pair
from safetensors.torch import load_file

from mergekit_rl import Checkpoint, EditError, apply_core, sar


def deltas(folder, base):
    """{target: Δ* in fp64} of a core."""
    core = Checkpoint.open(folder, base=base)
    return {name: core.delta(name)(base.read(name)) for name in core.low_rank}


@pytest.mark.parametrize("options", [{}, {"base_rank": 0.5}, {"projection": "none"}])
def test_each_rank_of_a_sweep_is_the_core_of_that_rank_alone(tmp_path, options):
    base, rl = make_pair(tmp_path)
    opened = Checkpoint.open(base)
    found = sar(base, rl, tmp_path / "sweep", rank=[0.1, 4, "energy:0.6", "full"], **options)
    assert sorted(p.name for p in (tmp_path / "sweep").iterdir()) == [
        "rank-0.1", "rank-4", "rank-energy-0.6", "rank-full", "rledit.json",
    ]  # fmt: skip
    for rank, summary in zip(("0.1", "4", "energy:0.6", "full"), found, strict=True):
        alone = sar(base, rl, tmp_path / "alone", rank=rank, force=True, **options)
        assert summary.kept == pytest.approx(alone.kept, rel=1e-6)
        assert summary.factor_numbers == alone.factor_numbers
        assert summary.visible == alone.visible
        folder = tmp_path / "sweep" / f"rank-{rank.replace(':', '-')}"
        one, other = deltas(folder, opened), deltas(tmp_path / "alone", opened)
        assert set(one) == set(other)
        for name, delta in one.items():
            assert torch.allclose(delta, other[name], atol=1e-6 * float(delta.norm()))


def test_every_core_of_a_sweep_applies_to_its_model(tmp_path):
    base, rl = make_pair(tmp_path, torch.bfloat16)
    sar(base, rl, tmp_path / "sweep", rank=[1, 3], save="both")
    for rank in (1, 3):
        folder = tmp_path / "sweep" / f"rank-{rank}"
        apply_core(base, folder / "core", tmp_path / f"applied{rank}")
        expected = (folder / "model" / "model.safetensors").read_bytes()
        assert (tmp_path / f"applied{rank}" / "model.safetensors").read_bytes() == expected


def test_a_sweep_resumes_and_gives_the_same_bytes_for_any_worker_count(tmp_path):
    base, rl = make_pair(tmp_path)
    options = {"rank": [1, 4], "save": "both"}
    sar(base, rl, tmp_path / "plain", workers=1, **options)

    def stop(event):
        if event.done == 7:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        sar(base, rl, tmp_path / "out", workers=2, progress=stop, **options)
    sar(base, rl, tmp_path / "out", workers=3, resume=True, **options)
    assert contents(tmp_path / "plain") == contents(tmp_path / "out")


def test_norm_match_gives_controls_the_norm_of_the_core(tmp_path):
    base, rl = make_pair(tmp_path)
    opened = Checkpoint.open(base)
    core = sar(base, rl, tmp_path / "core", rank=3)
    expected = {name: d.norm() for name, d in deltas(tmp_path / "core", opened).items()}
    for name, options in {
        "none": {"projection": "none", "rank": 3},
        "random": {"projection": "random", "rank": 3},
        "raw": {"projection": "none", "rank": "full"},
    }.items():
        summary = sar(base, rl, tmp_path / name, norm_match=3, **options)
        for target, delta in deltas(tmp_path / name, opened).items():
            assert float(delta.norm()) == pytest.approx(float(expected[target]), rel=1e-5)
        assert summary.size == pytest.approx(core.size, rel=1e-5)


def test_norm_matched_raw_update_points_where_the_update_does(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "raw", projection="none", rank="full", norm_match=2)
    w0, w1 = (load_file(folder / "model.safetensors") for folder in (base, rl))
    for name, delta in deltas(tmp_path / "raw", Checkpoint.open(base)).items():
        raw = (w1[name] - w0[name]).double()
        cosine = float((raw * delta).sum() / raw.norm() / delta.norm())
        assert cosine == pytest.approx(1.0, abs=1e-6)


def test_masks_and_orders_reach_the_core(tmp_path):
    base, rl = make_pair(tmp_path)
    opened = Checkpoint.open(base)
    found = {}
    for mask in ("full", "diagonal", "off-diagonal"):
        sar(base, rl, tmp_path / mask, rank=3, base_rank=5, mask=mask)
        found[mask] = deltas(tmp_path / mask, opened)
    for name, delta in found["full"].items():
        total = found["diagonal"][name] + found["off-diagonal"][name]
        assert torch.allclose(total, delta, atol=1e-5 * float(delta.norm()))
    first, second = (
        sar(base, rl, tmp_path / order, rank=3, order=order)
        for order in ("truncate-first", "project-first")
    )
    assert second.kept > first.kept
    options = json.loads((tmp_path / "project-first/core.json").read_text())["options"]
    assert options["order"] == "project-first"


def test_what_does_not_combine_is_refused(tmp_path):
    base, rl = make_pair(tmp_path)
    for options, text in (
        ({"rank": ["0.1", 0.1]}, "--rank names one twice (0.1, 0.1), expected each once"),
        ({"mask": "diagonal", "projection": "none"}, "--mask diagonal is of the rewiring matrix"),
        ({"norm_match": "energy:0.5"}, "--norm-match is energy:…, expected a share or a number"),
        ({"mask": "upper"}, "--mask is 'upper', expected one of full, diagonal, off-diagonal"),
        ({"order": "x"}, "--order is 'x', expected one of truncate-first, project-first"),
        ({"mask": "diagonal", "projection": "random"}, "--mask diagonal is of the rewiring matrix"),
        ({"projection": "none", "base_rank": 3}, "--projection none knows no base space"),
        ({"rank": []}, "--rank names no rank"),
    ):
        with pytest.raises(EditError) as caught:
            sar(base, rl, tmp_path / "out", **options)
        assert str(caught.value).startswith(text)
