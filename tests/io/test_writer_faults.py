"""A fault at every call that changes the disk; then a resume gives the bytes of a quiet run."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disk_faults import CHANGES, ERRORS, KILLS, SYNCS, SYSTEM_WRITES, WRITES, Disk, killed

from mergekit_rl.errors import EditError
from mergekit_rl.io.output import MARKER, check_output, partial_of
from mergekit_rl.io.writer import Writer

LAYOUT = {
    "model/a.safetensors": {"w1": ("F32", (4, 8)), "none": ("F32", (0, 4)), "one": ("F32", ())},
    "b.safetensors": {"w2": ("BF16", (8,)), "w3": ("U8", (5,))},
}
UNITS = {
    "first": [("model/a.safetensors", "w1", 64, 64), ("model/a.safetensors", "w1", 0, 64)],
    "second": [("b.safetensors", "w3", 0, 5), ("model/a.safetensors", "none", 0, 0)],
    "third": [("b.safetensors", "w2", 0, 16)],
    "fourth": [("model/a.safetensors", "one", 0, 4)],
}
OLD = {MARKER: b"old", "old/b.safetensors": b"old weights"}


def content(name: str, count: int, at: int) -> memoryview:
    """Bytes that tell tensor and place."""
    return memoryview(bytes((sum(name.encode()) + at + i) % 251 + 1 for i in range(count)))


def run(out: Path, *, resume: bool = False, force: bool = False, key: str = "plan") -> list[str]:
    """A whole run, as the pipeline makes it; the units it did."""
    check_output(out, force=force, inputs=[], resume=resume)
    done = []
    with Writer(out, LAYOUT, key, resume=resume, force=force) as writer:
        for unit, writes in UNITS.items():
            if unit not in writer.records:
                for file, name, at, count in writes:
                    writer.write(file, name, content(name, count, at), at)
                writer.commit(unit, {"unit": unit, "share": 0.1})
                done.append(unit)
        assert writer.records == {unit: {"unit": unit, "share": 0.1} for unit in UNITS}
        source = out.parent / "tokenizer.json"
        writer.finish({MARKER: b"new", "model/config.json": b"{}\n", source.name: source})
    return done


def files_of(folder: Path) -> dict[str, bytes]:
    """{path within: content}, {} where there is no folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def calls(start: Path, go: Callable[[Path], object], place: Path) -> list[str]:
    """The names of the calls that `go` makes when nothing goes wrong."""
    shutil.copytree(start, place)
    with Disk().active() as disk:
        go(place / "out")
    shutil.rmtree(place)
    return disk.names


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted run."""
    return files_of(_start(tmp_path_factory.mktemp("quiet"), [run]) / "out")


def _start(folder: Path, steps: list[Callable[[Path], object]], old: bool = False) -> Path:
    (folder / "tokenizer.json").write_bytes(b"words " * 20)
    for name, data in OLD.items() if old else ():
        (folder / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / name).write_bytes(data)
    for step in steps:
        step(folder / "out")
    return folder


def _kill_in(name: str, which: int = -1, **flags: bool | str) -> Callable[[Path], None]:
    """A step that is killed before that one of its calls of that name; −1 is the last."""

    def step(out: Path) -> None:
        spare = out.parent / "spare"
        shutil.copytree(out.parent, spare, ignore=lambda *_: ["spare"])
        with Disk().active() as disk:
            run(spare / "out", **flags)
        shutil.rmtree(spare)
        numbers = [number for number, found in enumerate(disk.names, 1) if found == name]
        assert killed(lambda: run(out, **flags), Disk(numbers[which], "kill before"))

    return step


def scenarios() -> dict[str, tuple[bool, list[Callable[[Path], object]], dict[str, bool]]]:
    """{what: (whether a finished folder stands, what happened before, the run's flags)}."""
    in_work = _kill_in("fdatasync", 2)
    return {
        "fresh": (False, [], {}),
        "replacing": (True, [], {"force": True}),
        "resumed": (False, [in_work], {"resume": True}),
        "resumed before the rename": (False, [_kill_in("rename")], {"resume": True}),
        "replacing, resumed between the renames": (
            True, [_kill_in("rename", force=True)], {"resume": True, "force": True},
        ),
        "resumed after the rename": (
            True, [_kill_in("rmdir", 0, force=True)], {"resume": True, "force": True},
        ),
        "beginning anew after the rename": (
            True, [_kill_in("rmdir", 0, force=True)], {"force": True},
        ),
        "discarding": (True, [_kill_in("rename", force=True, key="other")], {"force": True}),
    }  # fmt: skip


SCENARIOS = scenarios()


@pytest.fixture(params=SCENARIOS)
def scenario(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Path, Callable[[Path], object], dict[str, bool]]:
    """The folder to begin in, the run, and its flags."""
    old, steps, flags = SCENARIOS[request.param]
    (tmp_path / "start").mkdir()
    start = _start(tmp_path / "start", steps, old)
    return start, lambda out: run(out, **flags), flags


def check_never_half(out: Path, quiet: dict[str, bytes]) -> None:
    """`out` is absent, empty, the old folder, or the new one."""
    assert files_of(out) in ({}, OLD, quiet)
    assert not out.exists() or files_of(out)


def go_on(out: Path, quiet: dict[str, bytes], force: bool) -> None:
    """What a user does after the fault, and what must come of it."""
    if files_of(out) != quiet or not cleared(out):
        try:
            run(out, resume=True, force=force)
        except EditError as error:  # the discarded run was still there
            assert "begun with other inputs" in str(error)
            assert files_of(out) in ({}, OLD)
            run(out, force=True)
    assert files_of(out) == quiet
    assert cleared(out)


def cleared(out: Path) -> bool:
    """Whether no more than a lock that nobody holds is left of the run."""
    left = partial_of(out)
    return not left.exists() or {path.name for path in left.iterdir()} <= {"lock"}


MOST_TO_LOSE = (*SYNCS, "rename", "unlink", "rmdir")
POSSIBLE = {
    "short": SYSTEM_WRITES,
    "short, then ENOSPC": WRITES,
    "kill midway": WRITES,
    "EIO, writes lost": SYNCS,
    "kill after": CHANGES,  # after any other call is before the next
    "power cut": MOST_TO_LOSE,
    "power cut, journal survives": MOST_TO_LOSE,
}


def places(names: list[str], kind: str) -> Iterator[int]:
    """The calls at which a kind of fault makes sense."""
    for number, name in enumerate(names, 1):
        if name in POSSIBLE.get(kind, names) and (name != "close" or kind == "EIO"):
            yield number


@pytest.mark.parametrize("kind", KILLS)
def test_killed_anywhere_a_resume_gives_the_same_bytes(
    scenario: tuple, kind: str, tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    start, go, flags = scenario
    names = calls(start, go, tmp_path / "count")
    for number in places(names, kind):
        place = tmp_path / str(number)
        shutil.copytree(start, place)
        assert killed(lambda out=place / "out": go(out), Disk(number, kind))
        check_never_half(place / "out", quiet)
        go_on(place / "out", quiet, flags.get("force", False))
        shutil.rmtree(place)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_anywhere_is_one_line_and_a_resume_gives_the_same_bytes(
    scenario: tuple, kind: str, tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    start, go, flags = scenario
    names = calls(start, go, tmp_path / "count")
    raised = 0
    for number in places(names, kind):
        place = tmp_path / str(number)
        shutil.copytree(start, place)
        open_before = len(list(Path("/proc/self/fd").iterdir()))
        try:
            with Disk(number, kind).active():
                go(place / "out")
        except EditError as error:
            raised += 1
            assert "\n" not in str(error)
        else:
            assert files_of(place / "out") == quiet
        assert len(list(Path("/proc/self/fd").iterdir())) == open_before
        check_never_half(place / "out", quiet)
        go_on(place / "out", quiet, flags.get("force", False))
        shutil.rmtree(place)
    assert raised == 0 if kind == "short" else raised or not set(names) & set(WRITES)


@pytest.mark.parametrize("seed", range(30))
def test_killed_again_and_again_it_still_ends_in_the_same_bytes(
    seed: int, tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    chance = random.Random(seed)
    old = chance.random() < 0.5
    start = _start(tmp_path, [], old)
    out = start / "out"
    flags = {"force": old}
    while True:
        disk = Disk(chance.randrange(1, 90), chance.choice(KILLS))
        if not killed(lambda: run(out, **flags), disk):
            break
        check_never_half(out, quiet)
        if files_of(out) == quiet and cleared(out):
            break
        flags["resume"] = True
    assert files_of(out) == quiet


def test_a_kill_late_in_the_run_costs_only_the_last_units(tmp_path: Path) -> None:
    start = _start(tmp_path, [_kill_in("rename")])
    assert run(start / "out", resume=True) == []
    shutil.rmtree(start / "out")
    _kill_in("fdatasync", 2)(start / "out")
    assert run(start / "out", resume=True) == ["third", "fourth"]
