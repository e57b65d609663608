"""A checkpoint's tensors: lazy, exact, and checked when they are read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import edit, entry, file_of

from mergekit_rl import Checkpoint, EditError, sar
from mergekit_rl.io.checkpoint import TORCH_DTYPES


def store(folder: Path, config: object = None, **tensors: torch.Tensor) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint.open(folder)


def refusal(call) -> str:
    with pytest.raises(EditError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_dtype_is_read_bit_for_bit(name, tmp_path):
    dtype = TORCH_DTYPES[name]
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    found = store(
        tmp_path, lead=torch.ones(3), x=tensor if name not in ("I8", "U8") else tensor[0, 0]
    )
    expected = load_file(tmp_path / "model.safetensors")["x"]
    assert found.read("x").dtype == dtype and torch.equal(found.read("x"), expected)
    assert torch.equal(found.read("x", 1), expected[1])
    assert torch.equal(torch.cat(list(found.pieces("x", 5))), expected.reshape(-1))


def test_scalars_and_empty_tensors_are_read(tmp_path):
    found = store(tmp_path, one=torch.tensor(3.0), none=torch.zeros(0, 4))
    assert found.read("one").shape == () and found.read("one") == 3
    assert found.read("none").shape == (0, 4)
    assert list(found.pieces("none")) == []
    assert torch.cat(list(found.pieces("one"))) == torch.tensor([3.0])


def test_shapes_and_dtypes_come_from_headers_alone(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"w": entry("BF16", [2**20, 2**20], 0, 2**41)}))
    try:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + 2**41)  # takes no space
    except OSError:
        pytest.skip("this file system has no sparse files of 2 TB")
    found = Checkpoint.open(tmp_path)
    assert found.tensors["w"].shape == (2**20, 2**20)
    assert (found.dtype, found.parameters) == ("BF16", 2**40)
    assert torch.equal(next(found.pieces("w", 8)), torch.zeros(8, dtype=torch.bfloat16))


def test_one_matrix_of_a_stack_is_read_alone(tmp_path):
    found = store(tmp_path, w=torch.ones(3, 2, 2), v=torch.ones(2))
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    info = found.tensors["w"]
    content[info.offset : info.offset + 4] = b"\x00\x00\xc0\x7f"  # NaN in the first matrix
    (tmp_path / "model.safetensors").write_bytes(content)
    assert torch.equal(found.read("w", 2), torch.ones(2, 2))
    refusal(lambda: found.read("w", 0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nan_and_inf_are_errors_that_name_the_tensor(value, dtype, tmp_path):
    bad = torch.ones(5, 3)
    bad[4, 1] = value
    found = store(tmp_path, good=torch.ones(2), bad=bad.to(dtype))
    message = (
        f"bad of {tmp_path} holds NaN or Inf (model.safetensors): the training run went wrong "
        "before it was saved"
    )
    assert refusal(lambda: found.read("bad")) == message
    assert refusal(lambda: list(found.pieces("bad", 4))) == message
    assert refusal(lambda: found.delta("bad")) == message
    assert torch.equal(found.read("good"), torch.ones(2))


def test_a_delta_is_the_exact_difference_rounded_once(tmp_path):
    base = torch.randn(4, 4).to(torch.bfloat16)
    found = store(tmp_path, w=(base.float() * 1.01).to(torch.float16))
    delta = found.delta("w")(base)
    exact = found.read("w").double() - base.double()
    assert delta.dtype == torch.float32 and torch.equal(delta, exact.float())


def test_a_delta_of_fp64_stays_wide(tmp_path):
    found = store(tmp_path, w=torch.full((2, 2), 1 + 2**-40, dtype=torch.float64))
    delta = found.delta("w")(torch.ones(2, 2))
    assert delta.dtype == torch.float64 and (delta == 2**-40).all()


def test_a_file_cut_after_it_was_opened_is_an_error(tmp_path):
    found = store(tmp_path, w=torch.ones(64))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    assert refusal(lambda: found.read("w")) == (f"{path} ended early: it changed while it was read")
    path.unlink()
    assert refusal(lambda: found.read("w")) == f"{path} cannot be read: No such file or directory"


def test_dtype_and_parameters_count_numbers_not_tensors(tmp_path):
    found = store(
        tmp_path,
        a=torch.ones(9, dtype=torch.bfloat16),
        b=torch.ones(4),
        c=torch.ones(4),
        d=torch.ones(50, dtype=torch.int64),
    )
    assert (found.dtype, found.parameters) == ("BF16", 67)


def test_a_checkpoint_without_floats_has_no_dtype(tmp_path):
    found = store(tmp_path, d=torch.ones(5, dtype=torch.int64))
    assert refusal(lambda: found.dtype) == f"{tmp_path} holds no floating-point tensor"


@pytest.mark.parametrize(
    ("family", "tied"),
    [("llama", False), ("llama_tied", True), ("gpt2_bare", True), ("gemma3", True),
     ("gemma3_vision", True), ("gpt_neox", False)],
)  # fmt: skip
def test_a_tied_head_is_known(family, tied, tiny):
    assert Checkpoint.open(tiny(family)).tied is tied


@pytest.mark.parametrize(
    ("names", "config", "tied"),
    [
        (["wte.weight"], {"model_type": "gpt2"}, True),  # as written by transformers 4
        (["embed_tokens.weight"], {"tie_word_embeddings": False}, False),
        (["model.embed_tokens.weight", "lm_head.weight"], {"tie_word_embeddings": True}, False),
        (["gpt_neox.embed_in.weight", "embed_out.weight"], {}, False),
        (["model.language_model.embed_tokens.weight"],
         {"text_config": {"tie_word_embeddings": True}}, True),
        (["model.embed_tokens.weight"], {"text_config": "odd"}, True),
        (["layers.0.w"], {}, False),
    ],
)  # fmt: skip
def test_a_tied_head_is_known_from_names_and_config(names, config, tied, tmp_path):
    found = store(tmp_path, config, **{name: torch.ones(4, 2) for name in names})
    assert found.tied is tied


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[1]", "holds a JSON list, expected an object"),
        (b"null", "holds a JSON NoneType, expected an object"),
        (b"", "is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": "\xff"}', "is not valid JSON: 'utf-8' codec can't decode byte 0xff in position "
         "7: invalid start byte"),
        (b'{"a": 1, "a": 2}', "holds the name 'a' twice"),
        (b"[" * 10**5, "is nested too deeply, expected at most 100 levels"),
    ],
)  # fmt: skip
def test_faults_of_a_config_are_named(text, fault, tmp_path):
    store(tmp_path, w=torch.ones(2))
    (tmp_path / "config.json").write_bytes(text)
    assert refusal(lambda: Checkpoint.open(tmp_path)) == f"{tmp_path}/config.json {fault}"


def test_a_config_that_is_a_folder_is_an_error(tmp_path):
    store(tmp_path, w=torch.ones(2))
    (tmp_path / "config.json").mkdir()
    message = f"{tmp_path}/config.json cannot be read: Is a directory"
    assert refusal(lambda: Checkpoint.open(tmp_path)) == message


def test_a_folder_without_a_config_opens(tmp_path):
    assert store(tmp_path, w=torch.ones(2)).config == {}


def test_a_core_opens_over_its_base(tiny, tmp_path):
    from shutil import copytree

    rl = copytree(tiny("llama"), tmp_path / "rl")
    edit(rl, lambda name, tensor: {name: tensor + 0.01 * torch.sign(tensor)})
    sar(tiny("llama"), rl, tmp_path / "core", rank=2, workers=1, device="cpu")
    found = Checkpoint.open(tmp_path / "core")
    base = Checkpoint.open(tiny("llama"))
    assert found.tensors.keys() == base.tensors.keys()
    name = "model.layers.0.self_attn.q_proj.weight"
    factors = load_file(tmp_path / "core" / "adapter_model.safetensors")
    key = f"base_model.model.{name.removesuffix('.weight')}.lora_"
    delta = factors[f"{key}B.weight"].double() @ factors[f"{key}A.weight"].double()
    assert torch.equal(found.read(name), (base.read(name).double() + delta).float())
    assert torch.equal(found.read("lm_head.weight"), base.read("lm_head.weight"))


@pytest.mark.parametrize("damage", [
    {"format": 2}, {"format": None}, {"base": []}, {"output": {}}, {"targets": 3},
    {"targets": {"x": {"rank": 1, "shape": [2, 2]}}},
    {"output": {"dtype": "F32", "other_dtypes": {"x": []}, "config": ""}},
    {"output": {"dtype": "F31", "other_dtypes": {}, "config": ""}},
])  # fmt: skip
def test_a_damaged_core_is_refused(damage, tmp_path):
    from mergekit_rl.io.core import Core

    content = {
        "format": 1,
        "base": {"name": "b", "tensors": {"w": "00"}},
        "output": {"dtype": "F32", "other_dtypes": {}, "config": ""},
        "targets": {"w": {"rank": 1, "shape": [2, 2]}},
    }
    (tmp_path / "core.json").write_text(json.dumps(content))
    assert Core(tmp_path).ranks == {"w": 1}
    (tmp_path / "core.json").write_text(json.dumps(content | damage))
    assert refusal(lambda: Core(tmp_path)).startswith(f"{tmp_path}/core.json")


def test_a_fingerprint_tells_a_changed_value(tmp_path):
    before = store(tmp_path, w=torch.ones(100)).fingerprint()
    assert Checkpoint.open(tmp_path).fingerprint() == before
    changed = torch.ones(100)
    changed[0] = 2
    assert store(tmp_path, w=changed).fingerprint() != before


def test_opening_a_folder_with_a_revision_is_refused(tmp_path):
    store(tmp_path, w=torch.ones(2))
    assert refusal(lambda: Checkpoint.open(tmp_path, revision="main")) == (
        f"{tmp_path} is a folder, and a folder has no revision 'main'"
    )


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("", "an empty name was given, expected a checkpoint folder or a Hub id"),
        ("./absent", "./absent does not exist and is not a Hub id (org/name[@revision])"),
        ("a/b/c", "a/b/c does not exist and is not a Hub id (org/name[@revision])"),
        ("x" * 300, f"{'x' * 300} cannot be looked up: File name too long"),
        ("a\0b", "a\0b does not exist and is not a Hub id (org/name[@revision])"),
        (__file__, f"{__file__} is a file, expected a checkpoint folder or a Hub id"),
    ],
)
def test_a_reference_that_is_neither_folder_nor_hub_id_is_refused(ref, message):
    assert refusal(lambda: Checkpoint.open(ref)) == message
