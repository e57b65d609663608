"""`rledit merge`: what it prints, writes and refuses."""

import json
import re
import subprocess
import sys

import pytest
import yaml
from cli.merging import error, rledit, usage
from merge_models import tensors
from merge_trio import trio

from mergekit_rl import merge

RECIPE = {
    "merge_method": "ties",
    "base_model": "base",
    "models": [
        {"model": "a", "parameters": {"weight": 0.5, "density": 0.5}},
        {"model": "b", "parameters": {"weight": [0.2, 0.8]}},
    ],
    "exclude": ["norm"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    trio(folder)
    (folder / "r.yaml").write_text(yaml.safe_dump(RECIPE))
    return folder


@pytest.fixture
def here(models, tmp_path, monkeypatch):
    """A folder with the models and r.yaml, the working directory."""
    for path in models.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_says_what_was_merged_copied_and_written(here):
    found = rledit("merge", "r.yaml", "--out", "out")
    lines = found.stdout.splitlines()
    assert lines[:3] == [
        "merged    16 tensors of base, a, b by ties",
        "copied    5: left out by include or exclude",
        "size      0.0 MB, F32",
    ]
    assert re.fullmatch(r"time      \d+\.\d s, [\d,]+ MB of memory at most", lines[3])
    assert lines[4:] == ["written   out"] and found.stderr == ""
    assert listed(here / "out") == ["README.md", "config.json", "model.safetensors", "rledit.json"]


def test_json_is_all_of_it_and_nothing_else(here):
    found = json.loads(rledit("merge", "r.yaml", "--out", "out", "--json").stdout)
    assert found.keys() == {
        "method", "models", "merged", "copied", "dtype", "output_bytes", "peak_bytes", "seconds",
        "notes",
    }  # fmt: skip
    assert (found["method"], found["models"]) == ("ties", ["base", "a", "b"])
    assert (found["merged"], found["copied"]) == (16, {"left out by include or exclude": 5})
    assert found["output_bytes"] == (here / "out" / "model.safetensors").stat().st_size


def test_it_writes_what_the_function_writes(here):
    rledit("merge", "r.yaml", "--out", "one", "--workers", 1)
    merge(here / "r.yaml", here / "two", workers=2)
    for name in listed(here / "one"):
        assert (here / "one" / name).read_bytes() == (here / "two" / name).read_bytes(), name


def test_plan_lists_every_tensor_and_writes_nothing(here):
    before = listed(here)
    lines = rledit("merge", "r.yaml", "--plan").stdout.splitlines()
    assert listed(here) == before
    assert lines[0] == (
        "lm_head.weight  F32 10×8  ties  [a, b]  weight=[0.5, 0.2] density=[0.5, 1] normalize=true "
        "lambda=1 rescale=false vote=weighted"
    )
    copied = "model.norm.weight  F32 8  copy: left out by include or exclude  [base]"
    assert copied in [line.rstrip() for line in lines]
    end = lines.index("")
    assert end == 21
    assert [line.split()[0] for line in lines[end + 1 :]] == [
        "merged", "copied", "disk", "read", "memory", "time",
    ]  # fmt: skip


def test_plan_with_out_writes_nothing_either(here):
    before = listed(here)
    rledit("merge", "r.yaml", "--plan", "--out", "out", "--force", "--resume")
    assert listed(here) == before


def test_plan_as_json_has_sources_settings_and_sizes(here):
    found = json.loads(rledit("merge", "r.yaml", "--plan", "--json").stdout)
    rledit("merge", "r.yaml", "--out", "out")
    assert found["output_bytes"] == (here / "out" / "model.safetensors").stat().st_size
    rows = {row["name"]: row for row in found["tensors"]}
    assert {name: row["shape"] for name, row in rows.items()} == {
        name: list(tensor.shape) for name, tensor in tensors(here / "out").items()
    }
    name = "model.layers.1.mlp.up_proj.weight"
    assert rows[name]["from"] == [["a", name], ["b", name]] and rows[name]["base"] == ["base", name]
    assert rows[name]["settings"]["weight"] == [0.5, 0.8]
    assert rows[name]["bytes"] == 12 * 8 * 4
    assert found["merged"] + sum(found["copied"].values()) == len(rows) == 21
    assert found["memory_bytes"] > 0 and found["seconds"] >= 0


def test_what_changes_nothing_is_said_in_notes(here):
    recipe = RECIPE | {"parameters": {"int8_mask": True}}
    (here / "n.yaml").write_text(yaml.safe_dump(recipe))
    for args in (["--plan"], ["--out", "out"]):
        found = rledit("merge", "n.yaml", *args)
        assert "note      int8_mask changes nothing: ties does not use it" in found.stdout


def test_dtype_and_shard_size(here):
    rledit("merge", "r.yaml", "--out", "out", "--dtype", "bfloat16", "--shard-size", "1.5kB")
    config = json.loads((here / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    shards = sorted((here / "out").glob("*.safetensors"))
    assert len(shards) == 2
    index = json.loads((here / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in shards}


def test_model_may_lie_elsewhere(here):
    (here / "a").rename(here / "elsewhere")
    assert "a is no folder here" in error("merge", "r.yaml", "--out", "out")
    found = rledit("merge", "r.yaml", "--out", "out", "--model", "a=elsewhere").stdout
    assert "of base, a, b by ties" in found


def test_output_is_made_again_from_its_marker(here):
    rledit("merge", "r.yaml", "--out", "out")
    rledit("merge", "out/rledit.json", "--out", "again")
    for name in listed(here / "out"):
        assert (here / "again" / name).read_bytes() == (here / "out" / name).read_bytes(), name


def test_plugin_brings_a_method_of_ones_own(here):
    (here / "mine.py").write_text(
        "from mergekit_rl.registry import Context, method\n"
        "@method(takes='deltas')\n"
        "def half_sum(base, deltas, *, share: float = 0.5, ctx: Context):\n"
        '    """Add a share of all deltas."""\n'
        "    return base + share * sum(deltas)\n"
    )
    recipe = {"merge_method": "half_sum", "base_model": "base", "models": [{"model": "a"}]}
    (here / "m.yaml").write_text(yaml.safe_dump(recipe))
    assert error("merge", "m.yaml", "--out", "out").startswith(
        "m.yaml:2: there is no merge method 'half_sum'; there are "
    )
    from mergekit_rl.registry import _METHODS

    try:
        found = rledit("merge", "m.yaml", "--out", "out", "--plugin", "mine.py")
        assert "by half_sum" in found.stdout
        assert rledit("methods", "half_sum").stdout.startswith("half_sum: merges ")
    finally:
        _METHODS.pop("half_sum", None)


def test_parts_are_joined_to_the_bytes_of_one_run(here):
    rledit("merge", "r.yaml", "--out", "one")
    found = rledit("merge", "r.yaml", "--out", "out", "--part", "1/2").stdout
    assert found.splitlines()[0] == "part 1/2: 10 of 21 tensors in out.part-1-of-2"
    assert error("merge", "r.yaml", "--out", "out", "--join") == (
        "the parts of out are not complete or of two divisions: there are 1/2"
    )
    done = json.loads(rledit("merge", "r.yaml", "--out", "out", "--part", "0/2", "--json").stdout)
    assert done == {"part": "0/2", "folder": "out.part-0-of-2", "tensors": 11, "of": 21}
    assert rledit("merge", "r.yaml", "--out", "out", "--join").stdout.endswith("written   out\n")
    for name in listed(here / "one"):
        assert (here / "out" / name).read_bytes() == (here / "one" / name).read_bytes(), name
    assert not list(here.glob("out.part*"))


def test_full_folder_is_kept_unless_it_is_ours_and_force_is_given(here):
    (here / "mine").mkdir()
    (here / "mine" / "notes.txt").write_text("dear")
    assert error("merge", "r.yaml", "--out", "mine").startswith("--out mine ")
    error("merge", "r.yaml", "--out", "mine", "--force")
    assert (here / "mine" / "notes.txt").read_text() == "dear"
    rledit("merge", "r.yaml", "--out", "out")
    assert error("merge", "r.yaml", "--out", "out") == (
        "--out out exists and is not empty; choose another or add --force"
    )
    rledit("merge", "r.yaml", "--out", "out", "--force")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["absent.yaml"], "absent.yaml cannot be read: No such file or directory"),
        (["base"], "base is a folder, expected a recipe file"),
        (
            ["r.yaml", "--dtype", "int8"],
            "--dtype is 'int8', expected one of float32, fp32, float16, fp16, bfloat16, bf16, "
            "float64, fp64",
        ),
        (
            ["r.yaml", "--device", "tpu"],
            "--device is 'tpu', expected auto, cpu, cuda, cuda:0 or cuda:0,1",
        ),
        (
            ["r.yaml", "--plugin", "x.py"],
            "--plugin x.py is no Python file here, expected a path like mine.py",
        ),
        (["r.yaml", "--part", "2/2"], "--part is '2/2', expected 0/3, 1/3 or 2/3 for thirds"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_code_1(args, words, here):
    before = listed(here)
    assert error("merge", *args, "--out", "out") == words
    assert listed(here) == before


def test_fault_of_a_recipe_names_file_line_and_key(here):
    text = (here / "r.yaml").read_text()
    (here / "typo.yaml").write_text(text.replace("density", "densty"))
    assert error("merge", "typo.yaml", "--out", "out") == (
        "typo.yaml:8: models[0].parameters: ties has no setting 'densty'; did you mean 'density'?"
    )


def test_control_characters_of_a_recipe_do_not_reach_the_terminal(here):
    (here / "evil.yaml").write_text('merge_method: linear\n"\\e[2Jkey": 1\n')
    assert "\x1b" not in error("merge", "evil.yaml", "--out", "out")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Missing argument 'RECIPE'."),
        (["r.yaml"], "Missing option '--out': the folder to write."),
        (["r.yaml", "--out", "o", "--shard-size", "lots"],
         "--shard-size is 'lots', expected a size such as 5GB"),
        (["r.yaml", "--out", "o", "--shard-size", "0"],
         "--shard-size is '0', expected a size such as 5GB"),
        (["r.yaml", "--out", "o", "--model", "a"], "--model is 'a', expected NAME=PATH"),
        (["r.yaml", "--out", "o", "--model", "a="], "--model is 'a=', expected NAME=PATH"),
        (["r.yaml", "--out", "o", "--part", "0/2", "--join"],
         "--part computes a share and --join puts them together: give one"),
        (["r.yaml", "--out", "o", "--workers", "0"],
         "Invalid value for '--workers': 0 is not in the range x>=1."),
        (["r.yaml", "--out", "o", "--workerz", "1"], "No such option '--workerz'."),
    ],
)  # fmt: skip
def test_wrong_use_is_exit_code_2(args, words, here):
    assert usage("merge", *args).startswith(words)
    assert not (here / "o").exists()


# The flags of mergekit-yaml.

PEER_FLAGS = (
    "--lazy-unpickle", "--low-cpu-memory", "--read-to-gpu", "--multi-gpu", "--copy-tokenizer",
    "--no-copy-tokenizer", "--allow-crimes", "--safe-serialization", "--clone-tensors",
    "--write-model-card", "--trust-remote-code", "--async-write", "--gpu-rich",
)  # fmt: skip


def test_flags_of_the_peer_are_accepted_and_explained_and_change_no_byte(here):
    rledit("merge", "r.yaml", "--out", "plain")
    found = rledit("merge", "r.yaml", "--out", "flagged", *PEER_FLAGS)
    told = found.stderr.splitlines()
    assert len(told) == len(PEER_FLAGS)
    for flag in PEER_FLAGS:
        assert any(line.startswith(f"note: {flag} changes nothing here: ") for line in told), flag
    for name in listed(here / "plain"):
        assert (here / "flagged" / name).read_bytes() == (here / "plain" / name).read_bytes()


def test_flags_of_the_peer_keep_stdout_to_json(here):
    assert json.loads(rledit("merge", "r.yaml", "--plan", "--json", "--allow-crimes").stdout)


def test_flags_of_the_peer_that_mean_something_are_mapped(here):
    rledit("merge", "r.yaml", "--out", "out", "--out-shard-size", "2K")
    assert len(list((here / "out").glob("*.safetensors"))) > 1
    import torch

    if not torch.cuda.is_available():
        assert error("merge", "r.yaml", "--out", "o", "--cuda") == (
            "--device is cuda, and this machine has 0 CUDA devices"
        )


def test_flags_of_the_peer_are_not_advertised():
    text = rledit("merge", "--help").stdout
    assert not any(f"  {flag}" in text for flag in (*PEER_FLAGS, "--cuda", "--out-shard-size"))


# In a process of its own.


def test_process_ends_with_these_codes_and_runs_go_on(here):
    def run(*args):
        command = [sys.executable, "-c", INTERRUPTED, "merge", "r.yaml", "--out", "out", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = run("--workers", "1")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == (
        "Interrupted: what was finished is kept in out.partial; continue with --resume\n"
    )
    assert not (here / "out").exists()
    assert "continue it with --resume or discard it with --force" in error(
        "merge", "r.yaml", "--out", "out"
    )
    rledit("merge", "r.yaml", "--out", "out", "--resume")
    rledit("merge", "r.yaml", "--out", "quiet")
    for name in listed(here / "quiet"):
        assert (here / "out" / name).read_bytes() == (here / "quiet" / name).read_bytes()


# The fifth write of tensor data interrupts the process, as Ctrl-C does.
INTERRUPTED = """
import os, signal, time
from rledit.__main__ import main

real, count = os.pwrite, 0

def pwrite(fd, data, offset):
    global count
    count += 1
    if count == 5:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
    return real(fd, data, offset)

os.pwrite = pwrite
main()
"""
