"""YAML as plain values: types, lines, and what no recipe may hold."""

import json
import time
from pathlib import Path

import pytest
import yaml

from mergekit_rl import EditError
from mergekit_rl.recipe.document import parse_text, read_documents
from mergekit_rl.recipe.yaml_reader import key_text


def data_of(text):
    (document,) = parse_text(text, "r.yaml")
    return document.data


def refused(text, file="r.yaml"):
    with pytest.raises(EditError) as caught:
        parse_text(text, file)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-7", -7), ("+3", 3), ("0.5", 0.5), (".5", 0.5), ("1.", 1.0), ("1e-5", 1e-5),
        ("1E3", 1000.0), ("-2.5e+2", -250.0), ("true", True), ("Yes", True), ("on", True),
        ("FALSE", False), ("no", False), ("off", False), ("null", None), ("~", None), ("", None),
        ("word", "word"), ("'1'", "1"), ('"true"', "true"), ("1.5.2", "1.5.2"), ("0x10", "0x10"),
        ("12:30", "12:30"), ("2024-01-02", "2024-01-02"), ("y", "y"), ("|\n  a\n  b", "a\nb"),
        ("[1, two, 3.0]", [1, "two", 3.0]), ("{a: 1}", {"a": 1}), ("[]", []),
    ],
)  # fmt: skip
def test_scalars_are_read_as_a_person_means_them(text, value):
    found = data_of(f"key: {text}")["key"]
    assert found == value and type(found) is type(value)


def test_numbers_in_scientific_form_are_numbers_though_yaml_1_1_says_text():
    assert yaml.safe_load("eps: 1e-5")["eps"] == "1e-5"
    assert data_of("eps: 1e-5")["eps"] == 1e-5


def test_keys_are_texts_whatever_they_look_like():
    assert data_of("1: a\ntrue: b\nnull: c") == {"1": "a", "true": "b", "null": "c"}


def test_tagged_text_is_text():
    assert data_of("key: !!str 5")["key"] == "5"


@pytest.mark.parametrize("number", [".inf", "-.inf", ".NaN", "1e400", "-1e999"])
def test_numbers_that_are_not_finite_are_refused(number):
    message = refused(f"merge_method: linear\nparameters: {{weight: {number}}}")
    assert message == f"r.yaml:2: parameters.weight is {number}, expected a finite number"


def test_every_key_knows_its_line():
    text = "a: 1\nb:\n  - c: 2\n    d:\n      e: [1,\n          2]\n"
    (document,) = parse_text(text, "r.yaml")
    lines = {
        ("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 0, "c"): 3, ("b", 0, "d"): 4,
        ("b", 0, "d", "e"): 5, ("b", 0, "d", "e", 1): 6,
    }  # fmt: skip
    assert {path: document.lines[path] for path in lines} == lines
    assert document.where(("b", 0, "d", "e", 1)) == "r.yaml:6"


def test_a_key_that_is_not_there_has_the_line_of_what_is_around_it():
    (document,) = parse_text("a: 1\nb:\n  c: 2\n", "r.yaml")
    assert document.where(("b", "absent", 3)) == "r.yaml:2"
    assert document.where(("absent",)) == "r.yaml:1"
    assert str(document.error(("b", "c"), "words")) == "r.yaml:3: words"


def test_lines_of_later_documents_count_from_the_top_of_the_file():
    first, second = parse_text("name: a\n---\n# words\nname: b\n", "r.yaml")
    assert (first.where(("name",)), second.where(("name",))) == ("r.yaml:1", "r.yaml:4")


def test_empty_documents_are_passed_over():
    assert [one.data for one in parse_text("---\n---\na: 1\n---\n", "r.yaml")] == [{"a": 1}]


@pytest.mark.parametrize("text", ["", "\n\n", "# only words\n", "---\n"])
def test_an_empty_file_is_refused(text):
    assert refused(text) == "r.yaml:1: is empty, expected a recipe (`rledit recipes` has some)"


@pytest.mark.parametrize(("text", "kind"), [("[1, 2]", "a list"), ("word", "a single value")])
def test_a_document_that_is_no_mapping_is_refused(text, kind):
    assert refused(f"\n{text}") == (
        f"r.yaml:2: is {kind}, expected keys and values such as merge_method: linear"
    )


def test_a_key_written_twice_is_refused_at_its_second_line():
    text = "models:\n  - model: a\n    model: b\n"
    assert refused(text) == "r.yaml:3: 'model' is written twice in models[0]"
    assert refused("a: 1\n'a': 2") == "r.yaml:2: 'a' is written twice"


@pytest.mark.parametrize(
    "text",
    ["a: [1, 2", "a: {b: 1", "a: 'x", "a: b: c", "\ta: 1", "a: *nowhere", "a: %", "- a\nb: 1"],
)
def test_what_is_no_yaml_is_refused_with_a_line(text):
    assert refused("k: 1\n" + text).startswith(("r.yaml:2: is no YAML: ", "r.yaml:3: is no YAML: "))


def test_a_control_character_is_one_line_of_error():
    assert refused("a: 1\nb: \x00").startswith("r.yaml:")


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!custom", "!!binary"]
)
def test_tags_of_other_types_are_refused(tag):
    message = refused(f"a: 1\nb: {tag} x")
    assert message.startswith("r.yaml:2: b has the tag ") and message.endswith("only plain values")


def test_a_key_that_is_no_text_is_refused():
    assert refused("a:\n  ? [1, 2]\n  : b") == "r.yaml:2: a has a key that is no text"


def test_nesting_is_capped():
    assert data_of("a: " + "[" * 29 + "]" * 29)
    assert refused("a: " + "[" * 31 + "]" * 31) == "r.yaml:1: is nested deeper than 30 levels"
    assert "nested deeper than 30 levels" in refused("a: " + "[" * 20_000 + "]" * 20_000)
    assert "nested deeper than 30 levels" in refused("{a: " * 5_000 + "1" + "}" * 5_000)


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x {b: *x}", "&x a: {<<: *x}"])
def test_an_alias_within_itself_is_refused(text):
    assert refused(text).startswith("r.yaml:1: ")


def test_an_alias_bomb_is_refused_at_once():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    started = time.perf_counter()
    assert "has more than 100000 values, aliases followed" in refused("\n".join(lines))
    assert time.perf_counter() - started < 5


def test_aliases_and_merged_mappings_work_within_reason():
    text = "common: &c {weight: 1, density: 0.5}\na: {<<: *c, weight: 2}\nb: *c"
    assert data_of(text)["a"] == {"weight": 2, "density": 0.5}
    assert data_of(text)["b"] == {"weight": 1, "density": 0.5}


def test_several_mappings_merge_into_one_the_first_wins():
    text = "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}"
    assert yaml.safe_load(text)["c"] == {"x": 1, "y": 2}
    assert data_of(text)["c"] == {"x": 1, "y": 2}


def test_a_merged_mapping_may_itself_merge():
    text = "a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}"
    assert yaml.safe_load(text)["c"] == {"x": 1, "y": 2, "z": 3}
    assert data_of(text)["c"] == {"x": 1, "y": 2, "z": 3}


def test_merging_what_is_no_mapping_is_refused():
    assert refused("a: {<<: 3}") == "r.yaml:1: << merges something that is no mapping"


def test_a_merged_key_that_is_no_text_is_refused():
    assert "key that is no text" in refused("a: {<<: {? [1] : b}}")


def test_merging_one_mapping_again_and_again_is_capped():
    keys = range(1500)
    text = "a: &a {" + ", ".join(f"k{i}: 1" for i in keys) + "}\nb:\n"
    text += "".join(f"  k{i}: 1\n" for i in keys) + "  <<: *a\n" * 1500
    assert "has more than 100000 values" in refused(text)


LONG = "9" * 5000


@pytest.mark.parametrize(
    "text", [f"a: {LONG}e999", f"a: !<{LONG}> b", f"? {LONG}\n: 1\n? {LONG}\n: 2"]
)
def test_errors_fit_a_screen_however_long_what_they_quote(text):
    assert len(refused(text)) < 1000


def test_errors_are_one_line_whatever_the_keys():
    assert refused('"a\\nb": {c: 1, c: 2}').startswith("r.yaml:1: ")


def test_a_large_text_is_refused_unread():
    assert refused("a: " + "x" * 1_000_000) == (
        "r.yaml: is larger than 1000000 bytes, which no recipe is"
    )


def test_a_file_has_its_name_without_its_folder_in_messages(tmp_path):
    (tmp_path / "mine.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(EditError, match=r"^mine\.yaml:2: 'a' is written twice$"):
        read_documents(tmp_path / "mine.yaml")


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_a_large_file_is_refused_unread(tmp_path, suffix):
    path = tmp_path / f"mine.{suffix}"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(EditError, match="is larger than 1000000 bytes, which no recipe is"):
        read_documents(path)


def test_files_that_cannot_be_read_say_why(tmp_path):
    with pytest.raises(EditError) as caught:
        read_documents(tmp_path / "absent.yaml")
    absent = f"{tmp_path}/absent.yaml cannot be read: No such file or directory"
    assert str(caught.value) == absent
    with pytest.raises(EditError) as caught:
        read_documents(tmp_path)
    assert str(caught.value) == f"{tmp_path} is a folder, expected a recipe file"
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(EditError) as caught:
        read_documents(tmp_path / "bytes.yaml")
    assert str(caught.value) == f"{tmp_path}/bytes.yaml cannot be read: it is no UTF-8 text"
    with pytest.raises(EditError, match="cannot be read"):
        read_documents("a\0b")


def test_a_marker_gives_its_recipe_and_every_error_its_file(tmp_path):
    path = tmp_path / "rledit.json"
    path.write_text(json.dumps({"rledit": "0.1.0", "recipe": {"merge_method": "linear"}}))
    (document,) = read_documents(path)
    assert document.data == {"merge_method": "linear"}
    assert document.where(("merge_method",)) == "rledit.json:1"
    for content, words in (
        ({"rledit": "0.1.0"}, "rledit.json:1: holds no recipe: it is not of a merge"),
        ([], "rledit.json:1: holds no recipe, expected a mapping or a list of them"),
        ([1], "rledit.json:1: holds no recipe, expected a mapping or a list of them"),
        ({"rledit": "0.1.0", "recipe": "x"}, "rledit.json:1: holds no recipe, expected a mapping"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(EditError) as caught:
            read_documents(path)
        assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON: "), ("[" * 100_000, "is no JSON: "),
        ('{"a": NaN}', "a is nan, expected a finite number"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "is nested deeper than 30 levels"),
    ],
)  # fmt: skip
def test_json_is_held_to_the_same(tmp_path, text, words):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(EditError) as caught:
        read_documents(path)
    assert str(caught.value).startswith(f"mine.json:1: {words}")


def test_plain_data_is_taken_as_it_is():
    (document,) = read_documents({"a": (1, Path("x/y")), "b": {"c": None}})
    assert document.data == {"a": [1, "x/y"], "b": {"c": None}}
    assert str(document.error(("a",), "words")) == "recipe: words"
    assert [one.data for one in read_documents([{"a": 1}, {"b": 2}])] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {1: 2}}, "recipe: a has the key 1, expected a text"),
        ({"a": float("nan")}, "recipe: a is nan, expected a finite number"),
        ({"a": [float("inf")]}, "recipe: a[0] is inf, expected a finite number"),
        ({"a": {1, 2}}, "recipe: a is of type set, expected plain values"),
        ({"a": b"x"}, "recipe: a is of type bytes, expected plain values"),
        (3, "a recipe is a file, a mapping, or a list of mappings"),
        ([{"a": 1}, 2], "a recipe is a file, a mapping, or a list of mappings"),
    ],
)
def test_other_data_is_refused(value, words):
    with pytest.raises(EditError) as caught:
        read_documents(value)
    assert str(caught.value) == words


def test_data_that_holds_itself_is_refused():
    value = {}
    value["a"] = value
    with pytest.raises(EditError, match="is nested deeper than 30 levels"):
        read_documents(value)


def test_keys_are_written_as_a_person_writes_them():
    assert key_text(()) == ""
    assert key_text(("slices", 1, "sources", 0, "model")) == "slices[1].sources[0].model"
