"""`rledit cache`."""

from datetime import datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mergekit_rl.io.cache import Freed, Listing


@click.group("cache", short_help="List or clear what earlier runs kept.")
def command() -> None:
    """What sweeps of `sar` and `inspect` keep for further runs over the same weights.

    It lies in $RLEDIT_CACHE, else in $XDG_CACHE_HOME/rledit, else in ~/.cache/rledit, and takes at
    most $RLEDIT_CACHE_LIMIT, such as 500MB; else 10GB. 0 keeps nothing.
    """


@command.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def listed(as_json: bool) -> None:
    """Say what it holds, how large that is, and when it was last used."""
    from mergekit_rl.io.cache import Cache
    from rledit.show import print_result

    print_result(Cache().listing(), as_json, _listing_text)


@command.command("clear")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def cleared(as_json: bool) -> None:
    """Remove all it holds, and nothing else that lies in its folder."""
    from mergekit_rl.io.cache import Cache
    from rledit.show import print_result

    print_result(Cache().clear(), as_json, _freed_text)


def _listing_text(found: "Listing") -> str:
    text = f"{found.folder}: {_count(found.entries)}, {_size(found.bytes)} of {_size(found.limit)}"
    rows = [("", "entries", "size", "unused since", "last used")]
    for row in found.kinds:
        dates = (_date(row["unused_since"]), _date(row["last_used"]))
        rows.append((row["kind"], f"{row['entries']:,}", _size(row["bytes"]), *dates))
    table = [f"  {a:<13} {b:>8} {c:>10}  {d:<16}  {e:<16}".rstrip() for a, b, c, d, e in rows]
    return "\n".join([text, *(table if found.kinds else [])])


def _freed_text(done: "Freed") -> str:
    return f"{done.folder}: removed {_count(done.entries)}, {_size(done.bytes)}"


def _count(entries: int) -> str:
    return f"{entries:,} {'entry' if entries == 1 else 'entries'}"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
