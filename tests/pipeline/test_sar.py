"""`sar`: targets, rest, output, summary, and what it refuses."""

import json
import re

import pytest
import torch
from pairs import CONFIG, contents, llama, make_pair, save, updated
from safetensors.torch import load_file

from mergekit_rl import Checkpoint, EditError, sar
from mergekit_rl.pipeline.summary import beyond_chance

PROJECTIONS = re.compile(r"layers\.\d+\..*(q|k|v|o|gate|up|down)_proj\.weight")


def refuse(text, *args, **options):
    with pytest.raises(EditError) as caught:
        sar(*args, **options)
    assert str(caught.value) == text or re.fullmatch(text, str(caught.value)), str(caught.value)


def low_rank(w0, w1, k):
    u, s, vh = torch.linalg.svd(w1.double() - w0.double(), full_matrices=False)
    return (u[:, :k] * s[:k]) @ vh[:k]


def test_saved_model_holds_the_projected_update_in_projections_and_the_base_elsewhere(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "out", rank=3, save="model")
    w0, w1, found = (
        load_file(folder / "model.safetensors") for folder in (base, rl, tmp_path / "out")
    )
    assert list(found) and set(found) == set(w0)
    for name, edited in found.items():
        if not PROJECTIONS.search(name):
            assert torch.equal(edited, w0[name])
            continue
        delta = low_rank(w0[name], w1[name], 3)
        u, _, vh = torch.linalg.svd(w0[name].double(), full_matrices=False)
        expected = w0[name] + u @ (u.T @ delta @ vh.T) @ vh
        assert torch.allclose(edited.double(), expected, atol=1e-6)


def test_no_projection_is_the_truncated_update(tmp_path):
    base, rl = make_pair(tmp_path)
    summary = sar(base, rl, tmp_path / "out", rank=2, projection="none", save="model")
    w0, w1, found = (
        load_file(folder / "model.safetensors") for folder in (base, rl, tmp_path / "out")
    )
    for name in filter(PROJECTIONS.search, found):
        expected = w0[name] + low_rank(w0[name], w1[name], 2)
        assert torch.allclose(found[name].double(), expected, atol=1e-6)
    assert summary.kept == pytest.approx(summary.truncation)


def test_rest_rl_keeps_the_experts_tensors_outside_the_targets(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "out", rest="rl", save="model")
    w1, found = (load_file(f / "model.safetensors") for f in (rl, tmp_path / "out"))
    for name, tensor in found.items():
        assert torch.equal(tensor, w1[name]) != bool(PROJECTIONS.search(name))


def test_identical_checkpoints_give_the_base_bit_for_bit_and_say_so(tmp_path):
    base, _ = make_pair(tmp_path, torch.bfloat16)
    copy = save(tmp_path / "copy", load_file(base / "model.safetensors"))
    summary = sar(base, copy, tmp_path / "out", save="both")
    found = load_file(tmp_path / "out" / "model" / "model.safetensors")
    for name, tensor in load_file(base / "model.safetensors").items():
        assert torch.equal(found[name].view(torch.int16), tensor.view(torch.int16))
    assert summary.unchanged == summary.targets == 14
    assert "base and expert are identical in every target: the core is empty" in summary.notes


def test_summary_adds_up(tmp_path):
    base, rl = make_pair(tmp_path)
    summary = sar(base, rl, tmp_path / "out", rank=4)
    w0, w1 = (load_file(f / "model.safetensors") for f in (base, rl))
    every = {name: float((w1[name] - w0[name]).norm()) ** 2 for name in w0}
    inside = sum(energy for name, energy in every.items() if PROJECTIONS.search(name))
    cut = sum(float(low_rank(w0[n], w1[n], 4).norm()) ** 2 for n in w0 if PROJECTIONS.search(n))
    weights = sum(float(w0[n].norm()) ** 2 for n in w0 if PROJECTIONS.search(n))
    assert summary.outside == pytest.approx(1 - inside / sum(every.values()), rel=1e-4)
    assert summary.truncation == pytest.approx(cut / inside, rel=1e-4)
    assert summary.kept == pytest.approx(summary.truncation * summary.projection_share, rel=1e-9)
    assert summary.relative_update == pytest.approx((inside / weights) ** 0.5, rel=1e-4)
    assert summary.factor_numbers == sum(
        4 * sum(w0[name].shape) for name in w0 if PROJECTIONS.search(name)
    )
    assert summary.model_numbers == sum(tensor.numel() for tensor in w0.values())
    assert summary.rewiring_numbers == 2 * (2 * 32**2 + 2 * 16**2 + 3 * 32**2)
    assert summary.kinds == dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_visible_share_and_rounding_are_those_of_the_saved_model(tmp_path, dtype):
    base, rl = make_pair(tmp_path, dtype)
    summary = sar(base, rl, tmp_path / "out", rank=2, save="both")
    w0 = load_file(base / "model.safetensors")
    model = load_file(tmp_path / "out" / "model" / "model.safetensors")
    core = Checkpoint.open(tmp_path / "out" / "core", base=Checkpoint.open(base))
    targets = [name for name in w0 if PROJECTIONS.search(name)]
    changed = sum(int((model[name] != w0[name]).sum()) for name in targets)
    assert summary.visible == pytest.approx(changed / sum(w0[n].numel() for n in targets))
    lost = kept = 0.0
    for name in targets:
        delta = core.delta(name)(w0[name])
        lost += float((model[name].double() - w0[name].double() - delta).norm()) ** 2
        kept += float(delta.norm()) ** 2
    assert summary.rounding == pytest.approx((lost / kept) ** 0.5, rel=1e-2)


def test_energy_rank_keeps_the_share_asked_for(tmp_path):
    base, rl = make_pair(tmp_path)
    summary = sar(base, rl, tmp_path / "out", rank="energy:0.5", projection="none")
    assert 0.5 <= summary.kept < 0.6
    ranks = json.loads((tmp_path / "out" / "adapter_config.json").read_text())["rank_pattern"]
    assert ranks


def test_a_base_rank_below_the_rank_stores_the_smaller(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "out", rank=8, base_rank=3)
    for key, tensor in load_file(tmp_path / "out" / "adapter_model.safetensors").items():
        assert tensor.shape[0 if "lora_A" in key else 1] == 3


def test_include_and_exclude_choose_among_the_projections(tmp_path):
    base, rl = make_pair(tmp_path)
    summary = sar(base, rl, tmp_path / "out", include="mlp", exclude=r"layers\.1\.")
    assert summary.kinds == {"gate_proj": 1, "up_proj": 1, "down_proj": 1}


def test_scale_multiplies_the_core(tmp_path):
    base, rl = make_pair(tmp_path)
    opened = Checkpoint.open(base)
    name = "model.layers.0.mlp.up_proj.weight"
    deltas = []
    for scale in (1.0, -2.0):
        sar(base, rl, tmp_path / f"out{scale}", scale=scale)
        core = Checkpoint.open(tmp_path / f"out{scale}", base=opened)
        deltas.append(core.delta(name)(opened.read(name)))
    assert torch.allclose(-2 * deltas[0], deltas[1], rtol=1e-5)


def test_output_dtype_is_the_experts_and_config_says_so(tmp_path):
    base, _ = make_pair(tmp_path)
    rl = save(tmp_path / "rl16", updated(llama(dtype=torch.bfloat16)), CONFIG)
    sar(base, rl, tmp_path / "out", save="model")
    assert {t.dtype for t in load_file(tmp_path / "out/model.safetensors").values()} == {
        torch.bfloat16
    }
    assert json.loads((tmp_path / "out/config.json").read_text()) == CONFIG | {"dtype": "bfloat16"}
    sar(base, rl, tmp_path / "out32", save="model", dtype="float32")
    assert (tmp_path / "out32/config.json").read_bytes() == (rl / "config.json").read_bytes()


def test_side_files_are_the_experts_where_its_vocabulary_fits(tmp_path):
    base, rl = make_pair(tmp_path)
    summary = sar(base, rl, tmp_path / "out", save="both")
    assert summary.side_files_from == "the expert"
    for part in ("core", "model"):
        assert (tmp_path / "out" / part / "tokenizer.json").read_text() == '{"from": "rl"}'
    assert not (tmp_path / "out/core/config.json").exists()


def test_side_files_are_the_bases_where_the_experts_vocabulary_does_not_fit(tmp_path):
    base, _ = make_pair(tmp_path)
    tensors = updated(llama())
    tensors["model.embed_tokens.weight"] = torch.randn(70, 32)
    rl = save(tmp_path / "grown", tensors, CONFIG | {"vocab_size": 70}, ["tokenizer.json"])
    summary = sar(base, rl, tmp_path / "out", save="model")
    assert summary.side_files_from == (
        "the base (the expert's do not fit: model.embed_tokens.weight has another shape)"
    )
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"from": "base"}'
    assert "the configs differ in vocab_size: 64 → 70" in summary.notes
    assert any(note.startswith("model.embed_tokens.weight cannot be") for note in summary.notes)


def test_names_match_across_a_model_prefix_and_the_summary_says_it(tmp_path):
    base, rl = make_pair(tmp_path)
    bare = {k.removeprefix("model."): v for k, v in load_file(rl / "model.safetensors").items()}
    save(tmp_path / "bare", bare)
    summary = sar(base, tmp_path / "bare", tmp_path / "out")
    plain = sar(base, rl, tmp_path / "plain")
    assert summary.kept == plain.kept
    assert summary.notes[0] == (
        "20 names match across a prefix (`model.` or `transformer.`) that only one side has"
    )


def test_an_unrelated_pair_is_warned_of(tmp_path):
    base, _ = make_pair(tmp_path)
    save(tmp_path / "other", llama(seed=9))
    notes = sar(base, tmp_path / "other", tmp_path / "out").notes
    assert any("does not look like a base and its RL child" in note for note in notes)


def test_a_projection_no_better_than_chance_is_said_to_be(tmp_path):
    base, rl = make_pair(tmp_path, hidden=64, inner=192)
    summary = sar(base, rl, tmp_path / "out", rank=8)
    note = next(note for note in summary.notes if "no more than chance" in note)
    assert f"--projection none at the same size keeps {summary.truncation:.3f}" in note


@pytest.mark.parametrize(
    "share, chance, expected",
    [(0.58, 0.54, False), (0.9, 0.5, True), (1.0, 1.0, False), (1e-3, 1e-4, True), (0, 0.1, False)],
)
def test_beyond_chance_compares_odds(share, chance, expected):
    assert beyond_chance(share, chance) is expected


def test_an_adapter_as_expert_gives_what_its_merged_model_gives(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "lora", rank=6, projection="none")
    sar(base, tmp_path / "lora", tmp_path / "again", rank=6, projection="none")
    opened = Checkpoint.open(base)
    first, second = (Checkpoint.open(tmp_path / f, base=opened) for f in ("lora", "again"))
    for name in first.low_rank:
        w0 = opened.read(name)
        a, b = first.delta(name)(w0), second.delta(name)(w0)
        assert (a - b).norm() <= 1e-5 * a.norm()


def test_stacked_experts_are_edited_matrix_by_matrix(tmp_path):
    g = torch.Generator().manual_seed(0)
    stack = torch.randn(3, 24, 16, generator=g)
    names = [f"model.layers.0.mlp.experts.{i}.up_proj.weight" for i in range(3)]
    packed = {"model.layers.0.mlp.experts.gate_up_proj": stack}
    separate = {name: stack[i] for i, name in enumerate(names)}
    found = []
    for kind, tensors in (("packed", packed), ("separate", separate)):
        base, rl = save(tmp_path / kind, tensors), save(tmp_path / f"{kind}-rl", updated(tensors))
        if kind == "separate":
            moved = load_file(tmp_path / "packed-rl/model.safetensors")[next(iter(packed))]
            save(rl, {name: moved[i] for i, name in enumerate(names)})
        found.append(sar(base, rl, tmp_path / f"{kind}-out", rank=2, save="model"))
    one = load_file(tmp_path / "packed-out/model.safetensors")[next(iter(packed))]
    many = load_file(tmp_path / "separate-out/model.safetensors")
    for index, name in enumerate(names):
        assert torch.allclose(one[index], many[name], atol=1e-6)
    assert found[0].kept == pytest.approx(found[1].kept, rel=1e-6)
    assert found[0].factor_numbers == found[1].factor_numbers


def test_provenance_card_and_core_name_no_local_path(tmp_path):
    base, rl = make_pair(tmp_path)
    sar(base, rl, tmp_path / "out", save="both")
    for name, content in contents(tmp_path / "out").items():
        if not name.endswith("adapter_config.json"):  # PEFT opens the base by this path
            assert str(tmp_path).encode() not in content, name


def test_what_does_not_travel_is_listed(tmp_path):
    base, rl = make_pair(tmp_path)
    for name in ("optimizer.pt", "training_args.bin", ".secret"):
        (rl / name).write_bytes(b"x")
    (rl / "logs").mkdir()
    summary = sar(base, rl, tmp_path / "out")
    assert set(summary.not_copied) == {"optimizer.pt", "training_args.bin", ".secret", "logs/"}
    assert not (tmp_path / "out/optimizer.pt").exists()


def test_wrong_input_is_refused_before_anything_is_written(tmp_path):
    base, rl = make_pair(tmp_path)
    out = tmp_path / "out"
    refuse(
        "--rank is '0', expected a share of each matrix's rank above 0 and up to 1.0 (0.01), a "
        "number from 1 (8), energy:SHARE (energy:0.9) or full",
        base, rl, out, rank=0,
    )  # fmt: skip
    for rank in ("1.5", "-1", "energy:0", "energy:1.2", "nan", "", "1e400", "energy:", "0.0"):
        refuse(f"--rank is {rank!r}, expected .*", base, rl, out, rank=rank)
    refuse("--base-rank is energy:….*", base, rl, out, base_rank="energy:0.5")
    refuse("--scale is nan, expected a finite number", base, rl, out, scale=float("nan"))
    refuse("--include '\\(' is no regular expression: .*", base, rl, out, include="(")
    refuse("--rest rl keeps .* add --save model", base, rl, out, rest="rl")
    refuse(
        "--projection is 'foo', expected one of spectral, random, none",
        base,
        rl,
        out,
        projection="foo",
    )
    refuse("--dtype is 'int8', expected one of float32, .*", base, rl, out, dtype="int8")
    refuse("--device is 'tpu', expected auto, cpu, cuda, cuda:0 or cuda:0,1", base, rl, out,
           device="tpu")  # fmt: skip
    refuse("--device is cuda:99, and this machine has [0-9]+ CUDA devices", base, rl, out,
           device="cuda:99")  # fmt: skip
    refuse("--include 'nothing' leaves none of the 14 projections.*", base, rl, out,
           include="nothing")  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "rl"]


def test_a_target_of_another_shape_is_refused(tmp_path):
    base, _ = make_pair(tmp_path)
    tensors = updated(llama())
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.randn(50, 32)
    save(tmp_path / "bad", tensors)
    refuse(
        "model.layers.1.mlp.up_proj.weight is (48, 32) in {} and (50, 32) in {}: experts must be "
        "trained from this base".format(base, tmp_path / "bad"),
        base, tmp_path / "bad", tmp_path / "out",
    )  # fmt: skip


def test_a_missing_target_is_refused(tmp_path):
    base, _ = make_pair(tmp_path)
    tensors = updated(llama())
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save(tmp_path / "bad", tensors)
    refuse(
        f"{tmp_path / 'bad'} has no model.layers.1.mlp.up_proj.weight: it was not trained from "
        f"{base}",
        base, tmp_path / "bad", tmp_path / "out",
    )  # fmt: skip


def test_unrelated_names_are_refused(tmp_path):
    base, _ = make_pair(tmp_path)
    save(tmp_path / "bad", {"something.else": torch.ones(3)})
    refuse(".* share no tensor .*: they are not of one architecture",
           base, tmp_path / "bad", tmp_path / "out")  # fmt: skip


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["mlp.up_proj.weight", "input_layernorm.weight"])
def test_nan_or_inf_is_an_error_that_names_the_tensor_and_leaves_nothing(tmp_path, value, where):
    base, _ = make_pair(tmp_path)
    tensors = updated(llama())
    name = f"model.layers.1.{where}"
    tensors[name].view(-1)[5] = value
    save(tmp_path / "bad", tensors)
    refuse(f"{re.escape(name)} of .* holds NaN or Inf .*",
           base, tmp_path / "bad", tmp_path / "out")  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad", "base", "rl"]
