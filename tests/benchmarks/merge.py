"""`rledit merge` side by side with mergekit: whole commands, seconds and memory.

    pip install -e '.[bench]'
    python tests/benchmarks/merge.py --models BASE A B [--repeats 3] [--out FILE.json]
    python tests/benchmarks/merge.py --synthetic [--methods linear,ties]

mergekit may live in an environment of its own: --mergekit PATH names its command. Every run is
a process of its own with the same recipe file; the runs alternate, so a drift of the machine meets
both alike, and the input files are read once beforehand. Outputs go to the temporary folder
(`TMPDIR` chooses it) and are deleted.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from measure import Cost, measure
from sar import environment, print_table, summary, warm
from synthetic import make_family

METHODS = ("linear", "slerp", "ties", "dare_ties", "model_stock")
PEER, OURS = "mergekit", "rledit merge"


def recipe(method: str, base: Path, experts: list[Path]) -> dict[str, object]:
    """The recipe of one method for a base and two experts."""
    common = {"merge_method": method, "dtype": "bfloat16"}
    if method == "linear":
        models = [{"model": str(e), "parameters": {"weight": 0.5}} for e in experts]
        return common | {"models": models}
    if method == "slerp":
        models = [{"model": str(e)} for e in experts]
        return common | {
            "base_model": str(experts[0]),
            "models": models,
            "parameters": {"t": 0.4},
        }
    settings = {} if method == "model_stock" else {"weight": 0.5, "density": 0.5}
    models = [{"model": str(e), "parameters": settings} for e in experts]
    return common | {"base_model": str(base), "models": models}


def compare(
    method: str, base: Path, experts: list[Path], mergekit: str, repeats: int
) -> dict[str, list[Cost]]:
    """Runs both `repeats` times in turn and prints the table of one method."""
    costs: dict[str, list[Cost]] = {PEER: [], OURS: []}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        file = work / "recipe.yaml"
        file.write_text(yaml.safe_dump(recipe(method, base, experts)))
        commands = {
            PEER: [mergekit, str(file), "OUT", "--lazy-unpickle"],
            OURS: [sys.executable, "-m", "rledit", "merge", str(file), "--out", "OUT"],
        }
        for turn in range(repeats):
            for name, command in commands.items():
                out = work / f"{turn}-{name.replace(' ', '-')}"
                words = [str(out) if word == "OUT" else word for word in command]
                costs[name].append(measure(words))
                shutil.rmtree(out)
                seconds = costs[name][-1].seconds
                print(f"  run {turn + 1}/{repeats}  {name}: {seconds:.2f} s", file=sys.stderr)
    print(f"\n{method}, {len(experts)} experts, {repeats} runs each")
    print_table(costs)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure `rledit merge` beside mergekit.")
    parser.add_argument("--models", nargs=3, type=Path, metavar=("BASE", "A", "B"))
    parser.add_argument("--synthetic", action="store_true", help="a random 1.1 B trio instead")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mergekit", default="mergekit-yaml", metavar="PATH")
    parser.add_argument("--repeats", type=int, default=3, help="runs per variant (default: 3)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures here too")
    options = parser.parse_args()
    if shutil.which(options.mergekit) is None:
        parser.error(f"{options.mergekit} is not here: pip install -e '.[bench]', or --mergekit")
    if (options.models is None) != options.synthetic:
        parser.error("give --models BASE A B or --synthetic")
    print("  ".join(f"{key} {value}" for key, value in environment().items()))
    figures: dict[str, object] = {"environment": environment()}
    with tempfile.TemporaryDirectory() as scratch:
        if options.synthetic:
            print("building the 1.1 B trio (6.6 GB in the temporary folder) …", file=sys.stderr)
            folders = make_family(Path(scratch), ["a", "b"], shapes="tinyllama", seed=0)
        else:
            folders = options.models
        warm(*folders)
        for method in options.methods.split(","):
            costs = compare(
                method, folders[0], list(folders[1:]), options.mergekit, options.repeats
            )
            figures[method] = {name: summary(runs) for name, runs in costs.items()}
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
