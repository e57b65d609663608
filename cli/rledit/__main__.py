"""The process around the commands: `rledit`, or `python -m rledit`."""

import gc
import os
import sys


def main() -> None:
    """Runs the command line and ends the process."""
    # Importing torch makes millions of objects that stay: looking for garbage among them takes a
    # tenth of a second.
    gc.disable()
    _keep_freed_memory()
    from rledit.main import cli

    try:
        cli()
        code = 0
    except SystemExit as done:
        if isinstance(done.code, str):
            print(done.code, file=sys.stderr)
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    # Everything is written and closed; unloading torch's libraries would take another 0.2 s.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _keep_freed_memory() -> None:
    """Has glibc reuse the matrices that are freed, rather than give their pages back to the system
    and fault them in again for the next."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library
    mallopt(mmap_threshold, 2**30)
    mallopt(trim_threshold, 2**29)
    mallopt(arena_max, 4)


if __name__ == "__main__":
    main()
