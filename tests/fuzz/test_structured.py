"""Every reader takes any JSON of about its form, or says in one line why not."""

import json
import re
from pathlib import Path

import pytest
import safetensors
from fuzz import strategies, values
from fuzz.corpus import ADAPTER, CONFIG, CORE, INDEX, LORA, WEIGHTS, seeds
from fuzz.reading import one_line, read_all
from hypothesis import HealthCheck, given, settings

from mergekit_rl import Checkpoint, EditError
from mergekit_rl.io.core import Core
from mergekit_rl.io.header import read_header
from mergekit_rl.io.patterns import Pattern

few = settings(
    max_examples=120,
    deadline=1000,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All seeds as folders; a test writes over the one file that it varies."""
    root = tmp_path_factory.mktemp("seeds")
    for name, seed in seeds().items():
        (root / name).mkdir()
        for file, data in seed.files.items():
            (root / name / file).write_bytes(data)
    return root


def refused(folder: Path, base: Checkpoint | None = None) -> bool:
    try:
        read_all(folder, base)
    except EditError as error:
        one_line(error)
        return True
    return False


@few
@given(strategies.safetensors_files())
def test_a_header_that_is_accepted_is_one_to_safetensors_too(homes, data):
    path = homes / "header.safetensors"
    path.write_bytes(data)
    try:
        infos, _ = read_header(path)
    except EditError as error:
        one_line(error)
        return
    theirs = dict(safetensors.deserialize(data))
    assert {n: (i.dtype, list(i.shape)) for n, i in infos.items()} == {
        n: (t["dtype"], t["shape"]) for n, t in theirs.items()
    }


@few
@given(strategies.safetensors_files())
def test_any_tensors_are_read_or_refused(homes, data):
    (homes / "tied" / WEIGHTS).write_bytes(data)
    refused(homes / "tied")


@few
@given(strategies.INDEXES)
def test_any_index_is_read_or_refused(homes, tree):
    (homes / "sharded" / INDEX).write_bytes(strategies.as_json(tree))
    assert refused(homes / "sharded")  # no name in it is one of the shards'


@few
@given(strategies.CONFIGS)
def test_any_config_is_read_or_refused(homes, tree):
    for name in ("mixtral", "gpt2", "gemma3"):
        (homes / name / CONFIG).write_bytes(strategies.as_json(tree))
        refused(homes / name)
        (homes / name / CONFIG).write_bytes(seeds()[name].files[CONFIG])


@few
@given(strategies.ADAPTER_CONFIGS)
def test_any_adapter_config_is_read_or_refused(homes, tree):
    for name in ("lora", "tokens", "experts"):
        (homes / name / LORA).write_bytes(strategies.as_json(tree))
        base = Checkpoint.open(homes / seeds()[name].base) if name != "tokens" else None
        refused(homes / name, base)
        (homes / name / LORA).write_bytes(seeds()[name].files[LORA])


@pytest.mark.parametrize("kind", ["PATHS", "TEXTS", "NAMES", "REGEXES"])
def test_any_name_of_a_base_is_refused_where_there_is_none(kind, homes):
    for text in getattr(values, kind):
        content = json.loads(seeds()["lora"].files[LORA]) | {"base_model_name_or_path": text}
        (homes / "lora" / LORA).write_text(json.dumps(content))
        assert refused(homes / "lora")
    (homes / "lora" / LORA).write_bytes(seeds()["lora"].files[LORA])


@few
@given(strategies.safetensors_files(strategies.KEYS))
def test_any_adapter_tensors_are_read_or_refused(homes, data):
    (homes / "embeddings" / ADAPTER).write_bytes(data)
    refused(homes / "embeddings", Checkpoint.open(homes / "llama"))


@few
@given(strategies.CORES)
def test_any_core_is_read_or_refused(homes, tree):
    (homes / CORE).write_bytes(strategies.as_json(tree))
    try:
        Core(homes)
    except EditError as error:
        one_line(error)


@settings(few, max_examples=500)
@given(strategies.patterns(), strategies.st.text("ab.1-\n]", max_size=8))
def test_patterns_match_what_the_regex_of_peft_matches(pattern, name):
    expected = re.match(rf"(.*\.)?({pattern})$", name) is not None
    assert Pattern(pattern).matches(name) == expected
