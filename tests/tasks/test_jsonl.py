"""Tasks from a file of questions and answers."""

import json

import pytest

from mergekit_rl.errors import EditError
from mergekit_rl.tasks import grade, load_task

GOOD = [
    {"question": "What is 2 + 3?", "answer": 5},
    {"question": "What is the capital of France?", "answer": "Paris"},
    {"question": "Which even numbers are below 7?", "answer": [2, 4, 6]},
    {"question": "Which colours has the flag of Poland?", "answer": ["white", "red"]},
]


def write(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return path


def test_every_row_is_in_one_split_and_graded_by_its_answers_type(tmp_path):
    path = write(tmp_path, *GOOD, "", GOOD[0])
    for spec in (path, str(path), {"file": str(path)}, {"name": "jsonl", "file": str(path)}):
        task = load_task(spec)
        rows = [row for split, n in task.sizes().items() if n for row in task.rows(split)]
        assert sorted(row["prompt"].split("? ")[0] + "?" for row in rows) == sorted(
            one["question"] for one in GOOD
        )
    kinds = {row["meta"]["grader"] for row in rows}
    assert kinds == {"integer", "text", "list"}
    for row in rows:
        gold = row["answer"]
        words = ", ".join(map(str, gold)) if isinstance(gold, list) else gold
        assert grade(f"Answer: {words}", row).reward == 1.0
        assert grade("Answer: 7", row).reward == grade(row["prompt"], row).reward == 0.0


def test_shares_of_0_and_1_take_the_whole_file(tmp_path):
    path = write(tmp_path, *GOOD)
    assert load_task({"file": str(path), "test_share": 0}).sizes() == {"train": 4, "test": 0}
    assert load_task({"file": str(path), "test_share": 1}).sizes() == {"train": 0, "test": 4}


def test_other_keys_a_named_grader_and_untouched_prompts(tmp_path):
    path = write(tmp_path, {"q": "Say 5.", "a": "5"})
    spec = {"file": str(path), "question": "q", "answer": "a", "grader": "text", "test_share": 0}
    (row,) = load_task({**spec, "ask": False}).rows("train")
    assert row["prompt"] == "Say 5." and row["meta"]["grader"] == "text"
    (row,) = load_task(spec).rows("train")
    assert row["prompt"] == 'Say 5. End with "Answer: " and the answer.'
    with pytest.raises(EditError, match="there is no grader 'texts'; did you mean 'text'"):
        load_task({**spec, "grader": "texts"}).rows("train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON: "),
        ("[" * 100_000, "line 2 is not JSON: "),
        ([1], "line 2 is list, expected a JSON object"),
        ({"question": "x"}, "line 2 has no 'answer'; it has 'question'"),
        ({}, "line 2 has no 'question'; it has none"),
        ({"question": "", "answer": 5}, "line 2: the question is '', expected a text"),
        ({"question": 5, "answer": 5}, "line 2: the question is 5, expected a text"),
        ({"question": "x", "answer": 1.5}, "line 2: the answer is 1.5, expected a whole number"),
        ({"question": "x", "answer": None}, "line 2: the answer is None, expected a whole"),
        ({"question": "x", "answer": True}, "line 2: the answer is True, expected a whole"),
        ({"question": "x", "answer": " "}, "line 2: the answer is ' ', expected a whole"),
        ({"question": "x", "answer": [[1]]}, r"line 2: the answer is \[\[1\]\], expected a whole"),
        (
            {"question": "x", "answer": "a\nb"},
            "line 2: no completion could give",
        ),
        (
            {"question": "x", "answer": ["a, b"]},
            "line 2: no completion could give",
        ),
        (
            {"question": "x", "answer": 10**1500},
            "line 2: no completion could give",
        ),
        (
            {"question": "What is 2 + 3?", "answer": 6},
            "line 2: the answer is 6, but line 1 asks the same and says 5",
        ),
    ],
)
def test_bad_row_is_named_by_its_line(tmp_path, line, message):
    path = write(tmp_path, GOOD[0], line)
    with pytest.raises(EditError, match=message) as error:
        load_task(path).rows("train")
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_missing_and_empty_files_are_told(tmp_path):
    with pytest.raises(EditError, match=r"file .*none\.jsonl cannot be read: .*No such file"):
        load_task(tmp_path / "none.jsonl").rows("train")
    with pytest.raises(EditError, match="has no row, expected a JSON object a line"):
        load_task(write(tmp_path, "")).rows("train")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EditError, match="cannot be read"):
        load_task(tmp_path / "binary.jsonl").rows("train")


def test_small_share_of_a_long_file_is_found_to_its_end(tmp_path):
    path = write(tmp_path, *({"question": f"Say {n}.", "answer": n} for n in range(30_000)))
    sizes = load_task({"file": str(path), "test_share": 0.0005}).sizes()
    assert sum(sizes.values()) == 30_000 and 1 <= sizes["test"] < 40
