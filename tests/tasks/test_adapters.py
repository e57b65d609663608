"""reasoning-gym, math-verify and datasets: used where they are installed."""

import json
import sys

import pytest

from mergekit_rl.errors import EditError
from mergekit_rl.tasks import grade, graders, load_task


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("math", "math_verify", "math-verify"), ("reasoning_gym", "reasoning_gym", "reasoning-gym")],
)
def test_grader_of_a_missing_package_says_what_to_install(monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    for cached in (graders._math_verify, graders._reasoning_gym_score):
        cached.cache_clear()
    entry = {"metadata": {"source_dataset": "chain_sum"}}
    with pytest.raises(EditError) as error:
        grade("Answer: 5", {"answer": "5", "meta": {"grader": name, "entry": entry}})
    assert str(error.value) == f"the grader {name!r} needs {package}: pip install {package}"


def test_math_verify_compares_values_and_evaluates_no_code():
    pytest.importorskip("math_verify")
    half = {"answer": r"\frac{1}{2}", "meta": {"grader": "math"}}
    for text in ("1/2", "$0.5$", r"\frac{2}{4}", r"\boxed{0.5}"):
        assert grade(f"Answer: {text}", half).reward == 1.0, text
    for text in ("2", "1/2 or 1/3", "<number>", "__import__('os')", "5e-1", "٠.٥", ""):
        assert grade(f"Answer: {text}", half).reward == 0.0, text
    assert grade(r"So it is \boxed{\frac12}", half).correct


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("reasoning_gym", "reasoning_gym", "reasoning-gym"),
        ("huggingface", "datasets", "datasets"),
    ],
)
def test_adapter_without_its_package_says_what_to_install(monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EditError) as error:
        load_task({"name": name, "dataset": "x"}).rows("train")
    assert str(error.value) == f"the task {name!r} needs {package}: pip install {package}"


def test_reasoning_gym_makes_and_scores_problems():
    pytest.importorskip("reasoning_gym")
    spec = {"name": "reasoning_gym", "dataset": "chain_sum", "train_size": 20, "test_size": 5}
    for row in load_task(spec).rows("train"):
        assert grade(f"Answer: {row['answer']}", row).reward == 1.0
        for text in ("", row["prompt"], f"Answer: {row['answer']}7", row["answer"]):
            assert grade(text, row).reward == 0.0
    with pytest.raises(EditError, match="no dataset 'chain_sun'; did you mean 'chain_sum'"):
        load_task({**spec, "dataset": "chain_sun"}).rows("train")
    with pytest.raises(EditError, match="reasoning_gym chain_sum refuses"):
        load_task({**spec, "config": {"nothing": 3}}).rows("train")


def test_huggingface_dataset_gives_rows(tmp_path):
    pytest.importorskip("datasets")
    lines = [{"q": f"What is {n} + 1?", "a": f"it is #### {n + 1:,}"} for n in range(990, 1030)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    spec = {
        "name": "huggingface", "dataset": str(tmp_path), "question": "q", "answer": "a",
        "answer_after": "####", "kind": "integer",
    }  # fmt: skip
    found = load_task(spec)
    rows = found.rows("train") + found.rows("test")
    assert sorted(row["answer"] for row in rows) == list(range(991, 1031))
    for wrong, message in (
        ({"question": "x"}, "has no column 'x'; it has q, a"),
        ({"answer_after": "##!"}, "has no '##!'"),
        ({"split": "nothing"}, "cannot be loaded"),
    ):
        with pytest.raises(EditError, match=message):
            load_task({**spec, **wrong}).rows("train")
