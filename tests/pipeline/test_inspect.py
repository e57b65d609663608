"""`inspect` end to end: places, sums, mixtures of experts, several experts, words."""

import csv
import io
import json

import pytest
import torch
from pairs import llama, make_pair, save, updated
from safetensors.torch import load_file

from mergekit_rl import EditError
from mergekit_rl.pipeline.inspect import inspect

PLACES = {"expert", "tensor", "layer", "kind", "index"}


def moved(folder, out, seed=3):
    """A copy of a model's folder after a small update of every tensor."""
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    return save(out, updated(tensors, 1e-3, seed), config)


def test_rows_have_a_place_and_add_up_to_kinds_and_layers(tmp_path):
    base, rl = make_pair(tmp_path)
    found = inspect(base, [rl])
    assert len(found.rows) == 14 and found.pairs == []
    for sums, column, count in ((found.by_kind, "kind", 7), (found.by_layer, "layer", 2)):
        assert len(sums) == count
        for row in sums:
            mine = [r for r in found.rows if r[column] == row[column]]
            assert row["matrices"] == len(mine)
            energy = sum(r["update_energy"] for r in mine)
            assert row["update_energy"] == pytest.approx(energy)
            kept = sum(r["kept_energy"] for r in mine)
            assert row["kept"] == pytest.approx(kept / energy)


def test_measures_do_not_depend_on_workers_or_company(tmp_path):
    base, rl = make_pair(tmp_path)
    other = save(tmp_path / "other", updated(llama(), seed=8))
    one = inspect(base, [rl], workers=1)
    both = inspect(base, [rl, other], workers=3)
    assert [row for row in both.rows if row["expert"] == "rl"] == one.rows
    assert {(row["expert"], row["other"]) for row in both.pairs} == {("rl", "other")}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_every_expert_of_a_mixture_has_a_row_of_its_own(tiny, tmp_path, family):
    base = tiny(family)
    found = inspect(base, [moved(base, tmp_path / "rl")])
    names = load_file(base / "model.safetensors")
    experts = [row for row in found.rows if ".experts." in row["tensor"]]
    separate = [n for n in names if ".experts." in n and names[n].dim() == 2 and "weight" in n]
    packed = [n for n in names if ".experts." in n and names[n].dim() == 3]
    assert len(experts) == len(separate) + sum(len(names[name]) for name in packed) > 0
    assert not [row for row in found.rows if "router" in row["tensor"]]
    assert all(row["layer"] in (0, 1) for row in experts)


def test_packed_and_separate_experts_give_the_same_numbers(tiny, tmp_path):
    base = tiny("gpt_oss")
    rl = moved(base, tmp_path / "rl")
    folders = []
    for folder in (base, rl):
        tensors = {}
        for name, tensor in load_file(folder / "model.safetensors").items():
            if tensor.dim() == 3 and ".experts." in name:
                place, _, leaf = name.rpartition(".")
                for index, matrix in enumerate(tensor):
                    tensors[f"{place}.{index}.{leaf}.weight"] = matrix
            else:
                tensors[name] = tensor
        folders.append(save(tmp_path / f"{folder.name}-separate", tensors))
    packed = inspect(base, [rl])
    separate = inspect(folders[0], [folders[1]])
    ours = {(r["layer"], r["kind"], r["index"]): r for r in packed.rows if r["index"] is not None}
    assert ours
    for row in separate.rows:
        if ".experts." in row["tensor"]:
            index = int(row["tensor"].split(".experts.")[1].split(".")[0])
            other = ours[row["layer"], row["kind"], index]
            for key in set(row) - PLACES:
                assert row[key] == pytest.approx(other[key], rel=1e-6, abs=1e-12), key


def test_headline_says_what_kind_of_update_it_is(tmp_path):
    base, _ = make_pair(tmp_path, torch.bfloat16)
    tensors = load_file(base / "model.safetensors")
    small = save(tmp_path / "small", updated(tensors, 1e-4))
    large = save(tmp_path / "large", updated(tensors, 0.5))
    same = save(tmp_path / "same", tensors)
    text = "\n".join(inspect(base, [small, large, same]).headline)
    assert "small: looks like RL: small, sparse in bf16, spread over many ranks" in text
    assert "large, dense in bf16" in text
    assert "same: no projection differs from the base" in text
    assert "small and large: cosine " in text


def test_wrong_settings_are_refused(tmp_path):
    base, rl = make_pair(tmp_path)
    for options, text in (
        ({"alpha": 0}, "--alpha is 0, expected a share between 0 and 1"),
        ({"rank": "energy:0.5"}, "--rank is energy:…, expected a share, a number or full"),
        ({"include": "zz"}, f"{base} and its experts share no projection that --include 'zz'"),
    ):
        with pytest.raises(EditError) as caught:
            inspect(base, [rl], **options)
        assert str(caught.value).startswith(text)
    with pytest.raises(EditError, match="is given twice: experts must differ"):
        inspect(base, [rl, rl])


def test_csv_of_the_command_has_a_line_per_matrix(tmp_path):
    from click.testing import CliRunner

    from rledit.main import cli

    base, rl = make_pair(tmp_path)
    done = CliRunner().invoke(cli, ["inspect", str(base), str(rl), "--csv"])
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 14 and rows[0]["expert"] == "rl"
    assert float(rows[0]["relative"]) > 0
