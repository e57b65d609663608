"""Functions by name, and their settings as their signatures say."""

import sys
from typing import Annotated, Literal

import pytest

import mergekit_rl.methods  # noqa: F401
from mergekit_rl import registry
from mergekit_rl.errors import EditError
from mergekit_rl.registry import (
    Context,
    NonNegative,
    Parsed,
    PerModel,
    Positive,
    Range,
    Share,
    find_method,
    find_stage,
    method,
    stage,
)


def even(value, name):
    if value % 2:
        raise EditError(f"{name} is {value}, expected an even number")
    return value // 2


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(registry, "_METHODS", {})

    @method(takes="deltas", models=(2, 3), ignores=["int8_mask"], elementwise=True)
    def toy(
        base,
        deltas,
        *,
        weight: PerModel[float],
        density: PerModel[Share] = 1.0,
        steps: Annotated[int, Range(1)] = 10,
        normalize: bool = True,
        how: Literal["fast", "slow"] = "fast",
        lambda_: Positive = 1.0,
        limit: NonNegative | None = None,
        label: str = "",
        pairs: Annotated[int, Parsed(even, "an even number")] = 2,
        ctx: Context,
    ):
        """Do nothing at all.

        More of it.
        """

    assert toy.__name__ == "toy"  # the decorator gives the function back
    return find_method("toy")


def test_signature_gives_the_settings(toy):
    assert list(toy.settings) == [
        "weight", "density", "steps", "normalize", "how", "lambda", "limit", "label", "pairs",
    ]  # fmt: skip
    kinds = {name: (one.kind, one.per_model) for name, one in toy.settings.items()}
    assert kinds["weight"] == (float, True)
    assert kinds["steps"] == (int, False)
    assert kinds["how"] == (str, False)
    assert toy.settings["weight"].required and toy.settings["weight"].default is None
    assert not toy.settings["density"].required and toy.settings["density"].default == 1.0
    assert toy.settings["how"].choices == ("fast", "slow")
    assert toy.settings["lambda"].parameter == "lambda_"
    assert toy.settings["density"].range == Range(0, 1)
    assert toy.settings["limit"].optional
    assert (toy.takes, toy.base, toy.models, toy.elementwise) == (
        "deltas",
        "required",
        (2, 3),
        True,
    )
    assert toy.ignores == ("int8_mask",)
    assert toy.summary == "Do nothing at all."
    assert toy.stage is None


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("weight", 1, 1.0),
        ("weight", -2.5, -2.5),
        ("density", 0, 0.0),
        ("density", 1.0, 1.0),
        ("steps", 3, 3),
        ("normalize", False, False),
        ("how", "slow", "slow"),
        ("limit", None, None),
        ("limit", 0, 0.0),
        ("label", "x", "x"),
        ("pairs", 6, 3),
    ],
)
def test_value_is_taken_as_the_function_takes_it(toy, name, value, parsed):
    found = toy.setting(name).parse(value)
    assert found == parsed and type(found) is type(parsed)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight", "a", "weight is 'a', expected a number"),
        ("weight", True, "weight is True, expected a number"),
        ("weight", None, "weight is None, expected a number"),
        ("weight", float("nan"), "weight is nan, expected a number"),
        ("weight", float("inf"), "weight is inf, expected a number"),
        ("weight", [1.0], "weight is [1.0], expected a number"),
        ("density", 1.5, "density is 1.5, expected a number between 0 and 1"),
        ("density", -0.1, "density is -0.1, expected a number between 0 and 1"),
        ("steps", 0, "steps is 0, expected a whole number of 1 or more"),
        ("steps", 2.0, "steps is 2.0, expected a whole number of 1 or more"),
        ("steps", True, "steps is True, expected a whole number of 1 or more"),
        ("normalize", 1, "normalize is 1, expected true or false"),
        ("normalize", "yes", "normalize is 'yes', expected true or false"),
        ("how", "slwo", "how is 'slwo', expected one of fast, slow; did you mean 'slow'?"),
        ("how", 3, "how is 3, expected one of fast, slow"),
        ("lambda", 0, "lambda is 0.0, expected a number above 0"),
        ("limit", -1, "limit is -1.0, expected a number of 0 or more"),
        ("label", 3, "label is 3, expected a text"),
        ("pairs", 3, "pairs is 3, expected an even number"),
    ],
)
def test_wrong_value_is_refused_in_words(toy, name, value, message):
    with pytest.raises(EditError) as refused:
        toy.setting(name).parse(value)
    assert str(refused.value) == message


def said(call, *given):
    with pytest.raises(EditError) as refused:
        call(*given)
    return str(refused.value)


def test_unknown_setting_is_refused_with_the_nearest(toy):
    assert said(toy.setting, "densty") == "toy has no setting 'densty'; did you mean 'density'?"
    assert said(toy.setting, "xyz").startswith("toy has no setting 'xyz'; it has weight, density,")
    bare = registry.Function("bare", print, {}, "tensors")
    assert said(bare.setting, "weight") == "bare has no setting 'weight': it has none"


def test_unknown_method_is_refused_with_the_nearest():
    assert said(find_method, "tise") == "there is no merge method 'tise'; did you mean 'ties'?"
    assert "'xyzzy'; there are arcee_fusion, " in said(find_method, "xyzzy")


def test_stages_are_found_where_they_run_alone():
    assert find_stage("trim", "preprocess").stage == "preprocess"
    assert said(find_stage, "trim", "postprocess") == (
        "there is no postprocess stage 'trim'; there are lines, scale, svc"
    )
    assert said(find_stage, "tirm", "preprocess") == (
        "there is no preprocess stage 'tirm'; did you mean 'trim'?"
    )


def test_stage_has_no_setting_of_its_place(monkeypatch):
    monkeypatch.setattr(registry, "_STAGES", {})

    @stage("preprocess")
    def toy_stage(base, delta, *, share: Share, model: int, ctx: Context):
        """Do nothing."""

    assert list(find_stage("toy_stage", "preprocess").settings) == ["share"]
    assert "toy_stage" not in registry.stages("postprocess")


def test_names_are_sorted():
    names = list(registry.methods())
    assert names == sorted(names) and "ties" in names


@pytest.mark.parametrize("function", registry.methods().values(), ids=lambda one: one.name)
def test_method_lies_in_a_file_of_its_name_and_says_what_it_does(function):
    module = function.call.__module__
    if module.startswith("mergekit_rl."):
        assert module == f"mergekit_rl.methods.{function.name}"
    assert function.summary.endswith((".", "…")) or "`" in function.summary
    assert len(function.summary) <= 95
    doc = sys.modules[module].__doc__
    assert doc and "Source:" in function.call.__doc__
    for setting in function.settings.values():
        assert f"{setting.parameter}:" in function.call.__doc__, setting.name


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        (Range(), [-1e9, 0, 1e9], [], ""),
        (Range(0, 1), [0, 0.5, 1], [-0.1, 1.1], "between 0 and 1"),
        (Range(0, 1, open=True), [0.5], [0, 1], "between 0 and 1, both excluded"),
        (Range(2), [2, 3], [1.9], "of 2 or more"),
        (Range(0, open=True), [1e-9], [0, -1], "above 0"),
    ],
)
def test_range_holds_and_names_its_numbers(limits, inside, outside, words):
    assert all(limits.holds(value) for value in inside)
    assert not any(limits.holds(value) for value in outside)
    assert str(limits) == words


def test_key_depends_on_seed_tensor_matrix_and_model_alone():
    one = Context(name="w", models=("a", "b"))
    assert one.key(1) == Context(name="w", models=("b",), layer=3, kind="q_proj").key(0)
    others = [
        one.key(0),
        Context(name="w", seed=1, models=("a", "b")).key(1),
        Context(name="v", models=("a", "b")).key(1),
        Context(name="w", index=1, models=("a", "b")).key(1),
    ]
    assert one.key(1) not in others and len(set(others)) == 4
    assert 0 <= one.key(0) < 2**128
    assert Context(name="w").key(0) != Context(name="w").key(1)
