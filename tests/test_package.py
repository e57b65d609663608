"""The package as a whole: what importing it costs, what it offers, what it carries."""

import subprocess
import sys
import zipfile

import pytest
from test_layers import ROOT

import mergekit_rl


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_loads_neither_torch_nor_transformers():
    loaded = python("import mergekit_rl, sys; print({'torch', 'transformers'} & set(sys.modules))")
    assert loaded.strip() == "set()"


def test_help_loads_no_heavy_module():
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom rledit.main import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        "print({'torch', 'numpy', 'transformers', 'rich', 'yaml'} & set(sys.modules))"
    )
    assert python(code).strip() == "set()"


def test_every_public_name_loads_and_an_unknown_one_is_an_attribute_error():
    for name in mergekit_rl.__all__:
        assert getattr(mergekit_rl, name).__doc__
    assert set(mergekit_rl.__all__) <= set(dir(mergekit_rl))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mergekit_rl.nothing


def test_typing_marker_is_there():
    assert (ROOT / "mergekit_rl" / "py.typed").is_file()


@pytest.mark.slow
def test_wheel_holds_both_packages_and_no_tests(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert "mergekit_rl/py.typed" in names
    assert "rledit/main.py" in names
    shipped = {name.rpartition("/")[2] for name in names if "/share/rledit/recipes/merge/" in name}
    assert shipped == {path.name for path in (ROOT / "recipes" / "merge").glob("*.yaml")}
    assert not [name for name in names if name.startswith(("tests", "cli", "examples"))]
