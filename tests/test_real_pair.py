"""A real RL expert of SmolLM2-135M-Instruct: figures, fp64 oracle, PEFT and transformers."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from test_layers import ROOT

from mergekit_rl import Checkpoint, sar

PACKED = ROOT.parent / "shared" / "pairs" / "smollm2-add.xz"
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    if not PACKED.is_file():
        pytest.skip(f"the packed expert is not at {PACKED}")
    out = tmp_path_factory.mktemp("smollm2")
    script = ROOT / "examples" / "smollm2_from_pypi.py"
    done = subprocess.run(
        [sys.executable, str(script), str(out), str(PACKED)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"the base could not be fetched: {done.stderr.strip().splitlines()[-1]}")
    return out / "base", out / "add"


@pytest.fixture(scope="session")
def core(pair, tmp_path_factory):
    out = tmp_path_factory.mktemp("core") / "out"
    return out, sar(*pair, out, save="both")


def test_summary_describes_the_known_pair(core):
    summary = core[1]
    assert summary.targets == 210
    assert summary.relative_update == pytest.approx(3.1e-4, rel=0.02)
    assert summary.outside == pytest.approx(0.067, abs=0.001)
    assert summary.truncation == pytest.approx(0.147, abs=0.001)
    assert summary.projection_share == pytest.approx(0.58, abs=0.005)
    assert summary.chance == pytest.approx(0.58, abs=0.005)
    assert any("no more than chance" in note for note in summary.notes)


def test_sampled_targets_agree_with_full_svds_in_fp64(pair, core):
    base, rl = (Checkpoint.open(folder) for folder in pair)
    found = Checkpoint.open(core[0] / "core", base=base)
    for name in list(found.low_rank)[::17]:
        w0, w1 = (side.read(name).double().numpy() for side in (base, rl))
        k = max(1, min(w0.shape) // 100)
        u, s, vh = np.linalg.svd(w1 - w0, full_matrices=False)
        gap = 1 - s[k] / s[k - 1]
        cut = (u[:, :k] * s[:k]) @ vh[:k]
        u, s, vh = np.linalg.svd(w0, full_matrices=False)
        alive = s > np.finfo(np.float32).eps * max(w0.shape) * s[0]
        expected = u[:, alive] @ (u[:, alive].T @ cut @ vh[alive].T) @ vh[alive]
        delta = found.delta(name)(base.read(name)).numpy()
        error = np.linalg.norm(delta - expected) / np.linalg.norm(expected)
        assert error <= 1e-5 * max(1.0, 1e-3 / gap), name


def test_core_gives_the_edited_models_logits_in_peft_and_transformers(pair, tmp_path_factory):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path_factory.mktemp("fp32") / "out"
    sar(*pair, out, save="both", rank=0.05, dtype="float32")
    load = AutoModelForCausalLM.from_pretrained
    text = "What is 3 + 4? Answer with just the number."
    tokens = AutoTokenizer.from_pretrained(out / "core")(text, return_tensors="pt")
    with torch.no_grad():
        edited, plain = (
            load(folder, dtype=torch.float32)(**tokens).logits
            for folder in (out / "model", pair[0])
        )
        merged = PeftModel.from_pretrained(load(pair[0], dtype=torch.float32), out / "core")
        adapted = load(out / "core", dtype=torch.float32)
        assert (edited - plain).abs().max() > 0.1
        assert (merged(**tokens).logits - edited).abs().max() < 2e-3
        assert (adapted(**tokens).logits - edited).abs().max() < 2e-3
