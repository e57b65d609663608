"""Links may lead within a folder, or into the Hub cache that it is of, and nowhere else."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import write_index

from mergekit_rl import Checkpoint, EditError

ONE = "model-00001-of-00001.safetensors"


def fill(folder: Path, **files: str) -> Path:
    """Writes safetensors files {stem: the one-letter names of its tensors}."""
    folder.mkdir(exist_ok=True)
    for stem, names in files.items():
        save_file({name: torch.ones(2) for name in names}, folder / f"{stem}.safetensors")
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(EditError) as caught:
        Checkpoint.open(folder)
    return str(caught.value).replace(str(folder), "DIR")


def names(folder: Path) -> list[str]:
    return sorted(Checkpoint.open(folder).tensors)


@pytest.mark.parametrize("name", ["model.safetensors", ONE, "config.json"])
def test_a_link_out_of_the_folder_is_refused(name, tmp_path):
    folder = fill(tmp_path / "model", **{ONE.removesuffix(".safetensors"): "ab"})
    (folder / "config.json").write_text("{}")
    if name == "model.safetensors":
        fill(folder, model="a")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to("../elsewhere")
    assert refusal(folder) == (
        f"DIR/{name} is a link to {tmp_path}/elsewhere, outside its folder: copy the file in its "
        "place"
    )


def test_a_linked_folder_below_is_followed_no_further(tmp_path):
    fill(tmp_path / "other", x="a")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "sub").symlink_to(tmp_path / "other")
    write_index(folder, {"a": "sub/x.safetensors"})
    assert "outside its folder" in refusal(folder)


def test_a_link_within_the_folder_opens(tmp_path):
    fill(tmp_path, weights="a")
    (tmp_path / "model.safetensors").symlink_to("weights.safetensors")
    assert names(tmp_path) == ["a"]


def test_a_folder_reached_through_a_link_opens(tmp_path):
    fill(tmp_path / "model", model="a")
    (tmp_path / "link").symlink_to("model")
    assert names(tmp_path / "link") == ["a"]


def hub_cache(root: Path, blobs: str) -> Path:
    """A snapshot whose one file is a link into the folder `blobs` of the cache."""
    snapshot = root / "models--org--name" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    blob = fill(root / blobs, abc="a") / "abc.safetensors"
    (snapshot / "model.safetensors").symlink_to(blob)
    return snapshot


def test_a_link_to_the_blobs_of_the_same_model_opens(tmp_path):
    (tmp_path / "models--org--name").mkdir()
    assert names(hub_cache(tmp_path, "models--org--name/blobs")) == ["a"]


def test_a_link_to_the_blobs_of_another_model_is_refused(tmp_path):
    (tmp_path / "models--org--secret").mkdir()
    assert "outside its folder" in refusal(hub_cache(tmp_path, "models--org--secret/blobs"))


def test_a_broken_link_is_an_absent_file(tmp_path):
    (tmp_path / "model-00001-of-00001.safetensors").symlink_to("gone")
    write_index(tmp_path, {"a": "model-00001-of-00001.safetensors"})
    assert "which DIR does not hold" in refusal(tmp_path)


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert refusal(tmp_path) == (
        "DIR/model.safetensors is a link that leads nowhere; fetch the file again"
    )


def test_a_broken_link_out_of_the_folder_is_not_followed(tmp_path):
    folder = fill(tmp_path / "model", model="a")
    (folder / "config.json").symlink_to("../absent")
    assert refusal(folder).startswith(f"DIR/config.json is a link to {tmp_path}/absent, outside")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", ONE])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    assert refusal(tmp_path) == f"DIR/{name} cannot be read: it is no ordinary file"
