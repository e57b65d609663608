"""Where the cache lies and how large it may be, by the environment."""

import pytest

from mergekit_rl import EditError
from mergekit_rl.io.cache import Cache, parse_size, usable_cache


def test_where_it_lies_is_told_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RLEDIT_CACHE", str(tmp_path / "own"))
    assert Cache().folder == tmp_path / "own"
    monkeypatch.setenv("RLEDIT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().folder == tmp_path / "xdg" / "rledit"
    monkeypatch.setenv("HOME", str(tmp_path))
    for wrong in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", wrong)
        assert Cache().folder == tmp_path / ".cache" / "rledit"
    monkeypatch.setenv("RLEDIT_CACHE", "~/x")
    assert Cache().folder == tmp_path / "x"


def test_how_large_it_may_be_is_told_by_the_environment(monkeypatch):
    monkeypatch.delenv("RLEDIT_CACHE_LIMIT")
    assert Cache().limit == 10 * 10**9
    for text, size in (
        ("10GB", 10**10), ("500 MB", 5 * 10**8), ("1.5g", 15 * 10**8), ("2GiB", 2**31),
        ("7", 7), ("3kb", 3000), ("12 b", 12), ("0", 0),
    ):  # fmt: skip
        monkeypatch.setenv("RLEDIT_CACHE_LIMIT", text)
        assert Cache().limit == size
    assert usable_cache() is None  # 0 turns it off


@pytest.mark.parametrize("text", ["lots", "-1", "1e9", "10 XB", "GB", "1,000", "5iB", "٣GB", " "])
def test_a_limit_that_is_no_size_is_refused(text):
    with pytest.raises(EditError) as caught:
        parse_size(text, "RLEDIT_CACHE_LIMIT")
    expected = f"RLEDIT_CACHE_LIMIT is {text!r}, expected a size such as 500MB or 10GB"
    assert str(caught.value) == expected


def test_a_cache_that_is_no_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLEDIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(EditError) as caught:
        Cache()
    expected = f"the cache {tmp_path / 'file'} is no folder: name another in RLEDIT_CACHE"
    assert str(caught.value) == expected
