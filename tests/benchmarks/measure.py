"""What a command costs: wall seconds, peak memory and bytes read, its children included.

Linux only, standard library only. Also a command of its own, which prints JSON:

    python measure.py COMMAND [ARGUMENT...]
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

INTERVAL = 0.02  # seconds between samples
PROC = Path("/proc")


@dataclass(frozen=True)
class Cost:
    """What one run took.

    `anonymous` is memory that only the process's own allocations explain (RssAnon); `rss` adds the
    pages of mapped files and shared memory, which the kernel may drop or share. Both are summed
    over the processes alive at the same time. `read` counts bytes that passed through read calls:
    what is read through a memory map is not in it.
    """

    seconds: float
    rss: int  # bytes
    anonymous: int  # bytes
    read: int  # bytes


def family(pid: int) -> list[int]:
    """The process and its living descendants; nothing for a process that is gone."""
    members = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        members.append(current)
        try:
            for children in (PROC / f"{current}/task").glob("*/children"):
                waiting.extend(map(int, children.read_text().split()))
        except OSError:  # it ended, or one of its threads did
            continue
    return members


def fields(pid: int, file: str) -> dict[str, int]:
    """The integers of /proc/PID/`file` by their names; nothing for a process that is gone."""
    try:
        text = (PROC / f"{pid}/{file}").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    return {
        key: int(number)
        for key, value in pairs
        if (number := value.removesuffix(" kB").strip()).isdecimal()
    }


class Sampler(threading.Thread):
    """Follows a process and its children from a thread of this process until `stop` is set."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.rss = self.anonymous = self.read = 0
        self.stop = threading.Event()

    def sample(self) -> None:
        members = family(self.pid)
        status = [fields(member, "status") for member in members]
        rss = sum(entry.get("VmRSS", 0) for entry in status)
        high = max((entry.get("VmHWM", 0) for entry in status), default=0)  # misses no short peak
        anonymous = sum(entry.get("RssAnon", 0) for entry in status)
        # a parent's count takes over that of each child it has waited for: add the living only
        read = sum(fields(member, "io").get("rchar", 0) for member in members)
        self.rss = max(self.rss, rss * 1024, high * 1024)
        self.anonymous = max(self.anonymous, anonymous * 1024)
        self.read = max(self.read, read)

    def run(self) -> None:
        while not self.stop.wait(INTERVAL):
            self.sample()


def measure(command: Sequence[str]) -> Cost:
    """Run `command` to its end and return its cost.

    Raises:
        RuntimeError: the command failed; the message ends with the end of its output.
    """
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        sampler = Sampler(process.pid)
        sampler.start()
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - start
        except BaseException:
            process.kill()
            raise
        finally:
            sampler.stop.set()
            sampler.join()
            sampler.sample()  # ended but not yet waited for: its count of bytes is still there
            code = process.wait()
        if code != 0:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with exit code {code}:\n{tail}")
    return Cost(seconds, sampler.rss, sampler.anonymous, sampler.read)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: measure.py COMMAND [ARGUMENT...]")
    print(json.dumps(asdict(measure(sys.argv[1:])), indent=2))
