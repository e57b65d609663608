"""Hypothesis strategies: JSON of the form that each reader expects, right and wrong."""

import json
from typing import Any

from fuzz import values
from hypothesis import strategies as st

SIZES = st.one_of(st.integers(0, 5), st.integers(-(2**70), 2**70), st.sampled_from([2**62, 2**63]))
SHAPES = st.one_of(st.lists(st.integers(0, 4), max_size=4), st.lists(SIZES, max_size=4))
NAMES = st.one_of(st.sampled_from(values.NAMES), st.text(max_size=12))
KEYS = st.one_of(st.sampled_from(values.KEYS), NAMES)
DTYPES = st.one_of(st.sampled_from(values.DTYPES), st.text(max_size=4))
ANY = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
        st.sampled_from([2**63, 10**400, "../x", "\x1b[2J"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def _fields(known: dict[str, st.SearchStrategy]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of some of these fields, each as it should be or anything, and of unknown ones."""
    right_or_not = {key: st.one_of(kind, kind, ANY) for key, kind in known.items()}
    return st.one_of(
        st.fixed_dictionaries(known),
        st.fixed_dictionaries({}, optional=right_or_not),
        st.builds(
            lambda a, b: a | b,
            st.fixed_dictionaries(known),
            st.dictionaries(st.sampled_from(values.FIELDS), ANY, max_size=2),
        ),
    )


def as_json(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")


@st.composite
def safetensors_files(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> bytes:
    """Files whose offsets tile their data more often than not."""
    entries: dict[str, Any] = {}
    at = 0
    for name in draw(st.lists(names, max_size=4, unique=True)):
        shape, dtype = draw(SHAPES), draw(DTYPES)
        size = {"F64": 8, "F32": 4, "I64": 8, "I32": 4, "BF16": 2, "F16": 2, "U16": 2}.get(dtype, 1)
        for n in shape:
            size *= n
        end = at + size if draw(st.integers(0, 9)) else draw(SIZES)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    if draw(st.booleans()):
        entries["__metadata__"] = draw(st.one_of(st.just({"format": "pt"}), ANY))
    text = as_json(entries)
    data = bytes(at if 0 <= at < 10**5 else 7)
    return len(text).to_bytes(8, "little") + text + data


INDEXES = _fields(
    {
        "metadata": ANY,
        "weight_map": st.dictionaries(
            NAMES, st.sampled_from(("model-00001-of-00002.safetensors", *values.PATHS)), max_size=4
        ),
    }
)
CONFIGS = _fields(
    {
        "model_type": st.sampled_from(values.MODEL_TYPES),
        "tie_word_embeddings": st.booleans(),
        "text_config": _fields({"tie_word_embeddings": st.booleans()}),
        "vision_config": ANY,
    }
)
ADAPTER_CONFIGS = _fields(
    {
        "peft_type": st.just("LORA"),
        "r": st.integers(1, 8),
        "lora_alpha": st.floats(0, 100),
        "use_rslora": st.booleans(),
        "alpha_pattern": st.dictionaries(
            st.one_of(st.sampled_from(values.REGEXES), st.text(max_size=8)),
            st.floats(0, 9),
            max_size=3,
        ),
        "target_parameters": st.lists(st.sampled_from(values.TARGETS), max_size=2),
        "trainable_token_indices": st.one_of(
            st.lists(st.integers(0, 6), max_size=3),
            st.dictionaries(st.sampled_from(values.FIELDS), st.lists(st.integers(0, 6))),
        ),
        "bias": st.just("none"),
    }
)
CORES = _fields(
    {
        "format": st.just(1),
        "base": _fields(
            {"name": st.text(max_size=5), "tensors": st.dictionaries(NAMES, st.text(max_size=5))}
        ),
        "output": _fields(
            {
                "dtype": DTYPES,
                "other_dtypes": st.dictionaries(NAMES, DTYPES, max_size=2),
                "config": st.text(max_size=5),
            }
        ),
        "targets": st.dictionaries(NAMES, _fields({"rank": SIZES, "shape": SHAPES}), max_size=2),
    }
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Regexes of the subset that is understood, without the repeats that `re` is slow at."""
    atoms = st.sampled_from(
        ["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", r"\w", "1", "-", "]", "}"]
    )
    piece = st.builds(
        str.__add__, atoms, st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{,2}?"])
    )
    row = st.lists(piece, min_size=1, max_size=4).map("".join)
    group = st.lists(row, min_size=1, max_size=3).map(lambda rows: f"(?:{'|'.join(rows)})")
    body = draw(st.lists(st.one_of(row, group), max_size=3).map("".join))
    return draw(st.sampled_from(["", "^"])) + body + draw(st.sampled_from(["", "$"]))
