"""`rledit tasks`."""

import json

import pytest
from click.testing import CliRunner

from mergekit_rl.errors import EditError
from rledit.tasks import command


def tasks(*args):
    done = CliRunner().invoke(command, list(map(str, args)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_tasks_are_listed_a_line_each():
    lines = tasks().splitlines()
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    assert "sums              Add two numbers from a small range: every pair once." in lines
    assert [one["name"] for one in json.loads(tasks("--json"))] == [x.split()[0] for x in lines]


def test_one_task_is_told_with_sizes_settings_and_samples():
    text = tasks("sums", "-n", 2)
    assert "rows: 125 train, 100 test" in text
    assert "  most        a whole number between 0 and 999; default 15" in text
    assert text.count("Answer with just the number.") == 2
    found = json.loads(tasks("sums", "-n", 3, "--json"))
    assert found["sizes"] == {"train": 125, "test": 100} and len(found["samples"]) == 3
    assert found["settings"]["most"]["default"] == 15


def test_task_that_needs_a_setting_shows_its_settings():
    assert "  dataset     a text; must be given" in tasks("reasoning_gym")


def test_file_is_a_task_and_its_text_cannot_steer_the_terminal(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"question": "\x1b[2Jgone", "answer": 5}))
    text = tasks(path)
    assert "\x1b" not in text and "\\x1b[2Jgone" in text


def test_own_task_comes_from_a_plugin(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from mergekit_rl.tasks import Problem, task\n\n@task()\ndef fives(rng):\n"
        '    """Say five."""\n    yield Problem("Say 5.", 5)\n'
    )
    try:
        assert "Say 5." in tasks("fives", "--plugin", tmp_path / "mine.py")
    finally:
        from mergekit_rl.tasks.task import _KINDS

        _KINDS.pop("fives")


def test_unknown_task_is_an_edit_error():
    with pytest.raises(EditError, match="there is no task 'sum'; did you mean 'sums'"):
        tasks("sum")
