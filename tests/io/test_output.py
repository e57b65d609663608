"""Where results may be written."""

import os
from pathlib import Path

import pytest

from mergekit_rl.errors import EditError
from mergekit_rl.io.output import MARKER, check_output, check_space


def ours(folder: Path) -> Path:
    """A folder as an earlier run left it."""
    folder.mkdir()
    (folder / MARKER).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"old")
    return folder


def refused(out: Path, *inputs: Path, force: bool = False, resume: bool = False) -> str:
    """The text of the refusal."""
    with pytest.raises(EditError) as caught:
        check_output(out, force=force, inputs=inputs, resume=resume)
    return str(caught.value)


def test_a_new_or_empty_folder_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        check_output(tmp_path / name, force=False, inputs=[tmp_path / "base"])


def test_a_folder_that_holds_something_is_refused_without_force(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    assert refused(out) == (f"--out {out} exists and is not empty; choose another or add --force")
    check_output(out, force=True, inputs=[])


def test_force_replaces_only_what_carries_the_marker(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    (out / MARKER).unlink()
    assert refused(out, force=True) == (
        f"--force replaces only folders written by rledit, and {out} holds no {MARKER}; "
        "remove it yourself if it can go"
    )


def test_force_never_replaces_the_working_directory_or_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ours(tmp_path / "out")
    (out / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(out / "deep")
    assert refused(out, force=True) == (
        f"--force may not replace {out}: the working directory lies in it"
    )
    monkeypatch.chdir(tmp_path)
    (out / "deep" / "er" / ".git").mkdir()
    assert refused(out, force=True) == f"--force may not replace {out}: it holds a .git"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("place", [".", "in/side", "link"])
def test_an_output_never_holds_an_input(place: str, force: bool, tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    (out / "in" / "side").mkdir(parents=True)
    (tmp_path / "link").symlink_to(out / "in")
    given = tmp_path / "link" if place == "link" else out / place
    assert refused(out, tmp_path / "other", given, force=force) == (
        f"--out {out} and the input {given} hold one another; choose another"
    )


def test_an_output_never_lies_in_an_input_nor_the_partial_folder_over_one(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    assert "hold one another" in refused(base / "out", base)
    (tmp_path / "alias").symlink_to(base)
    assert "hold one another" in refused(tmp_path / "alias" / "out", base)
    taken = tmp_path / "out.partial"
    taken.mkdir()
    assert "hold one another" in refused(tmp_path / "out", taken)
    assert "hold one another" in refused(tmp_path / "out", taken / "data")


def test_names_that_are_no_new_folder_are_refused(tmp_path: Path) -> None:
    for name in ("", ".", "..", "/", "a/.."):
        assert refused(Path(name)) == f"--out {Path(name)} names no new folder"
    lost = tmp_path / "no" / "out"
    assert refused(lost) == (
        f"--out {lost}: the folder {tmp_path / 'no'} does not exist; make it first"
    )
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        assert refused(tmp_path / name, force=True) == (
            f"--out {tmp_path / name} exists and is no folder; choose another name"
        )
    assert refused(tmp_path / "file" / "out").endswith("does not exist; make it first")
    assert refused(tmp_path / ("n" * 300)).endswith(": File name too long; choose another")


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs a mount point")
def test_a_mount_point_cannot_be_replaced_by_a_rename() -> None:
    assert refused(Path("/proc")) == "--out /proc is a mount point; name a folder inside it"


def test_a_partial_folder_that_is_no_unfinished_run_is_left_alone(tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    check_output(tmp_path / "out", force=False, inputs=[])
    (partial / "data").mkdir()
    text = f"{partial} is in the way: it is no unfinished run; move it away"
    assert refused(tmp_path / "out", force=True) == text
    (partial / "lock").touch()
    check_output(tmp_path / "out", force=False, inputs=[])
    (partial / "notes.txt").touch()
    assert refused(tmp_path / "out", force=True, resume=True) == text
    (tmp_path / "b.partial").symlink_to(tmp_path)
    (tmp_path / "c.partial").touch()
    for name in "bc":
        assert refused(tmp_path / name) == (
            f"{tmp_path / name}.partial is in the way: it is no folder; move it away"
        )


def test_a_resume_does_not_replace_what_stands_without_force(tmp_path: Path) -> None:
    out = ours(tmp_path / "out")
    assert "choose another or add --force" in refused(out, resume=True)
    partial = tmp_path / "out.partial"
    (partial / "data").mkdir(parents=True)
    (partial / "lock").touch()
    (partial / "journal").touch()
    assert refused(out, resume=True) == (
        f"--out {out} exists and is not empty; add --force to --resume to have it replaced"
    )
    check_output(out, force=True, inputs=[], resume=True)
    (partial / "data").rmdir()  # killed after the rename: what stands is the result
    check_output(out, force=False, inputs=[], resume=True)
    (out / MARKER).unlink()
    assert "exists and is not empty" in refused(out, resume=True)
    assert f"holds no {MARKER}" in refused(out, resume=True, force=True)


def test_a_full_disk_is_known_before_the_work(tmp_path: Path) -> None:
    check_space(tmp_path, 0)
    with pytest.raises(EditError, match=r"has \d+\.\d\d GB free and the output takes 1000000000\."):
        check_space(tmp_path, 10**18)
