"""What a merge will do to every tensor."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from mergekit_rl import __version__
from mergekit_rl.io.checkpoint import FLOATS
from mergekit_rl.io.header import TensorInfo, tensor_bytes
from mergekit_rl.io.names import is_expert_stack
from mergekit_rl.pipeline.merging.inputs import Inputs
from mergekit_rl.pipeline.merging.layers import Placed
from mergekit_rl.pipeline.merging.vocabulary import TokenRows
from mergekit_rl.recipe.recipe import Recipe
from mergekit_rl.recipe.schema_parts import StageCall
from mergekit_rl.registry import Context, Function


@dataclass(frozen=True)
class Input:
    """One model's part in an output tensor.

    Attributes:
        model: its number in `Inputs`.
        name: of its tensor.
        stages: what is done to its delta before the merge.
    """

    model: int
    name: str
    stages: tuple[StageCall, ...] = ()


@dataclass(frozen=True)
class Output:
    """One tensor of the output.

    Attributes:
        name, dtype, shape: of the result; dtype as safetensors names it.
        method: None where `inputs` holds the one tensor that is passed on as it is.
        base: the base's tensor, None where there is none.
        inputs: of the models that are merged, in the recipe's order.
        settings: the method's keyword arguments.
        origins: {setting: where its value was written}.
        ctx: the tensor's place.
        rows: whether it has one row per token, and is laid over another vocabulary.
        why: of a tensor that is passed on, the reason.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    method: Function | None
    base: Input | None
    inputs: tuple[Input, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Any] = field(default_factory=dict)
    ctx: Context = field(default_factory=Context)
    rows: bool = False
    why: str = ""

    @property
    def stacked(self) -> bool:
        """Whether it is a packed stack of experts: one matrix after the other."""
        return is_expert_stack(self.name, self.shape)

    @property
    def matrices(self) -> list[int | None]:
        """The indices of its matrices; [None] for the tensor itself."""
        return list(range(self.shape[0])) if self.stacked else [None]

    @property
    def nbytes(self) -> int:
        """Size of the result."""
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Plan:
    """What a merge does.

    Attributes:
        recipe, inputs: what is merged and how.
        outputs: every tensor of the output, in the order it lies there.
        placed: where the output's layers come from, None where they are the donor's own.
        rows: of another vocabulary, None where the vocabulary is the donor's.
        notes: what the user should know.
        chat: the text of the chat template; None for the tokenizer's own.
        asked_dtype: what was asked for beside the recipe, None for nothing.
    """

    recipe: Recipe
    inputs: Inputs
    outputs: tuple[Output, ...]
    placed: Placed
    rows: TokenRows | None
    notes: tuple[str, ...]
    asked_dtype: str | None = None
    chat: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The recipe's document that makes this output again."""
        asked = {"out_dtype": self.asked_dtype} if self.asked_dtype else {}
        return {**self.recipe.document.data, **asked}

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """{name: (dtype, shape)} of the output."""
        return {output.name: (output.dtype, output.shape) for output in self.outputs}

    @property
    def dtype(self) -> str:
        """The dtype that most of the output's floating-point numbers have."""
        counts: dict[str, int] = {}
        for output in self.outputs:
            if output.dtype in FLOATS:
                counts[output.dtype] = counts.get(output.dtype, 0) + prod(output.shape)
        return max(counts, key=counts.__getitem__)

    @property
    def merged(self) -> tuple[Output, ...]:
        """The tensors that are not passed on as they are."""
        return tuple(output for output in self.outputs if output.method is not None)

    @cached_property
    def copied(self) -> dict[str, list[str]]:
        """{reason: names} of the tensors that are passed on as they are."""
        found: dict[str, list[str]] = {}
        for output in self.outputs:
            if output.method is None:
                found.setdefault(output.why, []).append(output.name)
        return found

    @property
    def postprocess(self) -> tuple[StageCall, ...]:
        """What is done to the merged delta."""
        return self.recipe.postprocess

    def infos(self, output: Output) -> Iterator[TensorInfo]:
        """The input tensors of an output."""
        for one in (output.base, *output.inputs):
            if one is not None:
                yield self.inputs.models[one.model].tensors[one.name]

    def key(self, *, times: bool = True) -> str:
        """What identifies the plan and its inputs' content; see `Checkpoint.fingerprint`."""
        parts = [
            __version__,
            self.document,
            self.inputs.fingerprint(times=times),
            [[output.name, output.dtype, list(output.shape)] for output in self.outputs],
            None if self.rows is None else self.rows.digest,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
