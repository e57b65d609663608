"""What earns a reward and what does not, grader by grader."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergekit_rl.errors import EditError
from mergekit_rl.tasks import Grade, grade, grader
from mergekit_rl.tasks.equation import evaluate

PROMPT = 'What is 7 + 8? End with "Answer: " and the number.'
MAX_PROMPT = "Which number is the largest: 3, 5 or 9? Answer with just the number."


def row(answer, form="line", strict=True, prompt=PROMPT, **meta):
    return {"prompt": prompt, "answer": answer, "meta": {"format": form, "strict": strict, **meta}}


SUM = row(15)
LIST = row([3, 5, 9], prompt="Sort from smallest to largest: 9, 3, 5.")
TEXT = row("Paris", prompt="What is the capital of France?")
COUNTDOWN = row(
    "(8 - 2) * 4",
    prompt="Use 8, 2, 4 and + - * / to make 24.",
    grader="equation",
    numbers=[8, 2, 4],
    target=24,
)


@pytest.mark.parametrize(
    "text",
    [
        "Answer: 15",
        "answer:15",
        "7 + 8 = 15\n\nAnswer: 15.",
        "**Answer:** 15",
        "**Answer: 15**",
        "First 7, then 8. Answer: 15\nI added them.",
        "Answer: +15",
        "Answer: 015",
        "<think>Answer: 3? No.</think>Answer: 15",
    ],
)
def test_whole_number_after_the_only_marker_is_rewarded(text):
    assert grade(text, SUM) == Grade(1.0, True, True, "right")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "Answer:",
        "Answer: 14",
        "Answer: -15",
        "Answer: 14 or 15",
        "Answer: 15 or 14",
        "Answer: 14, 15, 16",
        "Answer: 14\nAnswer: 15",
        "Answer: 15\nAnswer: 14",
        "Answer: 15\nAnswer: 15",
        "\n".join(f"Answer: {n}" for n in range(100)),
        "Answer: " + " ".join(map(str, range(100))),
        "Answer: <number>",
        "Answer: 7 + 8",
        "Answer: 1.5e1",
        "Answer: 15e0",
        "Answer: 15.0",
        "Answer: 0xf",
        "Answer: 1_5",
        "Answer: 1,5",
        "Answer: １５",
        "Answer: ١٥",
        "Answer: ⑮",
        "Answer: 1⁵",
        "Answer: fifteen",
        "Answer: 15 apples",
        "```\nAnswer: 15\n```",
        "```python\nprint('Answer: 15')",
        "Answer: `15`",
        "<think>Answer: 15</think>",
        "<think>Answer: 15",
        "Answer: 15" + "0" * 5000,
        "Answer: " + "9" * 100_000,
        "Answer: int('15')",
        PROMPT,
        PROMPT + " 15",
    ],
)
def test_hacks_of_a_whole_number_earn_nothing(text):
    assert grade(text, SUM).reward == 0.0
    assert not grade(text, SUM).strict


def test_right_answer_in_another_form_is_correct_and_unrewarded():
    assert grade("It is 15.", SUM) == Grade(0.0, True, False, "right, not in the asked format")
    assert grade("It is 14.", SUM) == Grade(0.0, False, False, "wrong: 14")
    assert grade("Answer: 14", SUM) == Grade(0.0, False, True, "wrong: 14")


def test_without_strict_the_last_number_is_rewarded():
    free = row(15, "bare", strict=False)
    for text in (
        "15",
        "7 + 8 is 15.",
        "7 + 8 = 15",
        "Answer: 15",
        "The sum of 7 and 8 is 15",
        "If you add 7 and 8, you get 15.",
        "7, 8: together 15.\n\nI am sure.",
        "15, of course",
    ):
        assert grade(text, free).reward == 1.0, text
    assert grade("15", free).format_ok and not grade("It is 15", free).format_ok


@pytest.mark.parametrize(
    "text",
    ["", MAX_PROMPT, "3, 5 or 9?", "3, 5, 9", "3 5 9", "5 and 9", "3\n5\n9", "[3, 5, 9]", "3/5/9",
     "9, 5", "9 or 5", "9e0", "９", "3,5,9", "9.0", "x9", "9x", "```9```", "Answer: 9\nAnswer: 5"],
)  # fmt: skip
def test_without_strict_a_list_of_candidates_earns_nothing(text):
    assert grade(text, row(9, "bare", strict=False, prompt=MAX_PROMPT)).reward == 0.0


def test_without_strict_differing_marked_answers_earn_nothing():
    free = row(15, strict=False)
    assert grade("Answer: 14\nAnswer: 15", free) == Grade(0.0, False, False, "2 answers")
    assert grade("Answer: 15\nAnswer: 15", free).reward == 1.0


def test_prompt_as_chat_messages_is_no_answer_either():
    chat = [{"role": "user", "content": "Which is larger, 5 or is it 9?"}]
    assert grade("Which is larger, 5 or is it 9?", row(9, "bare", False, chat)).reward == 0.0
    assert grade("It is 9", row(9, "bare", False, chat)).reward == 1.0


def test_bare_answer_is_the_whole_reply():
    bare = row(15, "bare")
    assert grade(" 15.\n", bare).strict
    for text in ("It is 15", "15 16", "14\n15", "Answer: 15"):
        assert grade(text, bare).reward == 0.0, text


def test_large_numbers_are_compared_exactly():
    gold = 10**40 + 1
    assert grade(f"Answer: {gold:,}", row(gold)).reward == 1.0
    assert grade(f"Answer: {gold + 1}", row(gold)).reward == 0.0
    assert grade("Answer: -1,234", row(-1234)).reward == 1.0
    assert grade("Answer: −5", row(-5)).reward == 1.0  # the typographic minus


def test_list_must_be_whole_and_in_order():
    for text in ("Answer: 3, 5, 9", "Answer: [3, 5, 9].", "Answer: 3 5 9", "Answer: (3,5,9)"):
        assert grade(text, LIST).reward == 1.0, text
    for text in (
        "", "Answer:", "Answer: 9, 3, 5", "Answer: 3, 5", "Answer: 3, 5, 9, 9", "Answer: 3, 5, 9e0",
        "Answer: 359", "Answer: 3, 5, ９", "Answer: 3, 5, 9 or 9, 5, 3", "Answer: ,3,5,9",
        "Answer: 3, 5, 9\nAnswer: 9, 3, 5", "Sort from smallest to largest: 9, 3, 5.",
        "```Answer: 3, 5, 9```", "Answer: " + "3, " * 50_000,
    ):  # fmt: skip
        assert grade(text, LIST).reward == 0.0, text
    assert grade("In order: 3, 5, 9", LIST) == Grade(
        0.0, True, False, "right, not in the asked format"
    )
    assert grade("Answer: red, 'Blue'", row(["red", "blue"])).reward == 1.0


def test_text_must_be_the_gold_text_alone():
    for text in ("Answer: Paris", "Answer:  paris.", "**Answer: Paris**"):
        assert grade(text, TEXT).reward == 1.0, text
    for text in (
        "", "Answer:", "Answer: London", "Answer: Paris or London", "Answer: London, Paris",
        "Answer: Paris\nAnswer: London", "Answer: <text>", "Answer: Pariss", "Paris",
        "What is the capital of France?",
    ):  # fmt: skip
        assert grade(text, TEXT).reward == 0.0, text
    assert grade("The capital is Paris.", TEXT).correct
    assert not grade("London or Paris", TEXT).correct
    assert not grade("It is Notparis", TEXT).correct


def test_equation_must_make_the_target_from_the_numbers():
    for text in ("(8 - 2) * 4", "(8−2)×4", "4 * (8 - 2) = 24", "[8 - 2] * 4"):
        assert grade(f"Answer: {text}", COUNTDOWN).reward == 1.0, text
    for text in (
        "", "24", "8 * 4", "8 + 8 + 8", "(8 - 2) * 4 = 25", "(8 - 2) * 4 = 24 = 24", "8 - 2 * 4",
        "20 + 4", "(8 - 2) * 4 + 0", "int(24)", "__import__('os')", "8 * 2 ** 4", "(8 - 2)(4)",
        "(8 - 2) * 4 or 8 * 4", "48 / 2", "-(2 - 8) * 4", "(8 - 2) * 4 # yes", "(8 - 2) * ４",
        "9**9**9**9", "8 / 0", "(" * 100 + "8" + ")" * 100, "8 // 2", "8e0", "1 if 1 else 2",
    ):  # fmt: skip
        assert grade(f"Answer: {text}", COUNTDOWN).reward == 0.0, text
    assert grade("Use 8, 2, 4 and + - * / to make 24.", COUNTDOWN).reward == 0.0
    assert grade("It is (8 - 2) * 4\nDone", COUNTDOWN).reward == 0.0
    assert grade("So: (8 - 2) * 4 = 24", COUNTDOWN).correct


def test_equation_of_any_depth_or_length_is_bounded():
    started = time.perf_counter()
    for text in ("(" * 10**5, "1+" * 10**5 + "1", "((((1)+1)+1)+1)" * 99, "9" * 10**5, "1/" * 99):
        assert evaluate(text) is None
    assert evaluate("+".join("1" * 40)) is None  # deeper than allowed
    assert evaluate("1 + 1" + " " * 200) is None and evaluate("1 + 1" + " " * 100) is not None
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize("example", [SUM, LIST, TEXT, COUNTDOWN, row(9, "bare", False)])
def test_grading_time_is_bounded_on_long_texts(example):
    size = 20_000
    parts = [
        "9",
        "1,",
        "1 ",
        "1 and ",
        " ",
        "answer ",
        "Answer:",
        "[",
        "(",
        "-",
        "*",
        "`",
        "٣",
        "9e",
    ]
    parts += ["e-1", "1.", "\n", "<think>", "=", "answer" + " " * 99, "\x00", "=1:", "x"]
    texts = [part * (size // len(part)) for part in parts]
    for text in texts:
        started = time.perf_counter()
        assert grade(text, example).reward == 0.0
        assert time.perf_counter() - started < 1, text[:10]


PIECES = st.lists(
    st.sampled_from(
        ["Answer", ":", ": ", "Answer: ", "15", "1", "5", "14", " ", "\n", "-", ".", ",", "or", "*"]
    )
    | st.text(max_size=3),
    max_size=12,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(PIECES)
def test_no_text_is_rewarded_unless_it_gives_the_answer_in_the_asked_form(text):
    found = grade(text, SUM)
    assert found.reward in (0.0, 1.0)
    if found.reward:
        marked = re.findall(r"answer[ \t]*\**[ \t]*:[\s*]*(\S*)", text, re.IGNORECASE)
        assert len(marked) == 1
        assert re.fullmatch(r"\+?0*15[.*]*", marked[0])
    bare = grade(text, row(15, "bare"))
    if bare.reward:
        assert re.fullmatch(r"[\s*`]*\+?0*15[\s*`]*\.?[\s*`]*", text) or "```" in text
    if grade(text, row(15, "bare", strict=False)).reward:
        assert "15" in text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40), st.sampled_from([SUM, LIST, TEXT, COUNTDOWN]))
def test_any_text_gets_a_grade(text, example):
    for words in (text, f"Answer: {text}"):
        found = grade(words, example)
        assert found.reward == float(found.correct and found.format_ok)


@settings(max_examples=200, deadline=None)
@given(st.text("0123456789+-*/() ", max_size=24))
def test_equation_value_is_pythons(text):
    found = evaluate(text)
    if found is not None:
        assert float(found[0]) == pytest.approx(eval(text))  # digits and signs alone
        assert sum(found[1]) == sum(int(n) for n in re.findall(r"[0-9]+", text))


def test_grader_is_found_by_the_answers_type_or_named():
    assert grade("Answer: 5", {"answer": 5}).strict
    assert grade("Answer: a, b", {"answer": ["a", "b"]}).strict
    assert grade("Answer: yes", {"answer": "yes"}).strict
    for answer in (1.5, None, True, "", [], [1.5], {}):
        with pytest.raises(EditError, match="expected a whole number, a text or a list of either"):
            grade("Answer: 5", {"answer": answer})


def test_unknown_grader_is_named_with_the_nearest():
    with pytest.raises(EditError) as error:
        grade("", row(1, grader="integr"))
    assert str(error.value) == "there is no grader 'integr'; did you mean 'integer'?"


def test_grader_of_ones_own_is_found_by_its_name():
    @grader
    def shout(text, row):
        return Grade(1.0, True, True, "loud") if text.isupper() else Grade(0.0, False, True, "")

    assert grade("YES", row("", grader="shout")).why == "loud"
