"""Which files are a folder's weights; what is refused, and how the refusal reads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import edit, load, write_index

from mergekit_rl import Checkpoint, EditError

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def fill(folder: Path, **files: str) -> Path:
    """Writes safetensors files {stem: the one-letter names of its tensors}."""
    folder.mkdir(exist_ok=True)
    for stem, names in files.items():
        save_file({name: torch.ones(2) for name in names}, folder / f"{stem}.safetensors")
    return folder


def shards(folder: Path) -> Path:
    """Two shards with `a`, `b` and `c`, and no index yet."""
    fill(folder, one="ab", two="c")
    (folder / "one.safetensors").rename(folder / ONE)
    (folder / "two.safetensors").rename(folder / TWO)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(EditError) as caught:
        Checkpoint.open(folder)
    return str(caught.value).replace(str(folder), "DIR")


def names(folder: Path) -> list[str]:
    return sorted(Checkpoint.open(folder).tensors)


# What opens


def test_one_file_opens(tmp_path):
    assert names(fill(tmp_path, model="ab")) == ["a", "b"]


def test_shards_open_with_and_without_their_index(tmp_path):
    shards(tmp_path)
    assert names(tmp_path) == ["a", "b", "c"]
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    assert names(tmp_path) == ["a", "b", "c"]


def test_an_index_may_lead_into_a_folder_below(tmp_path):
    shards(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / TWO).rename(tmp_path / "weights" / TWO)
    write_index(tmp_path, {"a": ONE, "b": f"./{ONE}", "c": f"weights/{TWO}"})
    with pytest.raises(EditError, match="again in"):  # one file under two names
        Checkpoint.open(tmp_path)
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": f"weights/{TWO}"})
    assert names(tmp_path) == ["a", "b", "c"]


def test_a_single_file_of_another_name_opens(tmp_path):
    assert names(fill(tmp_path, weights="ab")) == ["a", "b"]


def test_a_copy_in_the_original_format_is_passed_over(tmp_path):
    (shards(tmp_path) / "consolidated.safetensors").write_bytes(b"not read")
    assert names(tmp_path) == ["a", "b", "c"]


def test_pickles_beside_safetensors_are_passed_over(tmp_path):
    fill(tmp_path, model="a")
    for name in ("training_args.bin", "optimizer.pt", "pytorch_model.bin", "scheduler.pt"):
        (tmp_path / name).write_bytes(b"\x80\x04never opened")
    (tmp_path / "global_step5").mkdir()
    assert names(tmp_path) == ["a"]


def test_of_a_single_file_and_an_index_transformers_and_we_take_the_same(tiny, tmp_path):
    from shutil import copytree

    folder = copytree(tiny("llama"), tmp_path / "model")
    other = copytree(tiny("llama"), tmp_path / "other")
    edit(other, lambda name, tensor: {name: tensor * 2})
    (other / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    ours = Checkpoint.open(folder)
    write_index(folder, dict.fromkeys(ours.tensors, "model-00001-of-00001.safetensors"))
    name = "model.layers.0.self_attn.q_proj.weight"
    theirs = load(folder).get_parameter(name)
    assert torch.equal(Checkpoint.open(folder).read(name), theirs)


# What is refused


@pytest.mark.parametrize(
    ("files", "kind", "converter"),
    [
        (
            ["pytorch_model.bin", "config.json"],
            "pickled",
            "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) of transformers writes "
            "safetensors",
        ),
        (
            ["consolidated.00.pth"],
            "pickled",
            "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) of transformers writes "
            "safetensors",
        ),
        ([".metadata", "__0_0.distcp"], "torch distributed (DCP/FSDP)",
         "accelerate merge-weights DIR OUT"),
        (["__0_0.distcp"], "torch distributed (DCP/FSDP)", "accelerate merge-weights DIR OUT"),
        (["pytorch_model_fsdp_0/.metadata"], "FSDP", "accelerate merge-weights DIR OUT"),
        (
            ["zero_to_fp32.py", "latest", "global_step5/mp_rank_00_model_states.pt"],
            "DeepSpeed ZeRO",
            "python zero_to_fp32.py DIR OUT --safe_serialization",
        ),
        (
            ["global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt"],
            "DeepSpeed ZeRO",
            "zero_to_fp32.py DIR OUT --safe_serialization",
        ),
        (
            ["model_world_size_2_rank_0.pt"],
            "verl FSDP",
            "python -m verl.model_merger merge",
        ),
        (
            ["model-q4.gguf"],
            "GGUF",
            "from_pretrained(DIR, gguf_file=…).save_pretrained(…) of transformers",
        ),
    ],
)  # fmt: skip
def test_other_formats_are_refused_with_their_converter(files, kind, converter, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(EditError) as caught:
        Checkpoint.open(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds a {kind} checkpoint and no safetensors file; convert it first: "
        f"{converter}"
    )


def test_an_empty_folder_is_refused(tmp_path):
    assert refusal(tmp_path) == "DIR holds no safetensors file, expected a checkpoint folder"


@pytest.mark.parametrize("name", ["/etc/x.safetensors", "../x.safetensors", "a/../../x.safetensors",
                                  "..\\x.safetensors", "a\0.safetensors"])  # fmt: skip
def test_an_index_may_not_lead_out_of_the_folder(name, tmp_path):
    fill(tmp_path, x="a")
    folder = tmp_path / "model"
    folder.mkdir()
    write_index(folder, {"a": name})
    assert refusal(folder) == (
        f"DIR/model.safetensors.index.json names the file {name!r}, expected a path inside its "
        "folder"
    )


@pytest.mark.parametrize("file", [3, None, ["x.safetensors"], "x.bin", ""])
def test_an_index_must_name_safetensors_files(file, tmp_path):
    write_index(tmp_path, {"a": file})
    assert refusal(tmp_path) == (
        f"DIR/model.safetensors.index.json puts 'a' in {file!r}, expected a .safetensors file"
    )


@pytest.mark.parametrize("weight_map", [None, [], {}, "x.safetensors"])
def test_an_index_must_have_a_weight_map(weight_map, tmp_path):
    write_index(tmp_path, weight_map)
    assert refusal(tmp_path) == (
        "DIR/model.safetensors.index.json has no weight_map of names to files"
    )


def test_an_index_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_bytes(b"\xff\xfe{}")
    assert refusal(tmp_path).startswith("DIR/model.safetensors.index.json is not valid JSON: ")


def test_a_name_longer_than_the_system_takes_is_refused(tmp_path):
    write_index(tmp_path, {"a": "x" * 300 + ".safetensors"})
    assert refusal(tmp_path).endswith("xxx…: File name too long")


def test_an_absent_shard_is_named(tmp_path):
    shards(tmp_path)
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    (tmp_path / TWO).unlink()
    assert refusal(tmp_path) == (
        f"DIR/model.safetensors.index.json names '{TWO}', which DIR does not hold; fetch it again"
    )


def test_an_absent_shard_is_noticed_without_an_index(tmp_path):
    (shards(tmp_path) / TWO).unlink()
    assert refusal(tmp_path) == "DIR: shard 2 of 2 is absent; fetch the checkpoint again"


def test_shards_of_two_sets_are_refused(tmp_path):
    (shards(tmp_path) / "other-00003-of-00003.safetensors").write_bytes(b"")
    assert refusal(tmp_path) == "DIR: shards of two sets; fetch the checkpoint again"


def test_files_that_are_no_set_of_shards_are_refused(tmp_path):
    fill(tmp_path, actor="a", critic="b")
    assert refusal(tmp_path) == (
        "DIR holds 2 safetensors files and no model.safetensors.index.json: it is not clear which "
        "of them are the model"
    )


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    shards(tmp_path)
    save_file({"a": torch.ones(2), "c": torch.ones(2)}, tmp_path / TWO)
    message = f"'a' is in DIR/{ONE} and again in DIR/{TWO}"
    assert refusal(tmp_path) == message
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    assert refusal(tmp_path) == message


def test_an_index_must_agree_with_the_shards(tmp_path):
    shards(tmp_path)
    write_index(tmp_path, {"a": TWO, "b": ONE, "c": TWO})
    assert refusal(tmp_path) == (
        f"DIR/model.safetensors.index.json puts 'a' in '{TWO}', which does not hold it"
    )
    write_index(tmp_path, {"a": ONE, "c": TWO})
    assert refusal(tmp_path) == (
        f"DIR/{ONE} holds 'b', which model.safetensors.index.json does not list"
    )
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO, "d": TWO})
    assert refusal(tmp_path) == (
        f"DIR/model.safetensors.index.json puts 'd' in '{TWO}', which does not hold it"
    )


def test_a_file_without_tensors_is_refused(tmp_path):
    save_file({}, tmp_path / "model.safetensors")
    assert refusal(tmp_path) == "DIR/model.safetensors holds no tensor"


def test_a_truncated_shard_is_named(tmp_path):
    shards(tmp_path)
    content = (tmp_path / TWO).read_bytes()
    (tmp_path / TWO).write_bytes(content[:-3])
    size = len(content)
    assert refusal(tmp_path) == (
        f"DIR/{TWO} is truncated: 'c' ends at byte {size} of {size - 3}; fetch the file again"
    )
