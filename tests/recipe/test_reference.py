"""`path-or-id[@revision][+lora[@revision]]`, and existing paths before all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergekit_rl.recipe.reference import ModelReference

parse = ModelReference.parse


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Relative paths are of an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/name", ("org/name", None, None, None)),
        ("org/name@main", ("org/name", "main", None, None)),
        ("org/name+me/lora", ("org/name", None, "me/lora", None)),
        ("org/name@main+me/lora", ("org/name", "main", "me/lora", None)),
        ("org/name+me/lora@v2", ("org/name", None, "me/lora", "v2")),
        ("org/name@main+me/lora@v2", ("org/name", "main", "me/lora", "v2")),
        ("./math", ("./math", None, None, None)),
        ("/a/b c", ("/a/b c", None, None, None)),
        ("a@b@c", ("a@b", "c", None, None)),
        ("@main", ("@main", None, None, None)),
        ("name@", ("name@", None, None, None)),
        ("a+b+c", ("a", None, "b+c", None)),
        ("~/models/a", ("~/models/a", None, None, None)),
    ],
)
def test_text_is_taken_apart(text, parts):
    assert parse(text) == ModelReference(*parts)
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("there", "text", "parts"),
    [
        (["a+b"], "a+b", ("a+b", None, None, None)),
        (["a@b"], "a@b", ("a@b", None, None, None)),
        (["a+b@c"], "a+b@c", ("a+b@c", None, None, None)),
        (["a+b"], "a+b+lora", ("a+b", None, "lora", None)),
        (["a+b", "a+b+c"], "a+b+c+lora", ("a+b+c", None, "lora", None)),
        (["a+b"], "a+b+c+lora", ("a+b", None, "c+lora", None)),
        (["a", "b+c"], "a+b+c", ("a", None, "b+c", None)),
        (["a@b"], "a@b+lora", ("a@b", None, "lora", None)),
        (["lora@x"], "a+lora@x", ("a", None, "lora@x", None)),
        (["a"], "a+lora@x", ("a", None, "lora", "x")),
        (["d/a+b@c"], "d/a+b@c+l@r", ("d/a+b@c", None, "l", "r")),
    ],
)
def test_an_existing_path_wins_over_its_parts(there, text, parts, tmp_path):
    for name in there:
        (tmp_path / name).mkdir(parents=True)
    assert parse(text) == ModelReference(*parts)
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"model": {"path": "a"}}, ("a", None, None, None)),
        ({"model": "a"}, ("a", None, None, None)),
        ({"path": "a", "revision": "r"}, ("a", "r", None, None)),
        ({"model": {"path": "a", "revision": "r"}}, ("a", "r", None, None)),
        ({"model": {"path": "a+b@c"}}, ("a+b@c", None, None, None)),
        ({"model": "a", "lora": "l"}, ("a", None, "l", None)),
        ({"model": "a", "lora": None}, ("a", None, None, None)),
        (
            {"model": {"path": "a", "revision": "r"}, "lora": {"path": "l", "revision": "s"}},
            ("a", "r", "l", "s"),
        ),
    ],
)
def test_mapping_names_the_parts_without_parsing_them(value, parts):
    assert parse(value) == ModelReference(*parts)


def test_a_reference_stays_itself():
    reference = ModelReference("a", "r", "l", "s")
    assert parse(reference) is reference


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "expected a folder or a Hub id"),
        ("   ", "expected a folder or a Hub id"),
        ("a\0b", "expected a folder or a Hub id"),
        ("a+", "expected a model on both sides of +"),
        ("+l", "expected a model on both sides of +"),
        ("+", "expected a model on both sides of +"),
        (None, "expected a folder, a Hub id, or {model: {path: …}}"),
        (3, "expected a folder, a Hub id, or {model: {path: …}}"),
        ([], "expected a folder, a Hub id, or {model: {path: …}}"),
        ({}, "expected a folder, a Hub id, or {model: {path: …}}"),
        ({"lora": "l"}, "expected a folder, a Hub id, or {model: {path: …}}"),
        ({"model": 3}, "expected model: {path: …, revision: …}"),
        ({"model": {}}, "model has no path"),
        ({"model": {"path": ""}}, "model has no path"),
        ({"model": {"path": 3}}, "model has no path"),
        ({"path": "a", "revision": 3}, "the revision of model is 3, expected a text"),
        ({"model": "a", "lora": {"path": "l", "revision": 3}}, "the revision of lora is 3"),
        ({"model": "a", "lora": 3}, "expected lora: {path: …, revision: …}"),
        ({"model": "a", "lore": "l"}, "unknown key 'lore', expected model and lora"),
        ({"path": "a", "branch": "b"}, "unknown key 'branch', expected path and revision"),
    ],
)
def test_other_forms_are_refused_in_words(value, words):
    with pytest.raises(ValueError) as caught:
        parse(value)
    assert str(caught.value).startswith(words)


@given(st.text(max_size=30))
def test_any_text_is_a_reference_that_reads_as_it_was_written_or_is_refused(text):
    try:
        reference = parse(text)
    except ValueError:
        return
    assert str(reference) == text and reference.path


@given(st.text("ab+@/.", max_size=10))
def test_texts_of_separators_are_taken_apart_without_loss(text):
    try:
        reference = parse(text)
    except ValueError:
        assert not text.strip() or text.startswith("+") or text.endswith("+")
        return
    assert str(reference) == text and parse(str(reference)) == reference
