"""What is kept between runs: whole or not at all, under a cap, and never in anybody's way."""

import hashlib
import math
import multiprocessing
import os
import threading
import time

import pytest
import torch

from mergekit_rl.io.cache import Cache

KIND = "decomposition"


def digest(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def tensors(seed=0, size=64):
    g = torch.Generator().manual_seed(seed)
    return {
        "U": torch.randn(size, 3, generator=g, dtype=torch.float64),
        "few": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "none": torch.zeros(0, 4),
    }


def entry(cache, number):
    return cache.folder / f"{KIND}-{digest(number)}.safetensors"


def filled(folder, count, limit=10**9, start=0):
    """A folder of `count` equal entries, the first unused for longest, and the bytes of one."""
    cache = Cache(folder, limit)
    now = time.time() - 1000
    for number in range(start, start + count):
        cache.put(KIND, digest(number), tensors(number))
        os.utime(entry(cache, number), (now + number, now + number))
    return entry(cache, start).stat().st_size


def held(folder, count=30):
    """The numbers of the entries in a folder."""
    return [number for number in range(count) if entry(Cache(folder), number).exists()]


def test_what_is_kept_comes_back_to_the_last_bit(tmp_path):
    figures = {
        "nan": math.nan, "inf": math.inf, "less": -math.inf, "third": 1 / 3, "tiny": 5e-324,
        "zero": -0.0, "whole": 1.0, "count": 7, "text": "gram ‖Δ‖", "nothing": None,
    }  # fmt: skip
    Cache(tmp_path / "c", 10**6).put(KIND, digest(1), tensors(), figures)
    kept = Cache(tmp_path / "c", 10**6).get(KIND, digest(1))
    assert list(map(repr, kept.figures.items())) == list(map(repr, figures.items()))
    assert list(kept.tensors) == ["U", "few", "none"]
    for name, tensor in tensors().items():
        assert kept.tensors[name].dtype == tensor.dtype
        assert torch.equal(kept.tensors[name], tensor) and kept.tensors[name].is_contiguous()


def test_transposed_tensors_are_kept_by_their_values(tmp_path):
    cache = Cache(tmp_path, 10**6)
    a = torch.arange(12.0).reshape(3, 4).T
    cache.put(KIND, digest(1), {"U": a})
    assert torch.equal(cache.get(KIND, digest(1)).tensors["U"], a)


def test_what_was_not_kept_is_not_found_and_makes_no_folder(tmp_path):
    cache = Cache(tmp_path / "c", 10**6)
    assert cache.get(KIND, digest(1)) is None
    assert not (tmp_path / "c").exists()


def test_an_entry_is_readable_by_nobody_else_and_leaves_no_other_file(tmp_path):
    filled(tmp_path / "c", 1)
    assert [path.name for path in (tmp_path / "c").iterdir()] == [f"{KIND}-{digest(0)}.safetensors"]
    assert (tmp_path / "c").stat().st_mode & 0o77 == 0
    assert next((tmp_path / "c").iterdir()).stat().st_mode & 0o77 == 0


def test_every_flipped_bit_and_every_truncation_is_a_miss_and_removed(tmp_path):
    cache = Cache(tmp_path, 10**6)
    cache.put(KIND, digest(0), {"U": torch.arange(3.0)}, {"a": 1})
    path = entry(cache, 0)
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(0, len(whole), 7)]
    damaged += [whole + b"\0", b"", b"garbage", b"\xff" * 200]
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        assert cache.get(KIND, digest(0)) is None
        assert not path.exists()
    path.write_bytes(whole)
    assert cache.get(KIND, digest(0)).figures == {"a": 1}


def test_an_entry_under_anothers_name_is_a_miss(tmp_path):
    filled(tmp_path, 1)
    cache = Cache(tmp_path, 10**6)
    entry(cache, 0).rename(entry(cache, 1))
    assert cache.get(KIND, digest(1)) is None
    filled(tmp_path, 1)
    entry(cache, 0).rename(tmp_path / f"rank-{digest(0)}.safetensors")
    assert cache.get("rank", digest(0)) is None


def test_a_folder_or_a_pipe_in_an_entrys_place_is_a_miss_and_stays(tmp_path):
    cache = Cache(tmp_path, 10**6)
    entry(cache, 0).mkdir()
    os.mkfifo(entry(cache, 1))
    for number in (0, 1):
        assert cache.get(KIND, digest(number)) is None
    cache.put(KIND, digest(0), tensors())
    assert entry(cache, 0).is_dir() and entry(cache, 1).is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {entry(cache, i).name for i in (0, 1)}


def test_those_unused_for_longest_go_first_and_reading_is_use(tmp_path):
    size = filled(tmp_path, 10)
    assert Cache(tmp_path, 10**9).get(KIND, digest(0)) is not None
    Cache(tmp_path, 10 * size).put(KIND, digest(10), tensors(10))
    # A tenth of the limit is freed besides, so that the folder is not scanned for each.
    assert held(tmp_path) == [0, 3, 4, 5, 6, 7, 8, 9, 10]


def test_the_limit_holds_over_many_entries(tmp_path):
    size = filled(tmp_path, 1)
    for number in range(1, 25):
        Cache(tmp_path, 5 * size).put(KIND, digest(number), tensors(number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5 * size
    assert held(tmp_path)[-1] == 24


def test_an_entry_above_the_limit_is_not_kept(tmp_path):
    size = filled(tmp_path, 3)
    Cache(tmp_path, size - 1).put(KIND, digest(5), tensors(5))
    assert held(tmp_path) == [0, 1, 2]


def test_a_run_that_needs_more_than_the_limit_keeps_what_fits_for_the_next(tmp_path):
    size = filled(tmp_path, 3)
    run = Cache(tmp_path, 4 * size)
    for number in range(10, 20):
        run.put(KIND, digest(number), tensors(number))
    assert held(tmp_path) == [10, 11, 12, 13]
    again = Cache(tmp_path, 4 * size)
    found = []
    for number in range(10, 20):
        found.append(again.get(KIND, digest(number)) is not None)
        if not found[-1]:
            again.put(KIND, digest(number), tensors(number))
    assert found == [True] * 4 + [False] * 6


def test_what_a_killed_run_left_goes_once_it_is_old(tmp_path):
    size = filled(tmp_path, 1)
    left = [tmp_path / f".{KIND}-{digest(3)}.safetensors.{tail}.tmp" for tail in ("old", "new")]
    for path in left:
        path.write_bytes(b"x")
    os.utime(left[0], (1, 1))
    Cache(tmp_path, 10 * size).put(KIND, digest(4), tensors(4))
    assert [path.exists() for path in left] == [False, True]


def test_a_folder_that_cannot_be_made_or_written_keeps_nothing_and_fails_nobody(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "c", 10**6)
    cache.put(KIND, digest(1), tensors())
    assert cache.get(KIND, digest(1)) is None
    filled(tmp_path / "c", 1)
    (tmp_path / "c").chmod(0o500)
    try:
        cache = Cache(tmp_path / "c", 10**6)
        assert cache.get(KIND, digest(0)) is not None
        if os.geteuid():  # root may write all the same
            cache.put(KIND, digest(1), tensors())
            assert held(tmp_path / "c") == [0]
    finally:
        (tmp_path / "c").chmod(0o700)


@pytest.mark.parametrize("call", ["write", "replace", "mkdir"])
def test_a_full_or_failing_disk_keeps_nothing_and_leaves_nothing(tmp_path, call):
    from disk_faults import Disk

    cache = Cache(tmp_path / "c", 10**6)
    if call == "write":  # buffered: the system's own error, at a limit of the process
        import resource
        import signal

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            cache.put(KIND, digest(1), tensors())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    else:
        probe = Disk()
        with probe.active():
            Cache(tmp_path / "probe", 10**6).put(KIND, digest(1), tensors())
        with Disk(probe.names.index(call) + 1, "EIO").active():
            cache.put(KIND, digest(1), tensors())
    assert list(tmp_path.glob("c/*")) == []
    cache.put(KIND, digest(2), tensors())  # it has stopped trying
    assert list(tmp_path.glob("c/*")) == []
    assert list(tmp_path.glob("c/.*")) == []


def test_a_nearly_full_disk_is_left_alone(tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 2**20))
    cache = Cache(tmp_path / "c", 10**6)
    cache.put(KIND, digest(1), tensors())
    assert cache.get(KIND, digest(1)) is None


def test_threads_share_one(tmp_path):
    size = filled(tmp_path, 1)
    cache = Cache(tmp_path, 12 * size)
    wrong = []

    def work(offset):
        try:
            for number in range(40):
                name = (number + offset) % 8
                kept = cache.get(KIND, digest(name))
                if kept is not None and not torch.equal(kept.tensors["U"], tensors(name)["U"]):
                    wrong.append(name)
                cache.put(KIND, digest(name), tensors(name))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and held(tmp_path) == list(range(8))
    assert not list(tmp_path.glob(".*"))


def _use(folder, limit, seed):
    """Reads and writes more entries than fit; exit code 1 where one is not what was written."""
    torch.set_num_threads(1)
    for number in range(60):
        name = (7 * number + seed) % 12
        cache = Cache(folder, limit)
        kept = cache.get(KIND, digest(name))
        if kept is not None and not torch.equal(kept.tensors["U"], tensors(name)["U"]):
            raise SystemExit(1)
        cache.put(KIND, digest(name), tensors(name))
        if number == 30 and seed == 0:
            cache.clear()


def test_processes_share_one(tmp_path):
    size = filled(tmp_path, 1)
    spawn = multiprocessing.get_context("spawn")
    running = [spawn.Process(target=_use, args=(tmp_path, 6 * size, seed)) for seed in (0, 5)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0, 0]
    assert not list(tmp_path.glob(".*"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8 * size


def test_listing_tells_kinds_sizes_and_times(tmp_path):
    size = filled(tmp_path, 3, limit=10**6)
    cache = Cache(tmp_path, 10**6)
    cache.put("measures", digest(9), figures={"k": 1})
    (tmp_path / "other.txt").write_text("x" * 1000)
    found = cache.listing().as_dict()
    small = (tmp_path / f"measures-{digest(9)}.safetensors").stat().st_size
    assert (found["folder"], found["limit"], found["entries"]) == (str(tmp_path), 10**6, 4)
    assert found["bytes"] == 3 * size + small
    one, two = found["kinds"]
    assert (one["kind"], one["entries"], one["bytes"]) == (KIND, 3, 3 * size)
    assert one["last_used"] - one["unused_since"] == pytest.approx(2, abs=1e-3)
    assert (two["kind"], two["entries"], two["bytes"]) == ("measures", 1, small)


def test_clear_removes_entries_and_nothing_else(tmp_path):
    size = filled(tmp_path / "c", 3)
    folder = tmp_path / "c"
    precious = tmp_path / "precious"
    precious.write_text("x")
    (folder / "notes.txt").write_text("x")
    (folder / f"mine-{digest(1)}.safetensors").write_text("x")
    (folder / f"{KIND}-short.safetensors").write_text("x")
    (folder / f"{KIND}-{digest(20)}.safetensors").symlink_to(precious)
    (folder / f"{KIND}-{digest(21)}.safetensors").mkdir()
    (folder / "sub").mkdir()
    filled(folder / "sub", 1)
    others = {path.name for path in folder.iterdir()} - {f.name for f in folder.glob(f"{KIND}-*")}
    (folder / f".{KIND}-{digest(3)}.safetensors.abc.tmp").write_bytes(b"12345")
    done = Cache(folder, 10**6).clear()
    assert (done.entries, done.bytes) == (4, 3 * size + 5)
    left = {f"{KIND}-{digest(n)}.safetensors" for n in (20, 21)} | {f"{KIND}-short.safetensors"}
    assert {path.name for path in folder.iterdir()} == others | left
    assert precious.read_text() == "x" and held(folder / "sub") == [0]


def test_a_cache_that_is_not_there_holds_nothing(tmp_path):
    cache = Cache(tmp_path / "none", 5)
    assert cache.listing().as_dict() == {
        "folder": str(tmp_path / "none"), "limit": 5, "entries": 0, "bytes": 0, "kinds": [],
    }  # fmt: skip
    assert cache.clear().entries == 0
    assert not (tmp_path / "none").exists()


def test_a_failing_read_is_a_miss_and_the_entry_stays(tmp_path):
    filled(tmp_path, 1)
    cache = Cache(tmp_path, 10**6)
    entry(cache, 0).chmod(0)
    if os.geteuid():
        assert cache.get(KIND, digest(0)) is None
    assert entry(cache, 0).exists()
