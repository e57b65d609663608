"""The loop: a seed and a reader make one input, which is read under guard."""

import multiprocessing
import random
import shutil
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fuzz import recipes, trees
from fuzz.corpus import Seed, with_cores
from fuzz.guard import Guard, Hang, strayed
from fuzz.reading import one_line, read_all
from fuzz.variants import VARIANTS, candidates

from mergekit_rl import Checkpoint, EditError

READERS = (*VARIANTS, "folder")
RECIPE = "recipe"  # plans merges; only where it is asked for
_FAULTS = 20  # after which a worker stops
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Report:
    """What a run saw.

    Attributes:
        accepted, refused: inputs by reader.
        faults: (reader, seed, what happened).
        slowest: seconds of the slowest input, with its reader and seed.
        peak: growth of the process in bytes.
    """

    accepted: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    faults: list[tuple[str, int, str]] = field(default_factory=list)
    slowest: tuple[float, str, int] = (0.0, "", 0)
    peak: int = 0

    def add(self, other: "Report") -> None:
        self.accepted += other.accepted
        self.refused += other.refused
        self.faults += other.faults
        self.slowest = max(self.slowest, other.slowest)
        self.peak = max(self.peak, other.peak)


class Bench:
    """The folders of all seeds on a memory disk, to be broken and mended one at a time."""

    def __init__(self, root: Path, plans: bool) -> None:
        self._root = root
        self._seeds = with_cores(root / "scratch")
        for name, seed in self._seeds.items():
            _write(root / name, seed)
        _write(root / "outside", self._seeds["tied"])
        self._bases = {
            name: Checkpoint.open(root / name)
            for name in {seed.base for seed in self._seeds.values()} - {None}
        }
        self._places = recipes.models(root / "models") if plans else {}
        self._guard = Guard()
        for name, seed in self._seeds.items():  # loads whatever is loaded late
            assert read_all(root / name, self._bases.get(seed.base)), name

    def run(self, inputs: Iterable[tuple[str, int]]) -> Report:
        """Reads the inputs (reader, seed) one by one."""
        report = Report()
        for reader, seed in inputs:
            fault = self._input(report, reader, seed)
            if fault.startswith("took longer"):  # once more: other processes may have been why
                fault = self._input(Report(), reader, seed)
            if fault:
                report.faults.append((reader, seed, fault))
                if len(report.faults) >= _FAULTS:
                    break
        report.peak = self._guard.peak
        return report

    def _input(self, report: Report, reader: str, number: int) -> str:
        """Makes and reads one input; what is wrong, "" where nothing is."""
        rng = random.Random(f"{reader} {number}")
        if reader == RECIPE:
            return self._recipe(report, number, recipes.broken(rng))
        if reader == "folder":
            name = rng.choice(sorted(self._seeds))
            folder = self._root / "spoilt" / name
            folder.parent.mkdir(exist_ok=True)
            _write(folder, self._seeds[name])
            trees.spoil(rng, folder, self._root / "outside")
            try:
                return self._read(report, reader, number, folder, name)
            finally:
                shutil.rmtree(folder)
        name = rng.choice(candidates(reader, self._seeds))
        folder, seed = self._root / name, self._seeds[name]
        broken = VARIANTS[reader][0](rng, dict(seed.files))
        for file, data in broken.items():
            (folder / file).write_bytes(data)
        try:
            return self._read(report, reader, number, folder, name)
        finally:
            for file in broken:
                (folder / file).write_bytes(seed.files[file])

    def _recipe(self, report: Report, number: int, text: bytes) -> str:
        """Plans a merge by a recipe; what is wrong, "" where nothing is."""
        path = self._root / recipes.NAME
        path.write_bytes(text)
        fault = ""
        try:
            with self._guard.watch():
                recipes.plan(path, self._places)
            report.accepted[RECIPE] += 1
        except EditError as error:
            report.refused[RECIPE] += 1
            fault = self._unclear(error, text)
        except Hang:
            fault = "took longer than a second\n" + traceback.format_exc(limit=-3)
        except Exception:
            fault = traceback.format_exc(limit=-3)
        report.slowest = max(report.slowest, (self._guard.seconds, RECIPE, number))
        return fault

    def _unclear(self, error: EditError, text: bytes) -> str:
        try:
            one_line(error)
        except AssertionError as unclear:
            return f"an error that is no line: {str(unclear)[:500]!r}"
        of_recipe = any(f.name == "load" for f in traceback.extract_tb(error.__traceback__))
        return recipes.unclear(error, text) if of_recipe else ""

    def _read(self, report: Report, reader: str, number: int, folder: Path, name: str) -> str:
        base = self._seeds[name].base
        fault = ""
        opened: list[str] = []
        try:
            with self._guard.watch() as opened:
                sound = read_all(folder, self._bases.get(base))
            (report.accepted if sound else report.refused)[reader] += 1
        except EditError as error:
            report.refused[reader] += 1
            try:
                one_line(error)
            except AssertionError as unclear:
                fault = f"an error that is no line: {str(unclear)[:500]!r}"
        except Hang:
            fault = "took longer than a second\n" + traceback.format_exc(limit=-3)
        except Exception:
            fault = traceback.format_exc(limit=-3)
        report.slowest = max(report.slowest, (self._guard.seconds, reader, number))
        allowed = [str(folder), *([str(self._root / base)] if base else [])]
        stray = strayed(opened, allowed)
        return fault or (f"opened {stray}" if stray else "")


def work(inputs: list[tuple[str, int]]) -> Report:
    """A worker's share, in a process of its own: the guard limits all of it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    home = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=home) as root:
        plans = any(reader == RECIPE for reader, _ in inputs)
        return Bench(Path(root).resolve(), plans).run(inputs)


def run(readers: Iterable[str], count: int, first: int, workers: int) -> Report:
    """`count` inputs shared out over the readers, numbered from `first`, in `workers` processes."""
    readers = list(readers)
    shares = {r: count // len(readers) + (i < count % len(readers)) for i, r in enumerate(readers)}
    inputs = [(r, first + n) for r, share in shares.items() for n in range(share)]
    report = Report()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for part in pool.imap(work, [inputs[i::workers] for i in range(workers)]):
            report.add(part)
    return report


def _write(folder: Path, seed: Seed) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in seed.files.items():
        (folder / file).write_bytes(data)
