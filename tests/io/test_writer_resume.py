"""Going on from an unfinished folder, or not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from written import LAYOUT, check, everything, refused, write

from mergekit_rl.errors import EditError
from mergekit_rl.io.output import MARKER
from mergekit_rl.io.writer import Writer


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def unfinished(out: Path) -> Path:
    """`out` of a run that stopped after two tensors."""
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything()[:2])
    return out


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


def test_what_an_interrupted_finish_added_and_is_not_wanted_any_more_goes(out: Path) -> None:
    with Writer(out, LAYOUT, "plan") as writer:
        write(writer, everything())
        with pytest.raises(EditError, match=r"lost\.json failed: No such file or directory"):
            writer.finish({"core/merges.txt": b"", "lost.json": out.parent / "lost.json"})
    with Writer(out, LAYOUT, "plan", resume=True) as writer:
        writer.finish({"vocab.json": b"{}"})
    check(out)
    assert {path.name for path in out.rglob("*") if path.is_file()} == {
        "vocab.json", *(Path(file).name for file in LAYOUT)
    }  # fmt: skip


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
