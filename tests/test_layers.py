"""Who may import whom: the table of the architecture, checked against the imports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "errors": set(),
    "registry": {"errors"},
    "plugins": {"errors"},
    "shipped": {"errors", "registry"},
    "recipe": {"errors", "registry"},
    "io": {"errors"},
    "spectral": {"errors"},
    "tasks": {"errors", "registry"},
    "methods": {"errors", "registry", "spectral"},
    "sampling": {"errors", "io"},
    "eval": {"errors", "sampling", "tasks"},
    "rl": {"errors", "registry", "recipe", "io", "sampling", "tasks", "eval"},
    "pipeline": {"errors", "io", "recipe", "registry", "methods", "spectral"},
    "report": {"errors", "io", "spectral", "eval"},
    "studies": {
        "errors", "registry", "recipe", "io", "spectral", "tasks", "methods", "sampling", "eval",
        "rl", "pipeline", "report",
    },
}  # fmt: skip
# Packages that only some places may import.
CONFINED = {
    "click": ("cli",),
    "rich": ("cli",),
    "safetensors": ("io",),
    "huggingface_hub": ("io",),
    "transformers": ("io/tokenizer.py", "sampling.py", "eval", "rl"),
    "peft": ("rl",),
}
FILES = sorted([*ROOT.glob("mergekit_rl/**/*.py"), *ROOT.glob("cli/**/*.py")])


def place(path):
    """`io/header.py` for a file of the package, `cli/…` for one of the command line."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[1:]) if parts[0] == "mergekit_rl" else "/".join(parts)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "mergekit_rl":
                yield from (f"mergekit_rl.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", FILES, ids=place)
def test_file_imports_only_what_its_layer_may(path):
    layer = place(path).split("/")[0].removesuffix(".py")
    for module in imports(path):
        top, _, rest = module.partition(".")
        assert top != "rledit" or layer == "cli"
        if top == "mergekit_rl" and layer in ALLOWED:
            other = rest.split(".")[0]
            assert other in ALLOWED[layer] | {layer, "__version__", ""}, f"imports {module}"
        homes = CONFINED.get(top)
        assert homes is None or place(path).startswith(homes), f"imports {module}"


def test_every_package_has_a_layer():
    found = {place(path).split("/")[0].removesuffix(".py") for path in FILES}
    assert found - set(ALLOWED) - {"__init__", "cli"} == set()


def test_no_file_is_named_for_having_no_name():
    assert not {p.stem for p in FILES} & {"utils", "common", "helpers", "misc", "base"}
