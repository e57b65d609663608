"""The commands as a shell sees them: output, exit codes, one line per error."""

import json
import subprocess
import sys

import pytest
from pairs import make_pair, save


def rledit(*args, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "rledit", *map(str, args)], capture_output=True, text=True
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def pair(tmp_path):
    return make_pair(tmp_path)


def test_help_lists_every_command():
    text = rledit("--help").stdout
    for command in ("sar", "apply", "demo"):
        assert f"\n  {command} " in text
        assert "--out" in rledit(command, "--help").stdout


def test_version_is_the_packages():
    import mergekit_rl

    assert rledit("--version").stdout == f"rledit, version {mergekit_rl.__version__}\n"


def test_sar_prints_what_was_kept_and_apply_makes_the_model(pair, tmp_path):
    base, rl = pair
    done = rledit("sar", base, rl, "--out", tmp_path / "core", "--rank", "4")
    assert done.stdout.startswith(f"core of {rl} over {base}\n  targets ")
    for label in ("kept", "projection's share", "outside the targets", "stored factors", "visible"):
        assert f"  {label}" in done.stdout
    done = rledit("apply", base, tmp_path / "core", "--out", tmp_path / "model")
    assert "14 of 20 tensors" in done.stdout
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_json_is_the_only_thing_on_stdout(pair, tmp_path):
    base, rl = pair
    found = json.loads(rledit("sar", base, rl, "--out", tmp_path / "core", "--json").stdout)
    assert found["targets"] == 14 and 0 < found["kept"] < 1
    done = rledit("apply", base, tmp_path / "core", "--out", tmp_path / "model", "--json")
    assert json.loads(done.stdout)["targets"] == 14


def test_what_the_user_can_fix_is_one_line_and_exit_code_1(pair, tmp_path):
    base, _ = pair
    done = rledit("sar", base, tmp_path / "nothing", "--out", tmp_path / "core", check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        f"Error: {tmp_path / 'nothing'} does not exist and is not a Hub id (org/name[@revision])\n"
    )


def test_a_wrong_use_is_exit_code_2(pair):
    assert rledit("sar", check=False).returncode == 2
    assert rledit("sar", *pair, check=False).returncode == 2  # no --out
    assert rledit("sar", *pair, "--out", "x", "--ranks", "3", check=False).returncode == 2
    assert rledit("sarr", check=False).returncode == 2


def test_control_characters_of_a_checkpoint_do_not_reach_the_terminal(pair, tmp_path):
    import torch

    base, _ = pair
    save(tmp_path / "evil", {"\x1b[2Jgone": torch.ones(2)})
    done = rledit("sar", base, tmp_path / "evil", "--out", tmp_path / "core", check=False)
    assert done.returncode == 1
    assert "\x1b" not in done.stderr and "x1b[2Jgone" in done.stderr


def test_demo_extracts_the_core_of_a_pair_made_on_the_spot_and_can_be_repeated(tmp_path):
    for _ in range(2):
        text = rledit("demo", "--out", tmp_path / "demo").stdout
        assert "projection's share" in text
    assert (tmp_path / "demo" / "core" / "core.json").is_file()
