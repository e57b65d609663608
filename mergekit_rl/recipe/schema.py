"""What a merge recipe may say: one pydantic model."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from mergekit_rl.errors import EditError
from mergekit_rl.recipe.reference import ModelReference
from mergekit_rl.recipe.schema_parts import After, Before, Layers, Part, Selectors
from mergekit_rl.registry import find_method

DTYPE_NAMES = ("float32", "fp32", "float16", "fp16", "bfloat16", "bf16", "float64", "fp64")

Dtype = Literal["float32", "fp32", "float16", "fp16", "bfloat16", "bf16", "float64", "fp64"]


def _or(nothing: type) -> BeforeValidator:
    """A key with nothing below it says no more than its absence."""
    return BeforeValidator(lambda value: nothing() if value is None else value)


Parameters = Annotated[dict[str, Any], _or(dict)]
_REFERENCE_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "model": {"type": "object", "required": ["path"]},
                "lora": {"type": "object", "required": ["path"]},
                "path": {"type": "string"},
                "revision": {"type": "string"},
            },
        },
    ]
}
Reference = Annotated[
    ModelReference,
    BeforeValidator(ModelReference.parse),
    PlainSerializer(str),
    WithJsonSchema(_REFERENCE_SCHEMA),
]


class ModelEntry(Part):
    """A model of `models`."""

    model: Reference
    parameters: Parameters = Field(default_factory=dict)
    preprocess: list[Before] | None = None


class SourceEntry(ModelEntry):
    """A model of an output slice, and which of its layers."""

    layer_range: Layers


class SliceEntry(Part):
    """Consecutive layers of the output."""

    sources: list[SourceEntry] = Field(min_length=1)
    base_model: Reference | None = None
    parameters: Parameters = Field(default_factory=dict)

    @model_validator(mode="after")
    def _equal_lengths(self) -> "SliceEntry":
        lengths = [source.layer_range[1] - source.layer_range[0] for source in self.sources]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"its sources have {', '.join(map(str, lengths))} layers: all must have as many"
            )
        return self


class ModuleEntry(Part):
    """A sub-model of a multimodal checkpoint."""

    models: list[ModelEntry] | None = Field(default=None, min_length=1)
    slices: list[SliceEntry] | None = Field(default=None, min_length=1)
    parameters: Parameters = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of(self) -> "ModuleEntry":
        if (self.models is None) == (self.slices is None):
            raise ValueError("expected either models or slices")
        return self


class TokenRow(Part):
    """Where a token's rows come from, if it is not a model's own."""

    kind: Literal["zero", "model_token"]
    model: Reference | None = None
    token: str | None = None
    token_id: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> "TokenRow":
        named = (self.token is None) + (self.token_id is None)
        if self.kind == "model_token" and (self.model is None or named != 1):
            raise ValueError("kind model_token needs a model, and either token or token_id")
        if self.kind == "zero" and (self.model is not None or named != 2):
            raise ValueError("kind zero takes no model and no token")
        return self


def _row(value: Any) -> Any:
    if isinstance(value, Mapping) and "kind" in value:
        return TokenRow.model_validate(value)
    return ModelReference.parse(value)


class TokenEntry(Part):
    """A token of the output whose rows the recipe decides."""

    source: Annotated[TokenRow | ModelReference, BeforeValidator(_row), WithJsonSchema({})]
    force: bool = False


def _word_or_model(*words: str) -> Any:
    """One of some words, or else a model."""

    def parse(value: Any) -> str | ModelReference:
        if isinstance(value, str | Mapping | ModelReference):
            return value if value in words else ModelReference.parse(value)
        raise ValueError(f"expected {', '.join(words)} or a model")

    return Annotated[
        str | ModelReference,
        BeforeValidator(parse),
        WithJsonSchema({"anyOf": [{"enum": list(words)}, *_REFERENCE_SCHEMA["anyOf"]]}),
    ]


Vocabulary = _word_or_model("union", "base")
Rest = _word_or_model("base", "mean")
Router = _word_or_model("merge", "base", "mean")


class TokenizerEntry(Part):
    """The vocabulary of the output."""

    source: Vocabulary = "union"
    tokens: Annotated[dict[str, TokenEntry], _or(dict)] = Field(default_factory=dict)
    pad_to_multiple_of: int | None = Field(default=None, ge=1, le=1_000_000)


def _method(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected the name of a merge method (`rledit methods` lists them)")
    try:
        return find_method(value).name
    except EditError as error:
        raise ValueError(str(error)) from None


class MergeRecipe(Part):
    """A merge recipe: a superset of mergekit's."""

    name: str | None = Field(default=None, min_length=1, description="What others call the result.")
    merge_method: Annotated[str, BeforeValidator(_method)]
    models: list[ModelEntry] | None = Field(default=None, min_length=1)
    slices: list[SliceEntry] | None = Field(default=None, min_length=1)
    modules: dict[str, ModuleEntry] | None = Field(default=None, min_length=1)
    base_model: Reference | None = None
    parameters: Parameters = Field(default_factory=dict)
    dtype: Dtype | None = None
    out_dtype: Dtype | None = None
    tokenizer_source: Vocabulary | None = None
    tokenizer: TokenizerEntry | None = None
    chat_template: str | None = None
    include: Selectors | None = None
    exclude: Selectors | None = None
    preprocess: Annotated[list[Before], _or(list)] = Field(default_factory=list)
    postprocess: Annotated[list[After], _or(list)] = Field(default_factory=list)
    rest: Rest = "base"
    router: Router = "merge"
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    embeddings: Literal["tie", "untie"] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "MergeRecipe":
        given = [key for key in ("models", "slices", "modules") if getattr(self, key) is not None]
        if len(given) != 1:
            has = " and ".join(given) or "none of them"
            raise ValueError(f"expected exactly one of models, slices and modules; it has {has}")
        if self.tokenizer_source is not None and self.tokenizer is not None:
            raise ValueError("tokenizer_source and tokenizer say the same: give one")
        return self
