"""The process around the commands: `rledit`, or `python -m rledit`."""

import gc
import os
import sys


def main() -> None:
    """Runs the command line and ends the process."""
    # Importing torch makes millions of objects that stay: looking for garbage among them takes a
    # tenth of a second.
    gc.disable()
    # Matrices in large pages, where the system grants them: faulting small ones in for each takes
    # longer than the arithmetic of a merge. Read by torch when it first allocates.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
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


if __name__ == "__main__":
    main()
