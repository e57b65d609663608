"""`rledit cache`, and the switches of the commands that fill it."""

import json

from click.testing import CliRunner
from pairs import make_pair

from rledit.main import cli


def rledit(*args):
    done = CliRunner().invoke(cli, list(map(str, args)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_an_empty_cache_says_where_it_would_be(cached):
    assert rledit("cache", "ls").stdout == f"{cached}: 0 entries, 0 bytes of 10.0 GB\n"
    assert rledit("cache", "clear").stdout == f"{cached}: removed 0 entries, 0 bytes\n"


def test_ls_and_clear_tell_what_sweep_and_inspect_kept(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    rledit("sar", base, rl, "--out", tmp_path / "x", "--rank", 1, "--rank", 3)
    rledit("inspect", base, rl)
    size = sum(path.stat().st_size for path in cached.iterdir())
    lines = rledit("cache", "ls").stdout.splitlines()
    assert lines[0] == f"{cached}: 28 entries, {size / 1e3:.1f} kB of 10.0 GB"
    assert lines[1].split() == ["entries", "size", "unused", "since", "last", "used"]
    assert [line.split()[:2] for line in lines[2:]] == [["decomposition", "14"], ["measures", "14"]]
    found = json.loads(rledit("cache", "ls", "--json").stdout)
    assert (found["entries"], found["bytes"], found["limit"]) == (28, size, 10**10)
    assert [row["kind"] for row in found["kinds"]] == ["decomposition", "measures"]
    done = json.loads(rledit("cache", "clear", "--json").stdout)
    assert done == {"folder": str(cached), "entries": 28, "bytes": size}
    assert list(cached.iterdir()) == []


def test_the_switches_turn_it_off_and_on(tmp_path, cached):
    base, rl = make_pair(tmp_path)
    rledit("sar", base, rl, "--out", tmp_path / "a", "--rank", 1, "--rank", 3, "--no-cache")
    rledit("sar", base, rl, "--out", tmp_path / "b", "--rank", 3)
    rledit("inspect", base, rl, "--no-cache")
    assert not cached.exists()
    rledit("sar", base, rl, "--out", tmp_path / "c", "--rank", 3, "--cache")
    assert len(list(cached.iterdir())) == 14


def test_a_wrong_limit_is_one_line(tmp_path, cached, monkeypatch):
    monkeypatch.setenv("RLEDIT_CACHE_LIMIT", "big")
    done = rledit("cache", "ls")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: RLEDIT_CACHE_LIMIT is 'big', expected a size such as 500MB or 10GB\n"
    )


def test_help_says_where_it_lies():
    text = rledit("cache", "--help").stdout
    assert "$RLEDIT_CACHE" in text and "clear" in text and "ls" in text
    assert rledit("cache", "empty").exit_code == 2
