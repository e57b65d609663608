"""The patterns of an adapter's configuration, matched as PEFT does and in bounded time."""

import re
import time

import pytest
from peft.utils.other import get_pattern_key

from mergekit_rl import EditError
from mergekit_rl.io.patterns import Pattern

NAMES = [
    f"model.layers.{layer}.{block}.{leaf}_proj"
    for layer in (0, 1, 11)
    for block, leaf in (("self_attn", "q"), ("self_attn", "k"), ("mlp", "up"))
]


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj", "^q_proj", r"layers\.1\..*", r"model.layers.(?:0|1).mlp.up_proj",
        r".*\.\d+\.mlp.*",
        "layers.1[0-9].*", "(q|k)_proj", "self_attn.[qk]_proj$", "", ".*", r"\w+_proj", "proj",
        "model.layers.{1,2}.*", "up_pro.", r"^(?:model\.layers\.0\.mlp\.up_proj|x\.y)",
        "[^.]+_proj",
        ".+?attn.+", "layers.(1|11).(mlp|self_attn).(up|q)_proj",
    ],
)  # fmt: skip
def test_a_pattern_matches_the_names_that_peft_matches(pattern):
    expected = [get_pattern_key([pattern], name) == pattern for name in NAMES]
    assert [Pattern(pattern).matches(name) for name in NAMES] == expected


def test_names_by_the_hundred_in_one_pattern_are_matched_fast():
    names = [f"model.layers.{i}.mlp.{leaf}_proj" for i in range(200) for leaf in "abcde"]
    pattern = Pattern("^(?:" + "|".join(map(re.escape, names)) + ")")
    started = time.perf_counter()
    assert all(pattern.matches(name) for name in names)
    assert not any(pattern.matches(name + "x") for name in names)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$b", "(.*)*x", "(?:a|a)*b", "a?" * 40 + "a" * 40, ".*" * 30 + "!", "((a*)*)*b"],
)
def test_patterns_that_are_slow_elsewhere_take_no_time(pattern):
    started = time.perf_counter()
    assert not Pattern(pattern).matches("a" * 39)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a)", "the ) at position 1 closes nothing"),
        ("a(b", "a ( that is not closed (position 1)"),
        ("*a", "a quantifier with nothing to repeat (position 0)"),
        ("a**", "a quantifier with nothing to repeat (position 1)"),
        ("(?=a)b", "'(?=' is not understood (position 0)"),
        (r"(a)\1", r"'\\1' is not understood (position 3)"),
        ("(?i)a", "'(?i' is not understood (position 0)"),
        ("[z-a]", "bad character range z-a at position 1 (position 0)"),
        ("a{3,2}", "the repetition {3,2} is none"),
        ("((a{999}){999}){999}", "too large a pattern; write it more simply"),
        ("(" * 60 + ")" * 60, "groups nested more than 50 deep"),
        ("a" * (10**6 + 1), "1,000,001 characters, expected at most 1,000,000"),
    ],
)
def test_what_is_not_understood_is_refused(pattern, reason):
    with pytest.raises(EditError) as caught:
        Pattern(pattern)
    assert str(caught.value) == reason


def test_a_match_that_takes_too_long_is_refused():
    with pytest.raises(EditError, match="takes too long; write it more simply"):
        Pattern(".*" * 500 + "!").matches("a" * 900)
