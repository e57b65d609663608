"""Runs that are killed or interrupted and go on to the same bytes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pairs import contents, make_pair
from safetensors.torch import load_file

from mergekit_rl.errors import EditError
from mergekit_rl.pipeline.apply import apply_core
from mergekit_rl.pipeline.sar import sar

SAVES = ("core", "model", "both")
TENSORS = 20  # of the pair
MOMENTS = (1, 4, 11, 18, TENSORS)
SHARD = 12_000  # bytes: several shards

# One child per (save, moment) is killed after that many tensors; every tensor is synced at once.
KILLER = """
import itertools, os, signal, sys, time
from pathlib import Path
from mergekit_rl.pipeline.sar import sar
from mergekit_rl.pipeline.apply import apply_core

folder, shard = Path(sys.argv[1]), int(sys.argv[2])
time.monotonic = itertools.count(0, 10).__next__

def killed(moment, run, *args, **options):
    def report(event):
        if event.done == moment:
            os.kill(os.getpid(), signal.SIGKILL)
    pid = os.fork()
    if pid == 0:
        run(*args, workers=2, shard_bytes=shard, progress=report, **options)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])

for moment in map(int, sys.argv[3].split(",")):
    for save in sys.argv[4].split(","):
        out = folder / f"{save}-{moment}"
        killed(moment, sar, folder / "base", folder / "rl", out, save=save)
    out = folder / f"applied-{moment}"
    killed(moment, apply_core, folder / "base", folder / "quiet-core", out)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair, the results of quiet runs on one worker, and of killed ones what they left."""
    folder = tmp_path_factory.mktemp("resume")
    base, rl = make_pair(folder)
    for save in SAVES:
        sar(base, rl, folder / f"quiet-{save}", save=save, workers=1, shard_bytes=SHARD)
    apply_core(base, folder / "quiet-core", folder / "quiet-applied", shard_bytes=SHARD)
    moments = ",".join(map(str, MOMENTS))
    command = [sys.executable, "-c", KILLER, str(folder), str(SHARD), moments, ",".join(SAVES)]
    subprocess.run(command, check=True, timeout=120)
    return folder


def committed(out: Path) -> int:
    journal = out.with_name(out.name + ".partial") / "journal"
    return len(journal.read_bytes().splitlines()) - 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("save", SAVES)
def test_a_killed_extraction_goes_on_to_the_same_bytes(
    save: str, moment: int, workers: int, folder: Path, tmp_path: Path
) -> None:
    killed = folder / f"{save}-{moment}.partial"
    out = tmp_path / "out"
    subprocess.run(["cp", "-r", str(killed), f"{out}.partial"], check=True)
    assert not out.exists()
    done = committed(out)
    assert done >= moment
    events = []
    sar(
        folder / "base", folder / "rl", out,
        save=save, resume=True, workers=workers, shard_bytes=SHARD, progress=events.append,
    )  # fmt: skip
    assert len(events) == TENSORS - done
    assert contents(out) == contents(folder / f"quiet-{save}")
    assert not out.with_name("out.partial").exists()


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_tensors_were_done_does_not_matter(
    seed: int, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed = folder / f"core-{TENSORS}.partial"
    subprocess.run(["cp", "-r", str(killed), f"{out}.partial"], check=True)
    journal = tmp_path / "out.partial" / "journal"
    key, *units = journal.read_text().splitlines(keepends=True)
    random.Random(seed).shuffle(units)
    journal.write_text("".join([key, *units]))
    sar(folder / "base", folder / "rl", out, resume=True, shard_bytes=SHARD)
    assert contents(out) == contents(folder / "quiet-core")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_application_goes_on_to_the_same_bytes(moment: int, folder: Path) -> None:
    out = folder / f"applied-{moment}"
    assert committed(out) >= moment
    core = folder / "quiet-core"
    apply_core(folder / "base", core, out, resume=True, workers=2, shard_bytes=SHARD)
    assert contents(out) == contents(folder / "quiet-applied")


def test_the_quiet_runs_wrote_what_is_compared(folder: Path) -> None:
    assert {"core.json", "adapter_config.json", "adapter_model.safetensors", "rledit.json"} <= set(
        contents(folder / "quiet-core")
    )
    shards = list((folder / "quiet-both" / "model").glob("model-*.safetensors"))
    assert len(shards) > 3
    held = {save: contents(folder / f"quiet-{save}") for save in SAVES}
    factors = held["core"]["adapter_model.safetensors"]
    assert held["both"]["core/adapter_model.safetensors"] == factors
    for shard in shards:
        assert held["both"][f"model/{shard.name}"] == held["model"][shard.name]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("rank", ["0.1", "energy:0.6"])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    workers: int, rank: str, folder: Path, tmp_path: Path
) -> None:
    for count in (1, workers):
        out = tmp_path / str(count)
        sar(folder / "base", folder / "rl", out, save="both", rank=rank, workers=count)
    assert contents(tmp_path / "1") == contents(tmp_path / str(workers))


def test_tensors_do_not_depend_on_the_size_of_shards(folder: Path, tmp_path: Path) -> None:
    found = []
    for size in (1, 5_000, 10**9):
        out = tmp_path / str(size)
        sar(folder / "base", folder / "rl", out, save="model", shard_bytes=size)
        files = sorted(out.glob("*.safetensors"))
        found.append({name: t for file in files for name, t in load_file(file).items()})
        index = out / "model.safetensors.index.json"
        if index.exists():
            weight_map = json.loads(index.read_text())["weight_map"]
            assert weight_map == {n: f.name for f in files for n in load_file(f)}
        else:
            assert len(files) == 1
    assert [len(tensors) for tensors in found] == [TENSORS] * 3
    for tensors in found[1:]:
        assert all(torch.equal(tensors[name], found[0][name]) for name in found[0])


@pytest.mark.parametrize("what", ["base", "rl", "config", "options", "shards"])
def test_a_resume_with_anything_changed_is_refused(what: str, tmp_path: Path) -> None:
    base, rl = make_pair(tmp_path)
    out = tmp_path / "out"

    def interrupt(event: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sar(base, rl, out, save="model", progress=interrupt)
    options = {}
    if what in ("base", "rl"):
        file = tmp_path / what / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif what == "config":
        file = rl / "config.json"
        file.write_text(file.read_text() + "\n")
    else:
        options = {"scale": 2.0} if what == "options" else {"shard_bytes": SHARD}
    with pytest.raises(EditError) as caught:
        sar(base, rl, out, save="model", resume=True, **options)
    partial = f"{out}.partial"
    assert str(caught.value) == (
        f"{partial} was begun with other inputs or options; repeat those, or discard it with "
        "--force and without --resume"
    )
    sar(base, rl, out, save="model", force=True, **options)
    assert not Path(partial).exists()


# The fifth write of tensor data interrupts the process, as Ctrl-C does.
INTERRUPTED = """
import os, signal, sys, time
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


def test_an_interrupted_command_says_how_to_go_on_and_does(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["sar", str(folder / "base"), str(folder / "rl"), "--out", str(out)]
    command = [sys.executable, "-c", INTERRUPTED, *arguments, "--workers", "1"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 130
    assert found.stdout == ""
    assert found.stderr == (
        f"Interrupted: what was finished is kept in {out}.partial; continue with --resume\n"
    )
    assert not out.exists() and committed(out) >= 1
    command = [sys.executable, "-m", "rledit", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and found.stderr.count("\n") == 1
    assert "continue it with --resume or discard it with --force" in found.stderr
    found = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    assert contents(out) == contents(folder / "quiet-core")


def test_results_do_not_depend_on_the_hash_seed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["sar", str(folder / "base"), str(folder / "rl"), "--out", str(out)]
    command = [sys.executable, "-m", "rledit", *arguments]
    subprocess.run(
        command, check=True, timeout=60, capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "1234"},
    )  # fmt: skip
    assert contents(out) == contents(folder / "quiet-core")
