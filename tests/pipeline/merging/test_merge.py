"""What a merge writes, and what it refuses before it reads a weight."""

import json
import shutil

import pytest
import torch
from merge_models import experts_of, family, recipe, reconfigure, rewrite, tensors
from safetensors.torch import load_file
from tiny_models import build, load, logits, train
from transformers import AutoModelForCausalLM

from mergekit_rl import EditError, merge


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return family(tmp_path_factory.mktemp("llama"))


def refused(source, out, **options):
    with pytest.raises(EditError) as caught:
        merge(source, out, **options)
    assert not out.exists() and not out.with_name(out.name + ".partial").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_linear_is_the_mean_of_the_models(llama, tmp_path):
    merged = merge(recipe(llama, "linear", "a", "b"), tmp_path / "out")
    found, a, b = (tensors(f) for f in (tmp_path / "out", llama["a"], llama["b"]))
    assert found.keys() == a.keys() and merged.merged == len(found)
    for name, tensor in found.items():
        assert torch.allclose(tensor, (a[name] + b[name]) / 2, atol=1e-7)


def test_output_loads_with_no_missing_or_unexpected_key(llama, tmp_path):
    merge(recipe(llama, "linear", "a", "b"), tmp_path / "out")
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert bool(logits(model).isfinite().all())


def test_side_files_travel_byte_for_byte(llama, tmp_path):
    merge(recipe(llama, "linear", "a", "b"), tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (llama["base"] / name).read_bytes()


@pytest.mark.parametrize(("asked", "stored"), [("bfloat16", torch.bfloat16), ("fp16", torch.half)])
def test_output_has_the_dtype_asked_for_and_the_config_says_so(llama, tmp_path, asked, stored):
    merge(recipe(llama, "linear", "a", "b", out_dtype=asked), tmp_path / "out")
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {stored}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == str(stored).removeprefix("torch.")


def test_command_line_dtype_wins_and_is_in_the_provenance(llama, tmp_path):
    merge(recipe(llama, "linear", "a", "b", dtype="float32"), tmp_path / "out", dtype="bfloat16")
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {torch.bfloat16}
    marker = json.loads((tmp_path / "out" / "rledit.json").read_text())
    assert marker["recipe"]["out_dtype"] == "bfloat16"


def test_low_precision_inputs_are_merged_in_fp32(tmp_path):
    """At bf16 arithmetic 0.3 of a delta of 1e-4 over weights near 1 would vanish."""
    models = family(tmp_path, names="a")
    one = torch.ones(64, 32)
    for name, value in (("base", one), ("a", one + 2**-13)):
        rewrite(models[name], lambda t, v=value: t | {"lm_head.weight": v})
    source = recipe(models, "task_arithmetic", "a", settings={"weight": 0.5}, dtype="bfloat16")
    merge(source | {"out_dtype": "float32"}, tmp_path / "out")
    found = tensors(tmp_path / "out")["lm_head.weight"]
    assert torch.allclose(found, one + 2**-14, atol=1e-8)


def test_tensor_that_no_expert_has_is_copied_and_reported(tmp_path):
    models = family(tmp_path, names="a b")
    rewrite(models["base"], lambda t: t | {"mtp.head.weight": torch.ones(3, 4)})
    merged = merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert torch.equal(tensors(tmp_path / "out")["mtp.head.weight"], torch.ones(3, 4))
    assert merged.copied == {"no expert has it": 1}


def test_tensor_that_one_expert_lacks_is_refused_by_name(tmp_path):
    models = family(tmp_path, names="a b")
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(models["b"], lambda t: {k: v for k, v in t.items() if k != name})
    message = refused(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert message.startswith(f"recipe: {name} is in {models['a']} and not in {models['b']}")
    merged = merge(recipe(models, "linear", "a", "b", exclude=["up_proj"]), tmp_path / "out")
    assert merged.copied == {"left out by include or exclude": 2}


def test_shape_that_does_not_fit_is_named_with_both_shapes(tmp_path):
    models = family(tmp_path, names="a b")
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(models["b"], lambda t: t | {name: torch.zeros(40, 32)})
    message = refused(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert f"{name} is (48, 32) in {models['base']} and (40, 32) in {models['b']}" in message


def test_include_merges_only_what_it_names(llama, tmp_path):
    source = recipe(llama, "linear", "a", "b", include=[{"kinds": ["q_proj"], "layers": [1, 2]}])
    merge(source, tmp_path / "out")
    found, base = tensors(tmp_path / "out"), tensors(llama["base"])
    changed = [name for name in base if not torch.equal(found[name], base[name])]
    assert changed == ["model.layers.1.self_attn.q_proj.weight"]


@pytest.mark.parametrize("rest", ["mean", "a"])
def test_rest_says_whose_tensors_are_taken_where_nothing_is_merged(llama, tmp_path, rest):
    chosen = str(llama["a"]) if rest == "a" else rest
    source = recipe(llama, "linear", "a", "b", include=["q_proj"], rest=chosen)
    merge(source, tmp_path / "out")
    found, a, b = (tensors(f) for f in (tmp_path / "out", llama["a"], llama["b"]))
    expected = a["model.norm.weight"]
    if rest == "mean":
        expected = (expected + b["model.norm.weight"]) / 2
    assert torch.allclose(found["model.norm.weight"], expected, atol=1e-7)


def test_tied_embeddings_stay_tied(tmp_path):
    models = family(tmp_path, "llama_tied", "a b")
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert "lm_head.weight" not in tensors(tmp_path / "out")
    model = load(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_spurious_head_of_a_tied_model_is_not_passed_on(tmp_path):
    models = family(tmp_path, "llama_tied", "a b")
    for folder in models.values():
        rewrite(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    merged = merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert "lm_head.weight" not in tensors(tmp_path / "out")
    assert any("lm_head.weight" in note for note in merged.notes)


def test_mixing_tied_and_untied_is_refused_with_both_ways_out(tmp_path):
    models = family(tmp_path, "llama_tied", "a b")
    head = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    rewrite(models["b"], lambda t: t | {"lm_head.weight": head})
    reconfigure(models["b"], tie_word_embeddings=False)
    source = recipe(models, "linear", "a", "b")
    message = refused(source, tmp_path / "out")
    assert "embeddings: untie" in message and "embeddings: tie" in message
    merge(source | {"embeddings": "tie"}, tmp_path / "tied")
    assert "lm_head.weight" not in tensors(tmp_path / "tied")
    merge(source | {"embeddings": "untie"}, tmp_path / "untied")
    a = tensors(models["a"])["model.embed_tokens.weight"]
    assert torch.allclose(tensors(tmp_path / "untied")["lm_head.weight"], (a + head) / 2, atol=1e-7)
    for out in ("tied", "untied"):
        _, info = AutoModelForCausalLM.from_pretrained(tmp_path / out, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def test_expert_saved_without_the_prefix_matches(tmp_path):
    models = family(tmp_path, names="a b")
    plain = tensors(models["a"])
    rewrite(models["a"], lambda t: {k.removeprefix("model."): v for k, v in t.items()})
    merge(recipe(models, "linear", "a", settings={"weight": 1.0}), tmp_path / "out")
    assert all(torch.equal(t, plain[n]) for n, t in tensors(tmp_path / "out").items())


def test_adapter_as_expert_is_base_plus_delta(tmp_path):
    models = family(tmp_path, names="a")
    model = train(models["base"], tmp_path / "lora", target_modules=["q_proj", "down_proj"])
    wanted = logits(model)
    for number, written in enumerate((str(tmp_path / "lora"), f"{models['base']}+{tmp_path}/lora")):
        source = recipe(models | {"l": written}, "task_arithmetic", "l", settings={"weight": 1.0})
        merge(source, tmp_path / f"out{number}")
        assert torch.allclose(logits(load(tmp_path / f"out{number}")), wanted, atol=1e-4)


def test_unchanged_tensors_of_an_adapter_are_the_bases_bits(tmp_path):
    models = family(tmp_path, names="a")
    train(models["base"], tmp_path / "lora", target_modules=["q_proj"])
    source = recipe(models | {"l": tmp_path / "lora"}, "task_arithmetic", "l")
    merge(source, tmp_path / "out")
    found, base = tensors(tmp_path / "out"), tensors(models["base"])
    changed = {name for name in base if not torch.equal(found[name], base[name])}
    assert changed == {n for n in base if "q_proj" in n}


def test_stacked_layers_give_a_config_that_loads(tmp_path):
    models = family(tmp_path, "qwen3", "a b")
    source = {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": str(models["a"]), "layer_range": [0, 2]}]},
            {"sources": [{"model": str(models["b"]), "layer_range": [0, 2]}]},
            {"sources": [{"model": str(models["b"]), "layer_range": [1, 2]}]},
        ],
    }
    merge(source, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_hidden_layers"] == 5 and len(config["layer_types"]) == 5
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    found, b = tensors(tmp_path / "out"), tensors(models["b"])
    for name in b:
        if ".layers.1." in name:
            assert torch.equal(found[name.replace(".layers.1.", ".layers.4.")], b[name])
    assert torch.equal(found["lm_head.weight"], b["lm_head.weight"])
    assert bool(logits(model.float()).isfinite().all())


def test_layer_beyond_the_model_is_refused(llama, tmp_path):
    source = {
        "merge_method": "passthrough",
        "slices": [{"sources": [{"model": str(llama["a"]), "layer_range": [1, 3]}]}],
    }
    message = refused(source, tmp_path / "out")
    assert message == (
        f"recipe: slices[0].sources[0].layer_range is [1, 3] and {llama['a']} has 2 layers: "
        "the end may be 2 at most"
    )


def test_layers_of_two_kinds_are_not_merged(tmp_path):
    models = family(tmp_path, "qwen3_moe", "a b")
    source = {
        "merge_method": "linear",
        "slices": [
            {
                "sources": [
                    {"model": str(models["a"]), "layer_range": [0, 1], "parameters": {"weight": 1}},
                    {"model": str(models["b"]), "layer_range": [1, 2], "parameters": {"weight": 1}},
                ]
            }
        ],
    }
    assert "do not hold the same tensors" in refused(source, tmp_path / "out")


def test_path_with_plus_and_at_is_a_path(tmp_path):
    models = family(tmp_path / "x+y@z", names="a b")
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_documents_use_one_another_as_if_written(llama, tmp_path):
    first = recipe(llama, "linear", "a", "b") | {"name": "both"}
    second = {
        "merge_method": "linear",
        "base_model": str(llama["base"]),
        "models": [
            {"model": "both", "parameters": {"weight": 0.75}},
            {"model": str(llama["c"]), "parameters": {"weight": 0.25}},
        ],
    }
    merge([first, second], tmp_path / "streamed")
    merge({k: v for k, v in first.items() if k != "name"}, tmp_path / "both")
    second["models"][0]["model"] = str(tmp_path / "both")
    merge(second, tmp_path / "written")
    streamed, written = tensors(tmp_path / "streamed"), tensors(tmp_path / "written")
    assert all(torch.equal(streamed[name], written[name]) for name in written)


def test_output_reproduces_itself_from_its_marker(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(llama["base"].parent)
    source = recipe({name: name for name in llama}, "linear", "a", "b", dtype="bfloat16")
    merge(source, tmp_path / "out")
    merge(tmp_path / "out" / "rledit.json", tmp_path / "again")
    for path in sorted((tmp_path / "out").iterdir()):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_nothing_that_is_written_tells_an_absolute_path(llama, tmp_path):
    merge(recipe(llama, "linear", "a", "b"), tmp_path / "out")
    for path in (tmp_path / "out").glob("*.[jm]*"):
        if path.suffix in (".json", ".md"):
            assert str(llama["base"].parent) not in path.read_text(), path.name


def test_absolute_models_are_found_again_by_name(llama, tmp_path):
    merge(recipe(llama, "linear", "a", "b"), tmp_path / "out")
    places = {name: str(path) for name, path in llama.items()}
    merge(tmp_path / "out" / "rledit.json", tmp_path / "again", places=places)
    found, again = tensors(tmp_path / "out"), tensors(tmp_path / "again")
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_same_bytes_for_every_worker_count_and_shard_size(llama, tmp_path):
    wanted = None
    for number, options in enumerate(
        ({"workers": 1}, {"workers": 3}, {"shard_bytes": 9000, "workers": 2})
    ):
        merge(recipe(llama, "linear", "a", "b"), tmp_path / f"{number}", **options)
        found = {n: t.numpy().tobytes() for n, t in tensors(tmp_path / f"{number}").items()}
        wanted = wanted or found
        assert found == wanted


def test_overflow_in_the_output_dtype_is_refused(tmp_path):
    models = family(tmp_path, names="a b")
    rewrite(models["a"], lambda t: t | {"model.norm.weight": torch.full((32,), 3e5)})
    message = refused(recipe(models, "linear", "a", "b", out_dtype="float16"), tmp_path / "out")
    assert message.startswith("model.norm.weight overflows float16")


def test_nan_in_an_input_is_refused_by_name(tmp_path):
    models = family(tmp_path, names="a b")
    rewrite(models["b"], lambda t: t | {"model.norm.weight": torch.full((32,), torch.nan)})
    message = refused(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert message.startswith(f"model.norm.weight of {models['b']} holds NaN or Inf")


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss", "gemma3_vision", "gpt2", "granite_moe"])
def test_every_family_merges_and_loads(kind, tmp_path):
    models = family(tmp_path, kind, "a b")
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    found, a, b = (tensors(f) for f in (tmp_path / "out", models["a"], models["b"]))
    assert found.keys() == a.keys()
    for name, tensor in found.items():
        assert torch.allclose(tensor, (a[name] + b[name]) / 2, atol=1e-6), name


def test_vision_tower_that_only_the_base_has_is_copied(tmp_path):
    models = family(tmp_path, "gemma3_vision", "a b")
    for name in ("a", "b"):
        rewrite(models[name], lambda t: {k: v for k, v in t.items() if "vision" not in k})
    merged = merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    found, base = tensors(tmp_path / "out"), tensors(models["base"])
    assert found.keys() == base.keys() and merged.copied["no expert has it"] > 0
    assert all(torch.equal(found[n], base[n]) for n in base if "vision" in n)


def test_modules_merge_each_part_by_its_own_models(tmp_path):
    models = family(tmp_path, "gemma3_vision", "a b")
    entry = {"parameters": {"weight": 1.0}}
    source = {
        "merge_method": "linear",
        "base_model": str(models["base"]),
        "modules": {
            "vision_tower": {"models": [{"model": str(models["a"])} | entry]},
            "text_decoder": {"models": [{"model": str(models["b"])} | entry]},
        },
    }
    merge(source, tmp_path / "out")
    found, a, b, base = (
        tensors(f) for f in (tmp_path / "out", models["a"], models["b"], models["base"])
    )
    for name in base:
        if "vision_tower" in name:
            assert torch.equal(found[name], a[name]), name
        elif "projector" in name:
            assert torch.equal(found[name], base[name]), name
        else:
            assert torch.equal(found[name], b[name]), name


def test_quantised_inputs_are_refused_by_name(tmp_path):
    models = family(tmp_path, names="a b")
    reconfigure(models["b"], quantization_config={"quant_method": "gptq", "bits": 4})
    assert "gptq" in refused(recipe(models, "linear", "a", "b"), tmp_path / "out").lower()


def test_integers_are_copied(tmp_path):
    models = family(tmp_path, names="a b")
    for folder in models.values():
        rewrite(folder, lambda t: t | {"model.positions": torch.arange(7)})
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert torch.equal(tensors(tmp_path / "out")["model.positions"], torch.arange(7))


def test_expert_with_more_tensors_than_the_base_is_refused(tmp_path):
    models = family(tmp_path, names="a b")
    bias = "model.layers.0.self_attn.q_proj.bias"
    rewrite(models["b"], lambda t: t | {bias: torch.zeros(32)})
    message = refused(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert bias in message and "exclude" in message
    merge(recipe(models, "linear", "a", "b", exclude=["bias"]), tmp_path / "out")
    assert bias not in tensors(tmp_path / "out")


def test_a_changed_input_is_noticed_on_resume(llama, tmp_path):
    models = {name: tmp_path / name for name in llama}
    for name, path in models.items():
        shutil.copytree(llama[name], path)

    def stop(event):
        if event.done == 5:
            raise KeyboardInterrupt

    source = recipe(models, "linear", "a", "b")
    with pytest.raises(KeyboardInterrupt):
        merge(source, tmp_path / "out", progress=stop)
    rewrite(models["b"], lambda t: {k: v * 2 for k, v in t.items()})
    with pytest.raises(EditError, match="begun with other inputs or options"):
        merge(source, tmp_path / "out", resume=True)


def test_a_model_with_no_tensor_in_common_is_refused(tmp_path):
    models = family(tmp_path, names="a")
    other = build("gpt2", tmp_path / "gpt2")
    message = refused(recipe(models | {"g": other}, "linear", "a", "g"), tmp_path / "out")
    assert str(other) in message


def test_experts_of_experts(tmp_path):
    """An expert folder inside the output, or the output inside it, is refused."""
    models = family(tmp_path, names="a b")
    message = refused(recipe(models, "linear", "a", "b"), models["a"] / "out")
    assert "hold one another" in message


def test_empty_tensor_survives(tmp_path):
    models = family(tmp_path, names="a b")
    for folder in models.values():
        rewrite(folder, lambda t: t | {"model.none": torch.zeros(0, 4)})
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert tensors(tmp_path / "out")["model.none"].shape == (0, 4)


def test_float64_is_merged_in_float64(tmp_path):
    models = family(tmp_path, names="a b")
    for number, name in enumerate(("base", "a", "b")):
        value = torch.full((32,), 1.0, dtype=torch.float64) + number * 1e-12
        rewrite(models[name], lambda t, v=value: t | {"model.norm.weight": v})
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert found.dtype == torch.float64
    assert torch.allclose(found, torch.full_like(found, 1 + 1.5e-12), rtol=0, atol=1e-15)


def test_more_experts_of_a_sharded_base(tmp_path):
    base = build("llama", tmp_path / "base")
    load(base).save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    experts = experts_of(base, tmp_path, "a b")
    models = {"base": tmp_path / "sharded", **experts}
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    assert tensors(tmp_path / "out").keys() == tensors(base).keys()


def test_models_whose_folders_have_one_name_are_told_apart_in_the_provenance(llama, tmp_path):
    models = {"base": llama["base"]}
    for name in ("a", "b"):
        shutil.copytree(llama[name], tmp_path / name / "model")
        models[name] = tmp_path / name / "model"
    merge(recipe(models, "linear", "a", "b"), tmp_path / "out")
    marker = json.loads((tmp_path / "out" / "rledit.json").read_text())
    assert [one["model"] for one in marker["recipe"]["models"]] == ["model", "model-2"]
    assert set(marker["models"]) == {"base", "model", "model-2"}
