"""Tasks: rows that are right, repeatable, and held out for good."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from mergekit_rl.errors import EditError
from mergekit_rl.tasks import Problem, find_kind, grade, kinds, load_task, task
from mergekit_rl.tasks.equation import evaluate

NEEDS_A_SETTING = {"jsonl", "huggingface", "reasoning_gym"}
OURS = sorted({
    "arithmetic", "bases", "comparison", "countdown", "gcd", "largest", "linear_equations",
    "modular", "sorting", "sums",
})  # fmt: skip
HARDER = {
    "arithmetic": {"digits": 4, "terms": 4, "operations": "+-*"},
    "bases": {"base": 16, "to": "ten"},
    "comparison": {"decimals": 2, "digits": 1},
    "countdown": {"count": 5, "most": 50},
    "gcd": {"most": 5000},
    "largest": {"count": 6},
    "linear_equations": {"both_sides": True, "negative": True, "most": 20},
    "modular": {"of": "product", "most": 999},
    "sorting": {"count": 7, "order": "down"},
    "sums": {"least": 0, "most": 40},
}
SPECS = [{"name": name} for name in OURS] + [{"name": name, **HARDER[name]} for name in OURS]


def name_of(spec):
    return " ".join(map(str, spec.values()))


def in_words(answer):
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)


def test_every_task_of_the_list_is_there():
    assert set(kinds()) >= NEEDS_A_SETTING | set(OURS)
    for kind in kinds().values():
        assert kind.summary.endswith(".") and len(kind.summary) < 90


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_gold_answer_is_rewarded_and_no_prompt_nor_wrong_answer_is(spec):
    task = load_task({**spec, "train_size": 150, "test_size": 50})
    for row in task.rows("train") + task.rows("test"):
        gold = in_words(row["answer"])
        right = f"Answer: {gold}" if row["meta"]["format"] == "line" else gold
        assert grade(right, row).strict, row
        wrong = right.replace(gold, gold + "1" if gold.isalnum() else gold[:-1] + ", 7")
        for text in ("", row["prompt"], "Answer:", f"{row['prompt']} {right[:-1]}", wrong):
            assert grade(text, row).reward == 0.0, (text, row)


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_splits_share_no_problem_whatever_the_seeds(spec):
    task = load_task({**spec, "train_size": 300, "test_size": 100})
    train = {same_problem(row) for seed in (0, 1) for row in task.rows("train", seed)}
    test = {same_problem(row) for seed in (0, 2) for row in task.rows("test", seed)}
    assert train and test and not train & test


def same_problem(row):
    """What tells a problem apart where the order of its numbers does not matter."""
    name, prompt = row["id"].rpartition("-")[0], row["prompt"]
    if name == "countdown":
        return row["meta"]["target"], tuple(sorted(row["meta"]["numbers"]))
    turned = name in ("sums", "largest", "comparison", "gcd", "sorting")
    turned = turned or (name == "arithmetic" and len(re.findall(r"\d \+ \d", prompt)) == 1)
    if not turned or "-" in prompt:
        return prompt
    return tuple(sorted(re.findall(r"\d+(?:\.\d+)?", prompt)))


def test_wider_range_leaks_no_held_out_sum_into_training():
    narrow = {same_problem(row) for row in load_task("sums").rows("test")}
    wide = load_task({"name": "sums", "most": 30})
    assert not narrow & {same_problem(row) for row in wide.rows("train")}
    whole = load_task({"name": "sums", "most": 30, "test_size": 999})
    assert narrow <= {same_problem(row) for row in whole.rows("test")}


def test_sums_hold_out_100_of_225_and_turned_pairs_stay_together():
    task = load_task("sums")
    assert task.sizes() == {"train": 125, "test": 100}
    pairs = {split: {tuple(map(int, re.findall(r"\d+", row["prompt"]))) for row in task.rows(split)}
             for split in ("train", "test")}  # fmt: skip
    assert {(b, a) for a, b in pairs["test"]} == pairs["test"]
    assert pairs["train"] | pairs["test"] == {(a, b) for a in range(1, 16) for b in range(1, 16)}


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_answers_are_right(spec):
    for row in load_task({**spec, "train_size": 100, "test_size": 1}).rows("train"):
        numbers = [int(n) for n in re.findall(r"(?<![\d.])\d+(?![\d.]*\.\d|\d)", row["prompt"])]
        answer, name = row["answer"], spec["name"]
        if name == "sums":
            assert answer == sum(numbers)
        elif name == "largest":
            assert answer == max(numbers) and len(set(numbers)) == len(numbers)
        elif name == "gcd":
            assert answer == math.gcd(*numbers)
        elif name == "sorting":
            assert answer == sorted(numbers, reverse=spec.get("order") == "down") != numbers
        elif name == "modular":
            assert answer == math.prod(numbers[:-1]) % numbers[-1]
        elif name == "arithmetic":
            text = re.search(r"What is (.*)\?", row["prompt"])[1]
            assert answer == eval(text)  # made here
        elif name == "comparison":
            a, b = re.search(r"larger: (\S+) or (\S+)\?", row["prompt"]).groups()
            assert float(answer) == max(float(a), float(b)) and float(a) != float(b)
        elif name == "countdown":
            value, used = evaluate(answer)
            assert value == row["meta"]["target"] not in row["meta"]["numbers"]
            assert sorted(used) == sorted(row["meta"]["numbers"])
        elif name == "linear_equations":
            left, right = re.search(r"x: (.*) = (.*)\. End", row["prompt"]).groups()
            sides = [eval(re.sub(r"(\d)x", r"\1*x", side), {"x": answer}) for side in (left, right)]
            assert sides[0] == sides[1]
        else:
            written, base = re.search(r"number (\w+) in base (\d+)", row["prompt"]).groups()
            if spec.get("to") == "ten":
                assert answer == int(written, spec["base"])
            else:
                assert int(answer, int(base)) == int(written)


def test_rows_do_not_depend_on_the_hash_seed():
    code = (
        "import json, sys\nfrom mergekit_rl.tasks import load_task\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    task = load_task({'name': name, 'train_size': 40, 'test_size': 10})\n"
        "    print(json.dumps([task.rows(s, 3) for s in ('train', 'test')]), task.sizes())\n"
    )
    digests = set()
    for seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(OURS)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        digests.add(hashlib.sha256(done.stdout).hexdigest())
    assert len(digests) == 1


def test_seed_changes_the_order_and_nothing_else_of_a_finite_task():
    task = load_task("sums")
    one, two = task.rows("train", 1), task.rows("train", 2)
    assert one != two and task.rows("train", 1) == one

    def by_id(rows):
        return sorted(rows, key=lambda row: row["id"])

    assert by_id(one) == by_id(two)


def test_rows_are_plain_data_with_ids_of_their_own():
    for name in OURS:
        rows = load_task({"name": name, "train_size": 200, "test_size": 50}).rows("train")
        assert json.loads(json.dumps(rows)) == rows
        assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows)


def test_prompts_are_short():
    for name in OURS:
        for row in load_task({"name": name, "train_size": 50, "test_size": 1}).rows("train"):
            assert len(re.findall(r"\w+|[^\w\s]", row["prompt"])) <= 40, row["prompt"]


def test_format_of_the_prompt_is_that_of_the_grader():
    for form, words in (
        ("line", 'End with "Answer: " and the number.'),
        ("bare", "just the number."),
    ):
        (row,) = load_task({"name": "gcd", "format": form, "train_size": 1}).rows("train")
        assert row["prompt"].endswith(words) and row["meta"]["format"] == form


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sumz", "there is no task 'sumz'; did you mean 'sums'?"),
        ({"name": "sums", "mots": 9}, "sums has no setting 'mots'; did you mean 'most'?"),
        ({"name": "sums", "most": "9"},
         "sums: most is '9', expected a whole number between 0 and 999"),
        ({"name": "sums", "most": 1000},
         "sums: most is 1000, expected a whole number between 0 and 999"),
        ({"name": "sums", "most": True},
         "sums: most is True, expected a whole number between 0 and 999"),
        ({"name": "gcd", "format": "box"}, "gcd: format is 'box', expected one of line, bare"),
        ({"name": "gcd", "strict": 1}, "gcd: strict is 1, expected true or false"),
        ({"name": "gcd", "test_share": math.nan},
         "gcd: test_share is nan, expected a number between 0 and 1"),
        ({"most": 3}, "the task {'most': 3} has no name, expected one as name: sums"),
        ({"name": "jsonl"}, "jsonl needs the setting 'file', a text"),
        (7, "the task is 7, expected a name, a mapping or the path of a file"),
    ],
)  # fmt: skip
def test_wrong_spec_says_what_is_wrong(spec, message):
    with pytest.raises(EditError) as error:
        load_task(spec)
    assert str(error.value) == message


def test_unusable_settings_are_told_when_rows_are_made():
    with pytest.raises(EditError, match="least is 9, expected at most 3"):
        load_task({"name": "sums", "least": 9, "most": 3}).rows("train")
    with pytest.raises(EditError, match="too few numbers"):
        load_task({"name": "largest", "least": 1, "most": 2}).rows("train")
    with pytest.raises(EditError, match="sums has no test rows with test_share 0: change it"):
        load_task({"name": "sums", "test_share": 0}).rows("test")
    with pytest.raises(EditError, match="there is no split 'validation'; there are train, test"):
        load_task("sums").rows("validation")


def test_small_space_of_problems_ends_and_is_used_up():
    few = load_task({"name": "comparison", "digits": 1})
    assert sum(few.sizes().values()) == 9 * 8


def test_task_of_ones_own_takes_its_settings_from_the_signature():
    @task(wanted="the letter", format="bare")
    def letters(rng, *, alphabet: str = "abcdefghij"):
        """Name the letter after another."""
        for one, two in pairwise(alphabet):
            yield Problem(f"Which letter comes after {one}?", two)

    try:
        found = load_task({"name": "letters", "test_share": 0.5})
        rows = found.rows("train") + found.rows("test")
        assert len(rows) == 9 and rows[0]["meta"]["grader"] == "text"
        assert grade(rows[0]["answer"], rows[0]).strict
        assert find_kind("letters").summary == "Name the letter after another."
    finally:
        sys.modules["mergekit_rl.tasks.task"]._KINDS.pop("letters")


def test_importing_tasks_loads_neither_torch_nor_numpy():
    code = (
        "import sys, mergekit_rl.tasks as t; t.kinds(); t.grade('', {'answer': 1}); "
        "print({'torch', 'numpy', 'transformers', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
