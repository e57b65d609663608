"""Tokens and ids, as the files of a tokenizer say them."""

import json

import pytest

from mergekit_rl.errors import EditError
from mergekit_rl.io.vocabulary import read_vocabulary, same_file, tokenizer_file


def fast(folder, vocab, added=()):
    folder.mkdir(exist_ok=True)
    entries = [{"id": number, "content": text} for text, number in added]
    content = {"added_tokens": entries, "model": {"vocab": vocab}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_added_tokens_join_those_of_the_model(tmp_path):
    found = read_vocabulary(fast(tmp_path, {"a": 0, "b": 1}, [("<s>", 2), ("b", 1)]))
    assert found.ids == {"a": 0, "b": 1, "<s>": 2}
    assert set(found.added) == {"<s>", "b"}
    assert found.rows == 3
    assert found.texts == {0: "a", 1: "b", 2: "<s>"}


def test_a_unigram_vocabulary_is_numbered_by_place(tmp_path):
    assert read_vocabulary(fast(tmp_path, [["a", -1.0], ["b", -2.0]])).ids == {"a": 0, "b": 1}


def test_ids_may_have_gaps(tmp_path):
    assert read_vocabulary(fast(tmp_path, {"a": 0, "b": 7})).rows == 8


def test_older_files_are_read(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "added_tokens.json").write_text('{"<s>": 2}')
    assert read_vocabulary(tmp_path).ids == {"a": 0, "b": 1, "<s>": 2}
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "added_tokens.json").unlink()
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    assert read_vocabulary(tmp_path).ids == {"a": 0, "b": 1}


def test_a_folder_without_a_tokenizer_has_no_vocabulary(tmp_path):
    assert tokenizer_file(tmp_path) is None
    assert read_vocabulary(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x01")
    assert read_vocabulary(tmp_path) is None


def test_files_are_compared_by_name_and_bytes(tmp_path):
    one = fast(tmp_path / "one", {"a": 0}) / "tokenizer.json"
    two = fast(tmp_path / "two", {"a": 0}) / "tokenizer.json"
    three = fast(tmp_path / "three", {"a": 1}) / "tokenizer.json"
    assert same_file(one, two)
    assert not same_file(one, three)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ("a", "has no model.vocab and added_tokens, expected the file that"),
        ({"a": "0"}, "token 'a' has the id '0', expected a number"),
        ({"a": -1}, "token 'a' has the id -1, expected a number"),
        ({"a": 2**40}, "token 'a' has the id 1099511627776, expected a number"),
        ({"a": True}, "token 'a' has the id True, expected a number"),
        ({"a": 0, "b": 0}, "'a' and 'b' have the same id, 0"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path, vocab, message):
    with pytest.raises(EditError) as caught:
        read_vocabulary(fast(tmp_path, vocab))
    assert message in str(caught.value)
