"""Pairs that are not what one expects: unchanged targets, other bases, huge and tiny numbers."""

import json
import re

import pytest
import torch
from pairs import CONFIG, contents, llama, make_pair, save, updated
from safetensors.torch import load_file

from mergekit_rl import Checkpoint, EditError, apply_core, sar

NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("options", [{}, {"projection": "none"}, {"mask": "diagonal"}])
def test_a_base_rank_below_the_rank_takes_unchanged_targets_too(tmp_path, options):
    base, rl = make_pair(tmp_path)
    tensors = load_file(rl / "model.safetensors")
    tensors[NAME] = load_file(base / "model.safetensors")[NAME]
    save(rl, tensors)
    if options.get("projection") != "none":
        options = options | {"base_rank": 2}
    summary = sar(base, rl, tmp_path / "out", rank=9, save="both", **options)
    assert summary.unchanged == 1
    assert torch.equal(load_file(tmp_path / "out/model/model.safetensors")[NAME], tensors[NAME])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_unchanged_target_keeps_every_bit_of_the_base(tmp_path, dtype):
    tensors = llama(dtype=dtype)
    tensors[NAME][0, :2] = torch.tensor([-0.0, 1 / 3], dtype=dtype)
    moved = updated(tensors)
    moved[NAME] = tensors[NAME]
    base, rl = save(tmp_path / "base", tensors), save(tmp_path / "rl", moved)
    sar(base, rl, tmp_path / "out", save="both")
    apply_core(base, tmp_path / "out/core", tmp_path / "applied")
    for folder in ("out/model", "applied"):
        found = load_file(tmp_path / folder / "model.safetensors")[NAME]
        assert torch.equal(found.view(torch.uint8), tensors[NAME].view(torch.uint8))


def test_an_fp64_pair_is_summed_in_fp64(tmp_path):
    tensors = llama(dtype=torch.float64)
    moved = {k: t + 1e-10 * torch.randn(t.shape, dtype=t.dtype) for k, t in tensors.items()}
    base, rl = save(tmp_path / "base", tensors), save(tmp_path / "rl", moved)
    summary = sar(base, rl, tmp_path / "out", rank="full", save="model", projection="none")
    found = load_file(tmp_path / "out/model.safetensors")[NAME]
    assert (found - moved[NAME]).norm() <= 1e-6 * (moved[NAME] - tensors[NAME]).norm()
    assert summary.visible > 0.99 and summary.rounding < 1e-5


@pytest.mark.parametrize("c", [1e-30, 1e-20, 1e-12, 1e12, 1e15])
def test_weights_of_any_scale_give_the_same_core_up_to_it(tmp_path, c):
    base, rl = make_pair(tmp_path)
    plain = sar(base, rl, tmp_path / "plain", rank=3)
    scaled = []
    for folder in (base, rl):
        tensors = {k: t.double() * c for k, t in load_file(folder / "model.safetensors").items()}
        scaled.append(save(tmp_path / f"{folder.name}-c", tensors))
    summary = sar(*scaled, tmp_path / "out", rank=3)
    assert summary.kept == pytest.approx(plain.kept, rel=1e-5)
    assert summary.relative_update == pytest.approx(plain.relative_update, rel=1e-5)


def test_what_overflows_the_output_dtype_is_refused_and_leaves_nothing(tmp_path):
    tensors = llama(dtype=torch.bfloat16)
    for name in (NAME, "model.norm.weight"):
        wild = {k: t.clone() for k, t in tensors.items()}
        wild[name].view(-1)[3] = 1e5
        base, rl = save(tmp_path / "base", wild), save(tmp_path / "rl", updated(wild))
        expected = f"{name} overflows float16: choose a --dtype of wider range, bfloat16 or float32"
        with pytest.raises(EditError, match=re.escape(expected)):
            sar(base, rl, tmp_path / "out", save="model", dtype="float16")
        sar(base, rl, tmp_path / "core", force=True)
        with pytest.raises(EditError, match=re.escape(expected)):
            apply_core(base, tmp_path / "core", tmp_path / "out", dtype="float16")
        assert not list(tmp_path.glob("out*"))


def test_an_expert_laid_over_another_base_is_compared_by_its_weights(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "lora", rank=6)
    other = save(tmp_path / "other", updated(llama(), size=1e-1, seed=7), CONFIG)
    expert = Checkpoint.open(tmp_path / "lora", base=Checkpoint.open(base))
    merged = {name: expert.read(name) for name in expert.tensors}
    save(tmp_path / "merged", merged, CONFIG)
    found = sar(other, expert, tmp_path / "one", rank=3)
    expected = sar(other, tmp_path / "merged", tmp_path / "two", rank=3)
    assert found.relative_update == pytest.approx(expected.relative_update, rel=1e-4)
    assert found.outside == pytest.approx(expected.outside, rel=1e-4)


def test_an_adapter_that_names_another_base_is_pointed_out(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "lora", rank=6)
    other = save(tmp_path / "other", updated(llama(), seed=7), CONFIG)
    notes = sar(other, tmp_path / "lora", tmp_path / "out").notes
    assert "lora names another base than other: base" in notes


def test_the_same_checkpoint_twice_is_refused(tmp_path):
    base, _ = make_pair(tmp_path)
    with pytest.raises(EditError, match="are the same checkpoint: nothing was learnt"):
        sar(base, base, tmp_path / "out")


def test_an_adapter_as_base_makes_a_model_and_no_core(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "lora", rank=6)
    opened = Checkpoint.open(tmp_path / "lora", base=Checkpoint.open(base))
    with pytest.raises(
        EditError, match="a core over it could not be opened: make it a whole model"
    ):
        sar(opened, rl, tmp_path / "out")
    sar(opened, rl, tmp_path / "out", save="model")
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "llama"


def test_equal_integer_tensors_are_compared_and_kept(tmp_path):
    tensors = llama() | {"model.position_ids": torch.arange(8)}
    base, rl = save(tmp_path / "base", tensors), save(tmp_path / "rl", updated(tensors))
    summary = sar(base, rl, tmp_path / "out", save="model")
    assert not [note for note in summary.notes if "position_ids" in note]
    found = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(found["model.position_ids"], torch.arange(8))


def test_a_low_rank_expert_keeps_no_more_than_its_rank(tmp_path):
    base, rl = make_pair(tmp_path, hidden=128, inner=256)
    sar(base, rl, tmp_path / "lora", rank=2, projection="none")
    summary = sar(base, tmp_path / "lora", tmp_path / "out", rank=5, projection="none")
    assert summary.truncation == pytest.approx(1.0, abs=1e-9)


def test_sweeps_say_at_the_top_which_ranks_they_hold(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "out", rank=[1, 2])
    top = json.loads(contents(tmp_path / "out")["rledit.json"])
    assert top["options"]["rank"] == "1, 2"
