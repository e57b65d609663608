"""A merge that is killed, or whose disk fails, at any step goes on to the same bytes."""

import json
import shutil

import pytest
import torch
from disk_faults import CHANGES, ERRORS, KILLS, SYNCS, WRITES, Disk, killed
from safetensors.torch import save_file

from mergekit_rl import EditError, merge

SHARD = 700  # bytes: several shards


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with three small models, a recipe over them, and what a quiet run makes of it."""
    folder = tmp_path_factory.mktemp("faults")
    generator = torch.Generator().manual_seed(0)
    base = {f"model.layers.{i}.w.weight": torch.randn(8, 6, generator=generator) for i in range(4)}
    for name in ("base", "a", "b"):
        (folder / name).mkdir()
        model = {k: t + (name != "base") * torch.randn(8, 6) * 0.1 for k, t in base.items()}
        save_file(model, folder / name / "model.safetensors", metadata={"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps({"num_hidden_layers": 4}))
    models = [{"model": str(folder / name), "parameters": {"weight": 0.5}} for name in ("a", "b")]
    recipe = {"merge_method": "linear", "base_model": str(folder / "base"), "models": models}
    run(recipe, folder / "quiet")
    return folder, recipe


def run(recipe, out, **options):
    return merge(recipe, out, workers=1, shard_bytes=SHARD, **options)


def files_of(folder):
    if not folder.is_dir():
        return {}
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def steps(recipe, folder, kind):
    """The calls at which a kind of fault makes sense, not all of them: the writer's own tests walk
    through every one."""
    disk = Disk()
    with disk.active():
        run(recipe, folder / "count")
    shutil.rmtree(folder / "count")
    wanted = {"kill midway": WRITES, "EIO, writes lost": SYNCS}.get(kind, CHANGES)
    numbers = [n for n, name in enumerate(disk.names, 1) if name in wanted]
    return numbers[:: max(1, len(numbers) // 15)]


@pytest.mark.parametrize("kind", KILLS)
def test_killed_at_any_step_it_resumes_to_the_same_bytes(place, kind, tmp_path):
    folder, recipe = place
    quiet = files_of(folder / "quiet")
    kills = 0
    for number in steps(recipe, tmp_path, kind):
        out = tmp_path / str(number)
        kills += killed(lambda out=out: run(recipe, out), Disk(number, kind))
        assert files_of(out) in ({}, quiet)
        if files_of(out) != quiet:
            run(recipe, out, resume=True)
        assert files_of(out) == quiet
    assert kills


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_at_any_step_is_one_line_and_it_resumes_to_the_same_bytes(place, kind, tmp_path):
    folder, recipe = place
    quiet = files_of(folder / "quiet")
    for number in steps(recipe, tmp_path, kind):
        out = tmp_path / str(number)
        try:
            with Disk(number, kind).active():
                run(recipe, out)
        except EditError as error:
            assert "\n" not in str(error)
        if files_of(out) != quiet:
            assert files_of(out) == {}
            run(recipe, out, resume=True)
        assert files_of(out) == quiet
