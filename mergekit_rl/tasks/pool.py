"""Grading in processes of their own: one that hangs or crashes costs one completion."""

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType

from mergekit_rl.errors import EditError
from mergekit_rl.tasks.grade import Grade, Row

log = logging.getLogger(__name__)

_START = 120  # seconds that a process may take to start on a busy machine
_START_TRIES = 3
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from mergekit_rl.tasks.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class GraderPool:
    """Processes that grade completions, in order, each within a time limit.

    They are started at once and run neither the calling script nor torch. A completion whose grader
    hangs, crashes or raises has the reward None, and `counts` tells how many there were.

        with GraderPool(workers=2, timeout=5) as pool:
            grades = pool.grade(texts, rows)

    Args:
        workers: processes.
        timeout: seconds a completion may take; its process is killed then.
        plugins: Python files with graders (`@grader`), run in every process.
        most_characters: of a completion; of a longer one the last ones are graded, with a piece of
            its start, where a thinking part opens.
        memory: bytes of address space a process may take; None for any.

    Attributes:
        counts: how many completions were `graded`, `timed out`, `crashed` and `failed` (raised).
    """

    def __init__(
        self,
        workers: int = 2,
        timeout: float = 5.0,
        *,
        plugins: Iterable[str | Path] = (),
        most_characters: int = 100_000,
        memory: int | None = 4 * 2**30,
    ) -> None:
        if workers < 1 or not 0 < timeout < math.inf or most_characters < 1:
            raise EditError(
                f"a pool of {workers} workers with {timeout} s and {most_characters} characters a "
                "completion, expected 1 or more workers, seconds above 0, 1 or more characters"
            )
        self.timeout = timeout
        self.counts: Counter[str] = Counter()
        self._most_characters = most_characters
        self._settings = (timeout, memory, [_python_file(file) for file in plugins])
        self._closed = False
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(_Worker(self._settings))

    def __enter__(self) -> "GraderPool":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        self._closed = True
        for worker in self._workers:
            worker.end()

    def grade(self, texts: Sequence[str], rows: Sequence[Row]) -> list[Grade]:
        """The grades of completions, in their order.

        An interrupt ends the processes that are at work and leaves the pool usable.

        Args:
            texts: completions. (N,)
            rows: what each answers. (N,)

        Raises:
            EditError: a plugin or an adapter cannot be loaded, or a row names no known grader.
        """
        if len(texts) != len(rows):
            raise ValueError(f"{len(texts)} texts and {len(rows)} rows, expected as many")
        if self._closed:
            raise ValueError("the pool is closed")
        grades: list[Grade | None] = [None] * len(texts)
        jobs = deque(range(len(texts)))
        try:
            for worker in self._workers:
                if worker.job is not None:  # left by an interrupt in the midst of another
                    worker.restart()
            while jobs or any(worker.job is not None for worker in self._workers):
                for worker in self._workers:
                    if worker.gone:
                        worker.restart()
                    if jobs and worker.ready and worker.job is None:
                        number = jobs.popleft()
                        job = (self._cut(texts[number]), rows[number])
                        worker.send(number, job, self.timeout)
                self._collect(grades, rows)
        except BaseException:
            for worker in self._workers:
                if worker.job is not None:
                    worker.restart()
            raise
        return grades

    def _collect(self, grades: list[Grade | None], rows: Sequence[Row]) -> None:
        """Waits until something happens to a worker, and deals with it."""
        waiting = {worker.answers: worker for worker in self._workers if worker.busy}
        soonest = min(worker.deadline for worker in waiting.values())
        reported = wait(list(waiting), max(0.0, soonest - time.monotonic()))
        for connection in reported:
            worker = waiting[connection]
            number = worker.job
            try:
                word, content = connection.recv()
            except (EOFError, OSError):
                how = worker.ended()
                worker.restart()
                if number is not None:
                    grades[number] = self._lost("crashed", f"grader crashed: {how}", rows[number])
                continue
            worker.rest()
            if word == "unusable":
                raise EditError(content if number is not None else self._unloadable(content))
            if word == "graded":
                self.counts["graded"] += 1
                grades[number] = Grade(*content)
            elif word == "failed":
                grades[number] = self._lost("failed", f"grader failed: {content}", rows[number])
        now = time.monotonic()
        for worker in waiting.values():
            if worker.busy and worker.deadline <= now and worker.answers not in reported:
                number = worker.job
                worker.restart()
                if number is not None:
                    why = f"grader timed out after {self.timeout:g} s"
                    grades[number] = self._lost("timed out", why, rows[number])

    def _cut(self, text: str) -> str:
        most = self._most_characters
        if len(text) <= most:
            return text
        start = min(most // 10, 1000)
        return text[:start] + text[start - most :]

    def _lost(self, what: str, why: str, row: Row) -> Grade:
        self.counts[what] += 1
        log.warning("%s: %s; no reward is given", row.get("id", "a completion"), why)
        return Grade(None, False, False, why)

    def _unloadable(self, error: str) -> str:
        files = ", ".join(map(str, self._settings[2]))
        return f"the graders in {files} cannot be loaded: {error}"


class _Worker:
    """One process and what it is at."""

    def __init__(self, settings: tuple) -> None:
        self._settings = settings
        self._tries = 0
        self._process: subprocess.Popen | None = None
        self._start()

    @property
    def busy(self) -> bool:
        """Whether something is to come from it."""
        return not self.ready or self.job is not None

    @property
    def gone(self) -> bool:
        """Whether the process has ended while nothing was asked of it."""
        ended = self._process is None or self._process.poll() is not None
        return self.ready and self.job is None and ended

    def send(self, number: int, job: tuple, timeout: float) -> None:
        """Gives it the completion `number` to grade."""
        self.job = number
        self.deadline = time.monotonic() + timeout
        self._put(job)

    def rest(self) -> None:
        """It has answered."""
        self.ready, self.job, self._tries = True, None, 0

    def ended(self) -> str:
        """How a process that closed its pipes ended, in words."""
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its pipes"
        if code < 0:
            try:
                return signal.Signals(-code).name
            except ValueError:
                return f"signal {-code}"
        return f"exit code {code}"

    def restart(self) -> None:
        """Ends the process and starts another.

        Raises:
            EditError: several in a row did not even start.
        """
        started = self.ready
        self.end()
        self._tries = 0 if started else self._tries + 1
        if self._tries >= _START_TRIES:
            raise EditError(
                f"grader processes do not start: {_START_TRIES} in a row ended before they were "
                f"ready; try {sys.executable} -c 'import mergekit_rl.tasks.worker'"
            )
        self._start()

    def end(self) -> None:
        """Kills the process with all that it started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()
        self._jobs.close()
        self.answers.close()
        self._process = None

    def _start(self) -> None:
        theirs_in, self._jobs = Pipe(duplex=False)
        self.answers, theirs_out = Pipe(duplex=False)
        ends = (theirs_in.fileno(), theirs_out.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path), *map(str, ends)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a grader prints is no result
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=ends,
            start_new_session=True,  # an interrupt at the keyboard is its pool's business
        )
        theirs_in.close()
        theirs_out.close()
        self.ready, self.job = False, None
        self.deadline = time.monotonic() + _START
        self._put(self._settings)

    def _put(self, message: tuple) -> None:
        with contextlib.suppress(OSError):  # it is gone, which its other pipe tells `_collect`
            self._jobs.send(message)


def _python_file(file: str | Path) -> str:
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise EditError(f"--plugin {file} is no Python file here, expected a path like mine.py")
    return str(path.resolve())
