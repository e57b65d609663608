"""Running `rledit` in this process, on tiny models."""

from click.testing import CliRunner, Result

from rledit.main import cli


def rledit(*args: object, code: int = 0) -> Result:
    """What a command printed; it must end with the exit code."""
    result = CliRunner().invoke(cli, list(map(str, args)), prog_name="rledit")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return result


def error(*args: object) -> str:
    """The one line of a command that ends with exit code 1."""
    result = rledit(*args, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").rstrip("\n")


def usage(*args: object) -> str:
    """What a command says of a wrong use, exit code 2."""
    result = rledit(*args, code=2)
    assert result.stdout == "" and result.stderr.startswith("Usage: rledit ")
    return result.stderr.splitlines()[-1].removeprefix("Error: ")
