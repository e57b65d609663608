"""The bytes of a merge do not depend on how it ran: hash seeds, workers, shards, kills."""

import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import torch
from disk_faults import CHANGES, Disk, killed
from merge_models import rewrite, tensors
from merge_trio import trio
from pairs import contents

from mergekit_rl import EditError, merge


def entries(*names, **settings):
    return [{"model": name, "parameters": settings} for name in names]


RECIPES = {
    "drawn": {
        "merge_method": "dare_ties",
        "base_model": "base",
        "models": entries("a", "b", weight=0.7, density=0.5),
        "seed": 3,
    },
    "magprune": {
        "merge_method": "della",
        "base_model": "base",
        "models": entries("a", "b", weight=0.7, density=0.5),
        "postprocess": [{"lines": {"alpha": 0.5, "beta": 1}}, "svc"],
    },
    "two-pass": {
        "merge_method": "sce",
        "base_model": "base",
        "models": entries("a", "b"),
        "parameters": {"select_topk": 0.3},
        "preprocess": ["norm_match", {"sar": {"rank": 2, "rest": "keep"}}],
    },
    "streamed": [
        {
            "name": "both",
            "merge_method": "dare_linear",
            "base_model": "base",
            "models": entries("a", "b", weight=0.5, density=0.5),
            "preprocess": ["norm_match"],
        },
        {"merge_method": "linear", "models": entries("both", "a", weight=1), "dtype": "bfloat16"},
    ],
    "stacked": {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": "a", "layer_range": [0, 2]}]},
            {"sources": [{"model": "b", "layer_range": [0, 2]}]},
        ],
        "parameters": {"scale": [{"filter": "o_proj", "value": [0.5, 1]}, {"value": 1}]},
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models, the recipes as files, and what a quiet run makes of each."""
    folder = tmp_path_factory.mktemp("determinism")
    trio(folder)
    for name, recipe in RECIPES.items():
        (folder / f"{name}.json").write_text(json.dumps(recipe))
    before = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    for name in RECIPES:
        merge(folder / f"{name}.json", folder / f"quiet-{name}", workers=1)
    yield folder
    os.chdir(before)


def raw(folder):
    """{tensor: its bytes}."""
    return {n: t.view(torch.uint8).numpy().tobytes() for n, t in tensors(folder).items()}


HASHED = """
import sys
from pathlib import Path
from mergekit_rl import merge

for name in sys.argv[2:]:
    merge(f"{name}.json", Path(sys.argv[1]) / name, workers=2)
"""


def test_every_file_is_the_same_over_hash_seeds(place, tmp_path):
    runs = []
    for seed in range(4):
        command = [sys.executable, "-c", HASHED, str(tmp_path / str(seed)), *RECIPES]
        (tmp_path / str(seed)).mkdir()
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        runs.append(subprocess.Popen(command, env=environment, cwd=place))
    assert [run.wait(timeout=120) for run in runs] == [0] * 4
    for seed in range(4):
        for name in RECIPES:
            assert contents(tmp_path / str(seed) / name) == contents(place / f"quiet-{name}")


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("name", RECIPES)
def test_every_file_is_the_same_over_worker_counts(name, workers, place, tmp_path):
    merge(place / f"{name}.json", tmp_path / "out", workers=workers)
    assert contents(tmp_path / "out") == contents(place / f"quiet-{name}")


@pytest.mark.parametrize("size", [1, 700, 3000])
@pytest.mark.parametrize("name", RECIPES)
def test_every_tensor_is_the_same_over_shard_sizes(name, size, place, tmp_path):
    merge(place / f"{name}.json", tmp_path / "out", shard_bytes=size, workers=2)
    assert raw(tmp_path / "out") == raw(place / f"quiet-{name}")
    if size < 1000:
        assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1


def test_order_of_the_settings_and_models_in_the_base_does_not_change_a_draw(place, tmp_path):
    """Masks are keyed by tensor and model: what else is merged does not shift them."""
    drawn = RECIPES["drawn"] | {"include": ["layers.1.mlp"]}
    merge(drawn, tmp_path / "some")
    found, quiet = tensors(tmp_path / "some"), tensors(place / "quiet-drawn")
    names = [name for name in found if "layers.1.mlp" in name]
    assert names and all(torch.equal(found[name], quiet[name]) for name in names)


def test_another_seed_is_another_draw(place, tmp_path):
    merge(RECIPES["drawn"] | {"seed": 4}, tmp_path / "out")
    assert raw(tmp_path / "out") != raw(place / "quiet-drawn")


# Kills.


class Stop(Exception):
    pass


def stop_at(moment):
    seen = []

    def report(event):
        seen.append(event)
        if len(seen) == moment:
            raise Stop

    return report


def interrupted(recipe, out, moment=3, **options):
    """What an interrupted merge leaves."""
    with pytest.raises(Stop):
        merge(recipe, out, progress=stop_at(moment), workers=1, **options)
    assert not out.exists() and out.with_name(f"{out.name}.partial").exists()


@pytest.mark.parametrize("name", ["two-pass", "streamed"])
def test_stopped_after_any_tensor_of_any_pass_it_goes_on_to_the_same_bytes(name, place, tmp_path):
    events = []
    merge(place / f"{name}.json", tmp_path / "count", workers=1, progress=events.append)
    assert len(events) > 2 * 20  # a pass over all tensors before they are written
    for moment in range(1, len(events) + 1, 3):
        out = tmp_path / str(moment)
        interrupted(place / f"{name}.json", out, moment)
        merge(place / f"{name}.json", out, resume=True, workers=2)
        assert contents(out) == contents(place / f"quiet-{name}"), moment
        shutil.rmtree(out)


@pytest.mark.parametrize("kind", ["kill before", "kill midway"])
def test_killed_at_every_call_that_changes_the_disk_it_goes_on_to_the_same_bytes(
    kind, place, tmp_path
):
    recipe = RECIPES["drawn"] | {
        "include": ["layers.0.mlp"], "preprocess": ["norm_match"], "rest": "a"
    }  # fmt: skip

    def run(out, **options):
        merge(recipe, out, workers=1, shard_bytes=2500, **options)

    disk = Disk()
    with disk.active():
        run(tmp_path / "quiet")
    quiet = contents(tmp_path / "quiet")
    numbers = [number for number, name in enumerate(disk.names, 1) if name in CHANGES]
    if kind == "kill midway":  # the same as before it where a call is not a write
        numbers = [n for n in numbers if disk.names[n - 1] in ("pwrite", "write", "write_bytes")]
    assert len(numbers) > 20
    kills = 0
    for number in numbers:
        out = tmp_path / str(number)
        kills += killed(lambda out=out: run(out), Disk(number, kind))
        if not out.exists():
            run(out, resume=True)
        assert contents(out) == quiet, disk.names[number - 1]
        shutil.rmtree(out)
    assert kills == len(numbers)


def test_finished_tensors_are_not_computed_again(place, tmp_path):
    interrupted(place / "drawn.json", tmp_path / "out", 15)
    events = []
    merge(place / "drawn.json", tmp_path / "out", resume=True, progress=events.append)
    journal = 21 - len(events)
    assert 14 <= journal < 21  # those in work when it was stopped may be finished too


def test_the_order_in_which_tensors_were_done_does_not_matter(place, tmp_path):
    for seed in range(3):
        out = tmp_path / str(seed)
        interrupted(place / "drawn.json", out, 20)
        path = out.with_name(f"{seed}.partial") / "journal"
        key, *units = path.read_text().splitlines(keepends=True)
        random.Random(seed).shuffle(units)
        path.write_text("".join([key, *units]))
        merge(place / "drawn.json", out, resume=True)
        assert contents(out) == contents(place / "quiet-drawn")


# What changed between a kill and the next run.


@pytest.fixture
def copied(place, tmp_path, monkeypatch):
    """The models in a folder of their own, the working directory."""
    for name in ("base", "a", "b"):
        shutil.copytree(place / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_number(folder, keep_time):
    """Changes a single number of a model; the file keeps its size, and its time if that is said."""
    path = folder / "model.safetensors"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


REFUSED = "begun with other inputs or options"


@pytest.mark.parametrize("keep_time", [False, True])
@pytest.mark.parametrize("model", ["base", "a", "b"])
@pytest.mark.parametrize("name", ["two-pass", "streamed"])
def test_model_that_changed_is_noticed(name, model, keep_time, copied):
    interrupted(RECIPES[name], copied / "out", 25)
    one_number(copied / model, keep_time)
    with pytest.raises(EditError, match=REFUSED):
        merge(RECIPES[name], copied / "out", resume=True)
    merge(RECIPES[name], copied / "out", force=True)


def test_config_that_changed_is_noticed(copied):
    interrupted(RECIPES["drawn"], copied / "out")
    config = json.loads((copied / "base" / "config.json").read_text())
    (copied / "base" / "config.json").write_text(json.dumps(config | {"rope_theta": 1e6}))
    with pytest.raises(EditError, match=REFUSED):
        merge(RECIPES["drawn"], copied / "out", resume=True)


def test_model_that_was_renamed_into_place_of_another_is_noticed(copied):
    interrupted(RECIPES["drawn"], copied / "out")
    (copied / "a").rename(copied / "c")
    (copied / "b").rename(copied / "a")
    (copied / "c").rename(copied / "b")
    with pytest.raises(EditError, match=REFUSED):
        merge(RECIPES["drawn"], copied / "out", resume=True)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"merge_method": "dare_linear"},
        {"models": entries("a", "b", weight=0.7, density=0.4)},
        {"models": entries("b", "a", weight=0.7, density=0.5)},
        {"out_dtype": "bfloat16"},
        {"include": ["mlp"]},
        {"postprocess": [{"scale": {"factor": 2}}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_recipe_that_changed_is_noticed(change, copied):
    interrupted(RECIPES["drawn"], copied / "out")
    with pytest.raises(EditError, match=REFUSED):
        merge(RECIPES["drawn"] | change, copied / "out", resume=True)


@pytest.mark.parametrize("option", [{"dtype": "bfloat16"}, {"shard_bytes": 500}])
def test_option_that_changes_the_files_is_noticed(option, copied):
    interrupted(RECIPES["drawn"], copied / "out")
    with pytest.raises(EditError, match=REFUSED):
        merge(RECIPES["drawn"], copied / "out", resume=True, **option)


def test_earlier_document_that_changed_is_noticed(copied):
    first, last = RECIPES["streamed"]
    interrupted([first, last], copied / "out", 30)
    with pytest.raises(EditError, match=REFUSED):
        merge([first | {"seed": 1}, last], copied / "out", resume=True)


def test_input_written_anew_with_the_same_content_is_taken_for_a_change(copied):
    """A changed time alone says so: the file may have been swapped meanwhile."""
    interrupted(RECIPES["drawn"], copied / "out")
    rewrite(copied / "a", lambda t: t)
    with pytest.raises(EditError, match=REFUSED):
        merge(RECIPES["drawn"], copied / "out", resume=True)
