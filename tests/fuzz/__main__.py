"""python -m tests.fuzz: feeds broken files to the readers, and says what became of them.

python -m tests.fuzz --inputs 200000 --workers 2
python -m tests.fuzz --reader header --only 4711     the one input again, with its traceback
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> int:
    from fuzz.run import READERS, RECIPE, run

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="how many, over all readers")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--reader", choices=(*READERS, RECIPE), help="this reader only")
    parser.add_argument("--only", type=int, help="this input only")
    asked = parser.parse_args()
    readers = [asked.reader] if asked.reader else READERS
    if asked.only is not None:
        asked.first, asked.inputs, asked.workers = asked.only, len(readers), 1
    started = time.perf_counter()
    report = run(readers, asked.inputs, asked.first, asked.workers)
    print(f"{'reader':16}{'inputs':>10}{'accepted':>10}{'refused':>10}")
    for reader in readers:
        yes, no = report.accepted[reader], report.refused[reader]
        print(f"{reader:16}{yes + no:>10,}{yes:>10,}{no:>10,}")
    yes, no = report.accepted.total(), report.refused.total()
    print(f"{'all':16}{yes + no:>10,}{yes:>10,}{no:>10,}")
    seconds, reader, number = report.slowest
    print(f"slowest: {seconds:.3f} s (--reader {reader} --only {number})")
    print(f"peak memory: {report.peak / 2**20:.0f} MiB above the start, per worker")
    print(f"time: {time.perf_counter() - started:.0f} s")
    print(f"faults: {len(report.faults)}")
    for reader, number, fault in report.faults:
        print(f"\npython -m tests.fuzz --reader {reader} --only {number}\n{fault.rstrip()}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
