"""Headers: what the safetensors package writes is read the same; every fault has its own words."""

import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from tiny_models import entry, file_of

from mergekit_rl import EditError
from mergekit_rl.io.header import BITS, build_header, read_header
from mergekit_rl.io.jsonfile import parse_object

F32 = entry("F32", [2], 0, 8)


def fault(tmp_path: Path, content: bytes) -> str:
    """The refusal of a file with this content, the path written as FILE."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(EditError) as caught:
        read_header(path)
    return str(caught.value).replace(str(path), "FILE")


def test_names_shapes_dtypes_and_offsets_are_those_of_safetensors(tmp_path):
    tensors = {
        "b": torch.arange(6, dtype=torch.float64).reshape(2, 3),
        "a": torch.arange(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 4, dtype=torch.float16),
        "flags": torch.tensor([True, False]),
        "名": torch.ones(1, 1, 1, dtype=torch.int8),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt", "by": "hand"})
    infos, metadata = read_header(path)
    assert metadata == {"format": "pt", "by": "hand"}
    assert set(infos) == set(tensors)
    content = path.read_bytes()
    with safe_open(path, "pt") as file:
        for name, info in infos.items():
            assert (info.dtype, list(info.shape)) == (
                file.get_slice(name).get_dtype(),
                file.get_slice(name).get_shape(),
            )
            raw = tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes()
            assert content[info.offset : info.offset + info.nbytes] == raw


def test_tensors_come_in_the_order_of_their_data(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(file_of({"z": entry("U8", [1], 1, 2), "y": entry("U8", [1], 0, 1)}, b"ab"))
    assert list(read_header(path)[0]) == ["y", "z"]


@pytest.mark.parametrize("dtype", BITS)
def test_every_dtype_of_the_format_is_known(dtype, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(file_of({"t": entry(dtype, [4, 2], 0, BITS[dtype])}, bytes(BITS[dtype])))
    assert read_header(path)[0]["t"].nbytes == BITS[dtype]


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(st.sampled_from(["F32", "BF16", "U8"]), st.lists(st.integers(0, 3), max_size=3)),
        max_size=5,
    )
)
def test_safetensors_reads_what_build_header_writes(tensors):
    layout = {name: (dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()}
    text, offsets = build_header(layout)
    assert len(text) % 64 == 0
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8}
    expected = {
        name: torch.full(shape, at + 1, dtype=dtypes[dtype])
        for at, (name, (dtype, shape)) in enumerate(layout.items())
    }
    data = b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in expected.values())
    found = load(text + data)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not offsets or offsets[0] == len(text)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_file_is_read_as_safetensors_reads_it_or_refused(data):
    from tempfile import TemporaryDirectory

    content = bytearray(save({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.int8)}))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) - 4, len(content))) :]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(content)
        try:
            infos, _ = read_header(path)
        except EditError:
            return
        found = load_file(path)
        assert {name: info.shape for name, info in infos.items()} == {
            name: tuple(tensor.shape) for name, tensor in found.items()
        }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"",
            "FILE is truncated or not a safetensors file: 0 bytes cannot hold the header it "
            "announces; fetch it again",
        ),
        (
            b"\x80\x02}q\x00.",
            "FILE is truncated or not a safetensors file: 6 bytes cannot hold the header it "
            "announces; fetch it again",
        ),
        (
            file_of({"t": F32}, bytes(7)),
            "FILE is truncated: 't' ends at byte {end} of {size}; fetch the file again",
        ),
        (file_of({"t": F32}, bytes(9)), "FILE holds 1 bytes that no tensor of its header covers"),
        (
            file_of({"t": F32, "u": entry("F32", [1], 4, 8)}, bytes(8)),
            "the header of FILE: 'u' overlaps 't'",
        ),
        (
            file_of({"t": F32, "u": F32}, bytes(8)),
            "the header of FILE: 'u' overlaps 't'",
        ),
        (
            file_of({"t": F32, "u": entry("F32", [1], 12, 16)}, bytes(16)),
            "the header of FILE: 'u' leaves a hole after 't'",
        ),
        (
            file_of({"t": entry("F32", [2], 4, 12)}, bytes(12)),
            "the header of FILE: 't' leaves a hole after 'the header'",
        ),
        (
            file_of({"t": entry("F32", [3], 0, 8)}, bytes(8)),
            "the header of FILE: 't' is F32 (3,) but its data_offsets span 8 bytes",
        ),
        (
            file_of({"t": entry("F32", [2**62, 2**62], 0, 8)}, bytes(8)),
            "the header of FILE: 't' is F32 (4611686018427387904, 4611686018427387904) but its "
            "data_offsets span 8 bytes",
        ),
        (
            file_of({"t": entry("F32", [2], 8, 0)}, bytes(8)),
            "the header of FILE: 't' has data_offsets [8, 0], expected [begin, end]",
        ),
        (
            file_of({"t": entry("F32", [2], -8, 0)}, bytes(8)),
            "the header of FILE: 't' has data_offsets [-8, 0], expected [begin, end]",
        ),
        (
            file_of({"t": F32 | {"data_offsets": [0, 8, 8]}}, bytes(8)),
            "the header of FILE: 't' has data_offsets [0, 8, 8], expected [begin, end]",
        ),
        (
            file_of({"t": F32 | {"data_offsets": None}}, bytes(8)),
            "the header of FILE: 't' has data_offsets None, expected [begin, end]",
        ),
        (
            file_of({"t": F32 | {"shape": [-2]}}, bytes(8)),
            "the header of FILE: 't' has shape [-2], expected a list of sizes",
        ),
        (
            file_of({"t": F32 | {"shape": [2.0]}}, bytes(8)),
            "the header of FILE: 't' has shape [2.0], expected a list of sizes",
        ),
        (
            file_of({"t": F32 | {"shape": [True, 2]}}, bytes(8)),
            "the header of FILE: 't' has shape [True, 2], expected a list of sizes",
        ),
        (
            file_of({"t": F32 | {"shape": "2"}}, bytes(8)),
            "the header of FILE: 't' has shape '2', expected a list of sizes",
        ),
        (
            file_of({"t": F32 | {"dtype": "F31"}}, bytes(8)),
            f"the header of FILE: 't' has dtype 'F31', expected one of {', '.join(BITS)}",
        ),
        (
            file_of({"t": F32 | {"dtype": ["F32"]}}, bytes(8)),
            f"the header of FILE: 't' has dtype ['F32'], expected one of {', '.join(BITS)}",
        ),
        (
            file_of({"t": 3}),
            "the header of FILE: 't' is not an object with dtype, shape and data_offsets",
        ),
        (
            file_of({"__metadata__": {"a": 1}}),
            "the header of FILE: __metadata__ is not a map of strings",
        ),
        (
            file_of({"__metadata__": ["a"]}),
            "the header of FILE: __metadata__ is not a map of strings",
        ),
        (file_of([]), "the header of FILE holds a JSON list, expected an object"),
        (
            file_of(b"{"),
            "the header of FILE is not valid JSON: Expecting property name enclosed in double "
            "quotes: line 1 column 2 (char 1)",
        ),
        (
            file_of(b'{"\xff": 1}'),
            "the header of FILE is not valid JSON: 'utf-8' codec can't decode byte 0xff in "
            "position 2: invalid start byte",
        ),
        (
            file_of(rb'{"\ud800": 1}'),
            "the header of FILE is not valid JSON: 'utf-8' codec can't encode character "
            r"'\ud800' in position 2: surrogates not allowed",
        ),
        (
            file_of(b"[" * 100_000),
            "the header of FILE is nested too deeply, expected at most 100 levels",
        ),
        (
            file_of(b'{"t": {"shape": [], "shape": [1]}}'),
            "the header of FILE holds the name 'shape' twice",
        ),
    ],
)  # fmt: skip
def test_faults_of_a_header_are_named(content, message, tmp_path):
    length = int.from_bytes(content[:8], "little")
    message = message.replace("{end}", f"{8 + length + 8}").replace("{size}", f"{len(content)}")
    assert fault(tmp_path, content) == message


def test_a_name_twice_is_refused(tmp_path):
    one = json.dumps(F32)
    content = file_of(f'{{"t": {one}, "t": {one}}}'.encode(), bytes(8))
    assert fault(tmp_path, content) == "the header of FILE holds the name 't' twice"


def test_a_header_that_claims_much_allocates_nothing(tmp_path):
    tracemalloc.start()
    try:
        message = fault(tmp_path, file_of({"t": F32}, bytes(8), length=2**60))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert "cannot hold the header it announces" in message


def test_a_header_over_the_cap_is_refused_unread(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)  # takes no space
    tracemalloc.start()
    try:
        with pytest.raises(EditError) as caught:
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert str(caught.value) == (
        f"{path} announces a header of 100,000,001 bytes, expected at most 100,000,000"
    )


def test_a_file_that_cannot_be_opened_is_an_error_for_the_user(tmp_path):
    with pytest.raises(EditError, match="cannot be read: Is a directory"):
        read_header(tmp_path)
    with pytest.raises(EditError, match="cannot be read: No such file or directory"):
        read_header(tmp_path / "absent")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_json_of_any_bytes_is_an_object_or_a_refusal(text):
    try:
        assert isinstance(parse_object(text, "it"), dict)
    except EditError as error:
        assert str(error).startswith("it ")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "\u202ea", "x" * 1001])
def test_a_tensor_name_that_does_not_show_is_refused(name, tmp_path):
    found = fault(tmp_path, file_of({name: entry("F32", [1], 0, 4)}, bytes(4)))
    assert found.endswith("is no name: expected 1 to 1000 printable characters")
    assert "\n" not in found and len(found) < 400


def test_an_empty_tensor_of_a_size_that_torch_cannot_hold_is_refused(tmp_path):
    content = file_of({"t": entry("F32", [0, 2**62, 2**62], 0, 0)})
    assert fault(tmp_path, content).endswith(f"[0, {2**62}, {2**62}], which is too large")
