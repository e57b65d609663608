"""A slice of the long run, `python -m tests.fuzz --inputs 200000`; FUZZ_INPUTS sets its length."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def fuzz(*options: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_broken_files_are_read_or_refused_within_their_folder_and_limits():
    assert "faults: 0" in fuzz("--inputs", os.environ.get("FUZZ_INPUTS", "2800"), "--workers", "1")
