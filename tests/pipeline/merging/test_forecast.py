"""What `--plan` says is what a merge takes."""

import json
import subprocess
import sys

import pytest
import torch
from merge_trio import trio
from pairs import CONFIG, llama, save, updated

from mergekit_rl import merge
from mergekit_rl.pipeline.merging.forecast import plan_events


def forecast(recipe, **options):
    steps = plan_events(recipe, device="cpu", **options)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def recipe_of(models, method, **settings):
    return {
        "merge_method": method,
        "base_model": str(models["base"]),
        "models": [{"model": str(models[n]), "parameters": settings} for n in ("a", "b")],
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [10**9, 700])
def test_disk_is_that_of_the_files_to_the_byte(dtype, size, tmp_path):
    recipe = recipe_of(trio(tmp_path), "ties", weight=1) | {"out_dtype": dtype}
    told = forecast(recipe, shard_bytes=size)
    merge(recipe, tmp_path / "out", shard_bytes=size)
    files = (tmp_path / "out").glob("*.safetensors")
    assert told.output_bytes == sum(path.stat().st_size for path in files)
    assert told.merged == len(told.tensors)


MEASURE = """
import json, re, sys
from pathlib import Path
from mergekit_rl import merge
import torch
recipe = json.loads(sys.argv[1])
# Anonymous memory alone: mapped input files are the page cache's.
import threading, time
most, stop = 0, False
def watch():
    global most
    while not stop:
        found = re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())
        most = max(most, int(found[1]) * 1024)
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
merge(recipe, sys.argv[2], workers=int(sys.argv[3]), device="cpu")
stop = True
thread.join()
print(most)
"""
PLAN = """
import json, sys
from mergekit_rl.pipeline.merging.forecast import plan_events
steps = plan_events(json.loads(sys.argv[1]), workers=int(sys.argv[3]), device="cpu")
try:
    while True:
        next(steps)
except StopIteration as done:
    print(done.value.memory_bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is allocated")
@pytest.mark.parametrize(
    ("method", "settings"),
    [("linear", {"weight": 1}), ("ties", {"weight": 1, "density": 0.5}), ("model_stock", {})],
)
def test_memory_is_what_a_merge_allocates_within_a_fifth(method, settings, tmp_path):
    models = {}
    base = llama(hidden=1024, inner=3584, layers=2, vocab=20000, dtype=torch.bfloat16)
    config = CONFIG | {
        "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 2, "vocab_size": 20000,
        "dtype": "bfloat16",
    }  # fmt: skip
    models["base"] = save(tmp_path / "base", base, config)
    for number, name in enumerate("ab", 1):
        models[name] = save(tmp_path / name, updated(base, 0.01, number), config)
    recipe = json.dumps(recipe_of(models, method, **settings))
    figures = []
    for script in (PLAN, MEASURE):
        command = [sys.executable, "-c", script, recipe, str(tmp_path / "out"), "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures.append(int(done.stdout.split()[-1]))
    assert figures[0] == pytest.approx(figures[1], rel=0.2)
