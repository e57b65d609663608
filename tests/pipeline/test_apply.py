"""`apply_core`: the bytes of `--save model`, and the base's digests."""

import json
import re

import pytest
import torch
from pairs import contents, make_pair, save
from safetensors.torch import load_file

from mergekit_rl import EditError, apply_core, sar

OWN_WORDS = {"README.md", "rledit.json"}  # say how the folder was made


def core(tmp_path, stored=torch.float32, **options):
    base, rl = make_pair(tmp_path, stored)
    sar(base, rl, tmp_path / "out", **({"save": "both", "rank": 3} | options))
    return base, tmp_path / "out" / "core", tmp_path / "out" / "model"


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options", [{}, {"base_rank": 2}, {"scale": 0.3}, {"dtype": "float32"}, {"rank": 1.0}]
)
def test_applied_core_is_the_saved_model_byte_for_byte(tmp_path, stored, options):
    base, folder, model = core(tmp_path, stored, **options)
    apply_core(base, folder, tmp_path / "applied", workers=1)
    expected, found = contents(model), contents(tmp_path / "applied")
    assert set(expected) - OWN_WORDS == set(found) - OWN_WORDS
    assert {k: v for k, v in expected.items() if k not in OWN_WORDS} == {
        k: v for k, v in found.items() if k not in OWN_WORDS
    }


def test_scale_zero_is_the_base_and_scale_two_goes_twice_as_far(tmp_path):
    base, folder, model = core(tmp_path)
    w0, w1 = (load_file(f / "model.safetensors") for f in (base, model))
    for scale in (0.0, 2.0):
        apply_core(base, folder, tmp_path / f"x{scale}", scale=scale)
        for name, tensor in load_file(tmp_path / f"x{scale}/model.safetensors").items():
            expected = w0[name] + scale * (w1[name] - w0[name])
            assert torch.allclose(tensor, expected, atol=1e-5)


def test_a_wider_copy_of_the_base_is_accepted(tmp_path):
    base, folder, _ = core(tmp_path, torch.bfloat16)
    wide = {k: v.float() for k, v in load_file(base / "model.safetensors").items()}
    save(tmp_path / "wide", wide, json.loads((base / "config.json").read_text()))
    applied = apply_core(tmp_path / "wide", folder, tmp_path / "applied")
    assert applied.other_base == () and applied.notes == ()


def test_another_base_is_refused_and_leaves_nothing(tmp_path):
    base, folder, _ = core(tmp_path)
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"][3] += 1e-3
    save(tmp_path / "other", tensors)
    expected = (
        f"model.norm.weight of {tmp_path / 'other'} has other values than the base this core was "
        "made from (base); give that base, or --allow-other-base"
    )
    with pytest.raises(EditError, match=re.escape(expected)):
        apply_core(tmp_path / "other", folder, tmp_path / "applied")
    assert not list(tmp_path.glob("applied*"))
    applied = apply_core(tmp_path / "other", folder, tmp_path / "applied", allow_other_base=True)
    assert applied.other_base == ("model.norm.weight",)
    record = json.loads((tmp_path / "applied/rledit.json").read_text())
    assert record["other_base"] == ["model.norm.weight"]


def test_a_base_with_other_tensors_is_refused_before_reading(tmp_path):
    base, folder, _ = core(tmp_path)
    tensors = load_file(base / "model.safetensors")
    save(tmp_path / "more", tensors | {"extra": torch.ones(2)})
    with pytest.raises(EditError, match="has extra besides: it is not the base of this core"):
        apply_core(tmp_path / "more", folder, tmp_path / "applied")
    del tensors["model.norm.weight"]
    save(tmp_path / "less", tensors)
    with pytest.raises(EditError, match=r"lacks model\.norm\.weight: it is not the base"):
        apply_core(tmp_path / "less", folder, tmp_path / "applied")


def test_a_folder_without_core_json_is_refused(tmp_path):
    base, folder, _ = core(tmp_path)
    (folder / "core.json").unlink()
    with pytest.raises(EditError, match=r"holds no core\.json: expected a core that `rledit sar`"):
        apply_core(base, folder, tmp_path / "applied")


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_no_number_is_refused(tmp_path, scale):
    with pytest.raises(EditError, match=r"--scale is .*, expected a finite number"):
        apply_core(tmp_path, tmp_path, tmp_path / "applied", scale=scale)
