"""A process that grades what it is sent, one completion at a time. Imports nothing of torch."""

import contextlib
import faulthandler
import importlib.util
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.tasks.grade import Grade, grade

_GRACE = 30  # seconds that a worker outlives its own limit, in which its pool should end it


def main(incoming: int, outgoing: int) -> None:
    """Grades until the other end is closed; ends on its own where a grader hangs and the pool that
    should end it is gone."""
    jobs = Connection(incoming, writable=False)
    answers = Connection(outgoing, readable=False)
    nowhere = Path(os.devnull).open("w")  # to the end of the process
    try:
        timeout, memory, plugins = jobs.recv()
        _limit_memory(memory)
        try:
            for number, file in enumerate(plugins):
                _load(file, number)
        except BaseException as error:
            answers.send(("unusable", f"{type(error).__name__}: {error}"))
            return
        answers.send(("ready", None))
        while True:
            text, row = jobs.recv()
            faulthandler.dump_traceback_later(timeout + _GRACE, exit=True, file=nowhere)
            answer = _graded(text, row)
            faulthandler.cancel_dump_traceback_later()
            answers.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _graded(text: str, row: dict) -> tuple[str, object]:
    try:
        found = grade(text, row)
    except EditError as error:
        return "unusable", str(error)
    except BaseException as error:
        return "failed", f"{type(error).__name__}: {str(error)[:200]}"
    if not isinstance(found, Grade):
        return "failed", f"it returned {type(found).__name__}, expected a Grade"
    return "graded", (
        found.reward,
        bool(found.correct),
        bool(found.format_ok),
        str(found.why)[:200],
    )


def _load(file: str, number: int) -> None:
    spec = importlib.util.spec_from_file_location(f"rledit_grader_{number}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _limit_memory(most: int | None) -> None:
    if most is None:
        return
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))
