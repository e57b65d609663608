"""Writing a folder of known layout."""

import os
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from written import LAYOUT, WANTED, check, everything, raw, refused, write

from mergekit_rl.errors import EditError
from mergekit_rl.io import output
from mergekit_rl.io.output import MARKER
from mergekit_rl.io.writer import Writer


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_what_is_written_in_any_order_is_read_back(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything()[::-1])
        assert not out.exists()
        writer.finish({MARKER: b"{}", "core/config.json": b"{}"})
        size = writer.size
    check(out)
    assert (out / "core" / "config.json").read_bytes() == b"{}"
    assert size == sum(path.stat().st_size for path in out.rglob("*.safetensors"))


def test_threads_write_rows_at_their_offsets(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:

        def rows(start: int) -> None:
            for file, name in everything():
                data = raw(WANTED[file][name])
                for at in range(start, len(data), 4):
                    writer.write(file, name, data[at : at + 1], at)
            writer.commit(str(start), start)

        threads = [threading.Thread(target=rows, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.records == {str(start): start for start in range(4)}
        writer.finish({})
    check(out)


def test_a_write_out_of_its_tensor_is_refused(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        for at, count in ((0, 6), (1, 5), (5, 1), (-1, 1), (6, 0)):
            with pytest.raises(ValueError, match=f"{count} bytes at {at} do not fit odd U8"):
                writer.write("model.safetensors", "odd", memoryview(bytes(count)), at)
        wide = memoryview(bytes(8)).cast("i")  # two items, eight bytes
        with pytest.raises(ValueError, match="expected single bytes, got items of 4"):
            writer.write("model.safetensors", "odd", wide)
        write(writer, everything())
        writer.finish({})
    check(out)


def test_too_small_a_disk_is_refused_and_leaves_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(10, 3, 7)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: usage)
    assert refused(out) == (
        f"{out.parent / 'out.partial'} has 0.00 GB free and the output takes 0.00 GB; free some "
        "space or write elsewhere"
    )
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"\xff" * 8, b"{"])
def test_a_damaged_file_never_takes_its_place(damage: bytes, out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything())
        file = out.with_name("out.partial") / "data" / "model.safetensors"
        if damage:
            with file.open("r+b") as opened:
                opened.seek(8 if damage == b"{" else 0)
                opened.write(damage * (1 + (damage == b"{")))
        else:
            os.truncate(file, 50)
        with pytest.raises(EditError, match=r"was damaged while it was made .*--force") as caught:
            writer.finish({})
        assert str(caught.value).startswith(str(file))
    assert not out.exists()


def test_names_swapped_in_a_header_are_noticed(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything())
        file = out.with_name("out.partial") / "data" / "model.safetensors"
        file.write_bytes(file.read_bytes().replace(b'"odd"', b'"odr"'))
        with pytest.raises(EditError, match=r"was damaged while it was made \(other tensors\)"):
            writer.finish({})
    assert not out.exists()


def test_permissions_follow_the_umask(out: Path) -> None:
    source = out.parent / "tokenizer.json"
    source.touch(0o600)
    before = os.umask(0o027)
    try:
        with Writer(out, LAYOUT, "plan") as writer:
            write(writer, everything())
            writer.finish({"small": b"", "tokenizer.json": source})
    finally:
        os.umask(before)
    found = {path: oct(path.stat().st_mode & 0o777) for path in (out, *out.rglob("*"))}
    assert all(mode == ("0o750" if path.is_dir() else "0o640") for path, mode in found.items())


def test_discarding_leaves_nothing_and_closing_twice_is_harmless(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything()[:2])
        writer.discard()
        assert list(out.parent.iterdir()) == []
        writer.close()
    assert list(out.parent.iterdir()) == []
