"""Writing a folder of known layout."""

import os
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mergekit_rl.errors import EditError
from mergekit_rl.io import output
from mergekit_rl.io.output import MARKER
from mergekit_rl.io.writer import Writer

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}


def tensors() -> dict[str, dict[str, torch.Tensor]]:
    """{file: {name: tensor}}, with every kind of shape."""
    g = torch.Generator().manual_seed(0)
    return {
        "core/adapter.safetensors": {
            "a": torch.randn(5, 7, generator=g),
            "scalar": torch.tensor(3.5),
            "none": torch.zeros(0, 7),
        },
        "model.safetensors": {
            "stack": torch.randn(3, 4, 2, generator=g).bfloat16(),
            "odd": torch.arange(5, dtype=torch.uint8),
            "counts": torch.arange(6),
        },
        "none.safetensors": {"none": torch.zeros(2, 0)},
    }


WANTED = tensors()
LAYOUT = {
    file: {name: (DTYPES[t.dtype], tuple(t.shape)) for name, t in held.items()}
    for file, held in WANTED.items()
}


def raw(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def everything() -> list[tuple[str, str]]:
    return [(file, name) for file, held in WANTED.items() for name in held]


def write(writer: Writer, which: list[tuple[str, str]]) -> None:
    for file, name in which:
        writer.write(file, name, raw(WANTED[file][name]))
        writer.commit(f"{file} {name}", {"name": name})


def check(out: Path) -> None:
    """Whether a reader of another make finds every tensor."""
    for file, held in WANTED.items():
        found = load_file(out / file)
        assert found.keys() == held.keys()
        for name, tensor in held.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert not out.with_name("out.partial").exists()


def refused(out: Path, key: str = "plan", layout=LAYOUT, **flags: bool) -> str:
    with pytest.raises(EditError) as caught:
        Writer(out, layout, key, **flags)
    return str(caught.value)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def unfinished(out: Path) -> Path:
    """`out` of a run that stopped after two tensors."""
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything()[:2])
    return out


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


def test_a_second_run_waits_for_the_first(out: Path) -> None:
    with Writer(out, LAYOUT, "plan"):
        for flags in ({}, {"resume": True}, {"force": True}):
            assert refused(out, **flags) == f"another run is writing {out}; wait for it or stop it"
    Writer(out, LAYOUT, "plan", resume=True).close()


def test_a_kill_frees_the_folder(out: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from mergekit_rl.io.writer import Writer\n"
        "w = Writer(Path(sys.argv[1]), {'a.safetensors': {'a': ('U8', (1,))}}, 'plan')\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    layout = {"a.safetensors": {"a": ("U8", (1,))}}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"open\n"
        assert "another run is writing" in refused(out, layout=layout, resume=True)
        child.send_signal(signal.SIGKILL)
        child.wait()
    Writer(out, layout, "plan", resume=True).close()


def test_a_lock_that_was_removed_meanwhile_does_not_count(out: Path) -> None:
    from mergekit_rl.io.journal import Lock

    first = Lock(out.parent / "lock", out)
    (out.parent / "lock").unlink()
    Lock(out.parent / "lock", out).release()  # another file, held by nobody
    first.release()


def test_an_unfinished_run_is_neither_resumed_nor_discarded_unasked(unfinished: Path) -> None:
    assert refused(unfinished) == (
        f"{unfinished}.partial holds an unfinished run (2 tensors done): continue it with --resume "
        "or discard it with --force"
    )
    with Writer(unfinished, LAYOUT, "plan", resume=True) as writer:
        assert writer.records == {
            f"core/adapter.safetensors {name}": {"name": name} for name in ("a", "scalar")
        }
        write(writer, everything()[2:])
        writer.finish({})
    check(unfinished)


def test_a_resume_under_another_plan_or_layout_is_refused(unfinished: Path) -> None:
    text = (
        f"{unfinished}.partial was begun with other inputs or options; repeat those, or discard "
        "it with --force and without --resume"
    )
    other = {file: dict(reversed(held.items())) for file, held in LAYOUT.items()}
    for force in (False, True):
        assert refused(unfinished, "other", resume=True, force=force) == text
        assert refused(unfinished, layout=other, resume=True, force=force) == text
    with Writer(unfinished, LAYOUT, "plan", resume=True) as writer:
        assert len(writer.records) == 2


def test_force_discards_an_unfinished_run_of_any_plan(unfinished: Path) -> None:
    with Writer(unfinished, LAYOUT, "other", force=True) as writer:
        assert writer.records == {}
        write(writer, everything())
        writer.finish({})
    check(unfinished)


def test_force_with_resume_goes_on_and_replaces(unfinished: Path) -> None:
    unfinished.mkdir()
    (unfinished / MARKER).write_bytes(b"old")
    with Writer(unfinished, LAYOUT, "plan", resume=True, force=True) as writer:
        assert len(writer.records) == 2
        write(writer, everything()[2:])
        writer.finish({})
    check(unfinished)
    assert not (unfinished / MARKER).exists()


@pytest.mark.parametrize(
    "torn",
    [b'{"unit": "x", "record": "' + b"x" * 99, bytes(99), b'\xff\xfe\n{"unit": "y"', b"[1]\n" * 20],
)
def test_a_torn_end_of_the_journal_is_dropped(torn: bytes, unfinished: Path) -> None:
    journal = unfinished.with_name("out.partial") / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    with Writer(unfinished, LAYOUT, "plan", resume=True) as writer:
        assert len(writer.records) == 2
        writer.commit("more", 1)
    assert journal.read_bytes() == whole + b'{"unit": "more", "record": 1}\n'


def test_a_torn_key_is_a_run_that_did_nothing(unfinished: Path) -> None:
    journal = unfinished.with_name("out.partial") / "journal"
    journal.write_bytes(journal.read_bytes()[:20])
    with Writer(unfinished, LAYOUT, "plan", resume=True) as writer:
        assert writer.records == {}


def test_a_journal_without_a_key_is_damaged(unfinished: Path) -> None:
    journal = unfinished.with_name("out.partial") / "journal"
    journal.write_bytes(b"other\n" + journal.read_bytes())
    assert refused(unfinished, resume=True) == (
        f"{journal} is damaged: start over with --force instead of --resume"
    )
    assert journal.exists()
    Writer(unfinished, LAYOUT, "plan", force=True).close()


@pytest.mark.parametrize("damage", ["absent", "short", "header"])
def test_a_resume_with_lost_files_starts_over(damage: str, unfinished: Path) -> None:
    file = unfinished.with_name("out.partial") / "data" / "model.safetensors"
    if damage == "absent":
        file.unlink()
    elif damage == "short":
        os.truncate(file, file.stat().st_size - 1)
    else:
        file.write_bytes(b"x" * file.stat().st_size)
    with Writer(unfinished, LAYOUT, "plan", resume=True) as writer:
        assert writer.records == {}
        write(writer, everything())
        writer.finish({})
    check(unfinished)


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


def test_a_folder_that_came_meanwhile_is_not_lost(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything())
        out.mkdir()
        (out / "mine").touch()
        with pytest.raises(EditError) as caught:
            writer.finish({})
        assert str(caught.value) == (
            f"--out {out} exists and is not empty; choose another or add --force. The finished "
            f"result waits in {out}.partial: move {out} away and repeat the command with --resume"
        )
    assert (out / "mine").exists()
    (out / "mine").unlink()
    with Writer(out, LAYOUT, "plan", resume=True) as writer:
        assert len(writer.records) == len(everything())
        writer.finish({})
    check(out)


def test_a_partial_folder_of_someone_else_is_not_touched(out: Path) -> None:
    theirs = out.with_name("out.partial") / "data"
    theirs.mkdir(parents=True)
    (theirs / "mine").touch()
    for flags in ({}, {"force": True}, {"resume": True}):
        assert "it is no unfinished run" in refused(out, **flags)
    assert (theirs / "mine").exists()


def test_a_failure_of_the_caller_is_not_hidden_by_closing(out: Path) -> None:
    with pytest.raises(KeyError, match="first"), Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything()[:1])
        for fd in writer._fds.values():
            os.close(fd)  # now every sync and close fails
        raise KeyError("first")
    with Writer(out, LAYOUT, "plan", resume=True) as writer:
        assert writer.records == {}


def test_discarding_leaves_nothing_and_closing_twice_is_harmless(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything()[:2])
        writer.discard()
        assert list(out.parent.iterdir()) == []
        writer.close()
    assert list(out.parent.iterdir()) == []
