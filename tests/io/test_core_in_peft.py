"""A core is a PEFT adapter: both loaders give the model that `--save model` writes."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import peft
import pytest
import torch
from safetensors import safe_open
from tiny_models import edit, load, logits

from mergekit_rl import Checkpoint, apply_core, sar

FAMILIES = [
    "llama", "llama_tied", "qwen3", "gemma3", "gemma3_vision", "gpt2", "gpt2_bare", "gpt_neox",
    "phi3", "mixtral", "qwen3_moe", "gpt_oss", "gpt_oss_bf16", "granite_moe",
]  # fmt: skip
OPTIONS: dict[str, Any] = {"rank": 3, "workers": 1, "device": "cpu"}


def trained(base: Path, folder: Path) -> Path:
    """A copy of `base` with every matrix moved."""
    copytree(base, folder)
    generator = torch.Generator().manual_seed(7)

    def move(name, tensor):
        noise = torch.randn(tensor.shape, generator=generator) * 0.1
        return {name: tensor + noise.to(tensor.dtype) if tensor.dim() > 1 else tensor}

    edit(folder, move)
    return folder


def load_in_peft(base: Path, core: Path) -> tuple[Any, list[str], list[str]]:
    """PeftModel.from_pretrained, and the keys it missed or did not expect."""
    results = []
    load_adapter = peft.PeftModel.load_adapter

    def recording(self, *args, **kwargs):
        results.append(load_adapter(self, *args, **kwargs))
        return results[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peft.PeftModel, "load_adapter", recording)
        model = peft.PeftModel.from_pretrained(load(base), core)
    return model, list(results[0].missing_keys), list(results[0].unexpected_keys)


def assert_loads_as(base: Path, core: Path, model: Path) -> None:
    """Both loaders, without a key missing or unexpected, give the logits of `model`, in fp32."""
    expected = logits(load(model))
    allowed = 1e-5 * expected.abs().max()
    assert (expected - logits(load(base))).abs().max() > 1000 * allowed  # there is an edit to see

    in_peft, missing, unexpected = load_in_peft(base, core)
    assert not missing and not unexpected
    assert (logits(in_peft) - expected).abs().max() <= allowed

    automatic, report = load(core, output_loading_info=True)
    assert not any(report.values()), report
    assert (logits(automatic) - expected).abs().max() <= allowed


def contents(folder: Path) -> dict[str, bytes]:
    """{tensor name: dtype, shape and bytes} of all weights in `folder`."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
                found[name] = f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + raw
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_core_loads_as_the_saved_model_and_applies_to_its_bytes(family, tiny, tmp_path):
    base, rl, out = tiny(family), trained(tiny(family), tmp_path / "rl"), tmp_path / "out"
    sar(base, rl, out, save="both", dtype="float32", **OPTIONS)
    assert_loads_as(base, out / "core", out / "model")
    apply_core(base, out / "core", tmp_path / "applied", workers=1)
    assert contents(tmp_path / "applied") == contents(out / "model")


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "qwen3_moe", "gpt_oss"])
def test_a_core_of_many_ranks_loads_as_the_saved_model(family, tiny, tmp_path):
    base, rl, out = tiny(family), trained(tiny(family), tmp_path / "rl"), tmp_path / "out"
    sar(base, rl, out, save="both", dtype="float32", **OPTIONS | {"rank": "energy:0.4"})
    ranks = {
        t["rank"] for t in json.loads((out / "core/core.json").read_text())["targets"].values()
    }
    assert len(ranks) > 1
    assert_loads_as(base, out / "core", out / "model")
    apply_core(base, out / "core", tmp_path / "applied", workers=1)
    assert contents(tmp_path / "applied") == contents(out / "model")


@pytest.mark.parametrize(
    ("family", "include"),
    [
        ("gpt_oss", r"experts\.down_proj"),
        ("gpt_oss", r"1\.mlp\.experts\.gate_up"),
        ("mixtral", r"experts\.2\.w3"),
        ("qwen3_moe", r"experts\.[13]\.(up|down)_proj|layers\.0\.mlp\.gate_proj"),
        ("granite_moe", "output_linear"),
        ("gemma3_vision", r"vision_tower.*fc1"),
        ("phi3", r"0\.mlp\.gate_up_proj"),
    ],
)
def test_a_core_of_some_targets_loads_as_the_saved_model(family, include, tiny, tmp_path):
    base, rl, out = tiny(family), trained(tiny(family), tmp_path / "rl"), tmp_path / "out"
    sar(base, rl, out, save="both", dtype="float32", include=include, scale=2, **OPTIONS)
    edited, before = contents(out / "model"), contents(base)
    changed = [name for name in edited if edited[name] != before[name]]
    assert changed and set(changed) == set(
        json.loads((out / "core/core.json").read_text())["targets"]
    )
    assert_loads_as(base, out / "core", out / "model")


@pytest.mark.parametrize("family", ["llama_tied", "mixtral", "gpt_oss_bf16", "gpt2_bare"])
def test_a_core_opens_as_the_saved_model(family, tiny, tmp_path):
    base, rl, out = tiny(family), trained(tiny(family), tmp_path / "rl"), tmp_path / "out"
    sar(base, rl, out, save="both", dtype="float32", **OPTIONS)
    core = Checkpoint.open(out / "core", base=Checkpoint.open(base))
    model = Checkpoint.open(out / "model")
    assert list(core.tensors) == list(Checkpoint.open(base).tensors)
    for name in core.tensors:
        torch.testing.assert_close(core.read(name).float(), model.read(name), atol=1e-6, rtol=1e-6)


def test_bf16_applies_to_the_bytes_of_the_saved_model(tiny, tmp_path):
    base, rl = tiny("gpt_oss_bf16"), trained(tiny("gpt_oss_bf16"), tmp_path / "rl")
    sar(base, rl, tmp_path / "core", **OPTIONS)
    sar(base, rl, tmp_path / "model", save="model", **OPTIONS)
    apply_core(base, tmp_path / "core", tmp_path / "applied", workers=1)
    found = contents(tmp_path / "applied")
    assert found == contents(tmp_path / "model")
    assert {text.split(maxsplit=1)[0] for text in found.values()} == {b"torch.bfloat16"}


def test_tokenizer_files_beside_a_core_do_not_stop_the_loaders(tiny, tmp_path):
    base, rl = tiny("llama"), trained(tiny("llama"), tmp_path / "rl")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (rl / name).write_text("{}")
    sar(base, rl, tmp_path / "core", **OPTIONS)
    sar(base, rl, tmp_path / "model", save="model", **OPTIONS)
    assert (tmp_path / "core" / "tokenizer_config.json").is_file()
    assert not (tmp_path / "core" / "config.json").exists()  # would be taken for a whole model
    assert_loads_as(base, tmp_path / "core", tmp_path / "model")
