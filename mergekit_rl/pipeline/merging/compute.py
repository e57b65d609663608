"""The values of one tensor of a merge."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from mergekit_rl.errors import UnusableInput
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.checkpoint import TORCH_DTYPES
from mergekit_rl.io.header import TensorInfo
from mergekit_rl.pipeline.merging.plan import Input, Output, Plan
from mergekit_rl.pipeline.run import Job, current_device
from mergekit_rl.pipeline.tensors import fitting
from mergekit_rl.recipe.schema_parts import StageCall

PIECE = 2**18
"""Numbers at a time where every entry depends on the entries at its place alone: a cache's worth.
"""


@dataclass(frozen=True)
class Totals:
    """What reductions over all tensors found; () before they ran.

    Attributes:
        stages: of the two-pass stage before the merge; method: of the method.
    """

    stages: tuple[float, ...] = ()
    method: tuple[float, ...] = ()


class Merger:
    """Computes the tensors of a plan, each on its own."""

    def __init__(self, plan: Plan, totals: Totals | None = None) -> None:
        self._plan = plan
        self._models = plan.inputs.models
        self._totals = totals or Totals()

    def pieces(self, output: Output) -> Iterator[Tensor]:
        """A tensor of the output in consecutive flat pieces, on the CPU, as it is stored."""
        dtype = TORCH_DTYPES[output.dtype]
        if output.method is None and not output.rows:
            one = output.inputs[0]
            for piece in self._models[one.model].pieces(one.name):
                yield fitting(piece.to(dtype), output.name)
        elif self.streams(output):
            yield from self._streamed(output, dtype)
        else:
            for index in output.matrices:
                yield self.matrix(output, index).reshape(-1)

    def matrix(self, output: Output, index: int | None = None) -> Tensor:
        """A tensor of the output, or one matrix of a stack, as it is stored."""
        dtype = TORCH_DTYPES[output.dtype]
        if output.method is None:
            (values,) = self._read(output, output.inputs, index)
            return fitting(values.to(dtype), output.name).cpu()
        method = output.method
        ctx = replace(output.ctx, index=index or 0, totals=self._totals.method)
        needs_base = method.base != "input" or self._staged(output)
        base, values = self._values(output, index, deltas=method.takes == "deltas")
        edits = self._plan.postprocess and needs_base
        if method.takes == "deltas" and not edits:
            ctx = replace(ctx, out=base)  # nobody else's, and not needed any more
        found = method.call(
            base if method.base != "input" else None, values, **output.settings, ctx=ctx
        )
        if not edits:
            del values, base  # large ones do not wait for the cast
        else:
            deltas = values if method.takes == "deltas" else [v - base for v in values]
            merged = found - base
            for call in self._plan.postprocess:
                merged = call.function.call(base, merged, deltas, **call.settings, ctx=ctx)
            found = base + merged
        return fitting(found.to(dtype), output.name).cpu()

    def stage_totals(self, output: Output) -> list[float]:
        """One tensor's share of what the two-pass stage needs to know."""
        return self._reduced(output, before_two_pass=True)

    def method_totals(self, output: Output) -> list[float]:
        """One tensor's share of what the method needs to know."""
        return self._reduced(output, before_two_pass=False)

    def _reduced(self, output: Output, before_two_pass: bool) -> list[float]:
        sums: list[float] = []
        for index in output.matrices:
            ctx = replace(output.ctx, index=index or 0)
            base, deltas = self._deltas(output, index, until_two_pass=before_two_pass)
            if before_two_pass:
                call = next(call for one in output.inputs for call in one.stages if two_pass(call))
                found = call.function.totals(base, deltas, settings=call.settings, ctx=ctx)
            else:
                found = output.method.totals(base, deltas, settings=output.settings, ctx=ctx)
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else list(found)
        return sums

    def streams(self, output: Output) -> bool:
        """Whether it can be computed piece by piece."""
        if output.rows or not output.method.elementwise or self._staged(output):
            return False
        # An adapter's delta is exact where it isn't formed from the sum of base and delta.
        return output.method.takes != "deltas" or not any(
            isinstance(self._models[one.model], AdaptedCheckpoint) for one in output.inputs
        )

    def _staged(self, output: Output) -> bool:
        """Whether anything is done to deltas before or after the merge."""
        return bool(self._plan.postprocess) or any(one.stages for one in output.inputs)

    def _streamed(self, output: Output, dtype: torch.dtype) -> Iterator[Tensor]:
        method = output.method
        uses_base = method.base != "input"
        inputs = [*([output.base] if uses_base and output.base else []), *output.inputs]
        wide = self._wide(inputs)
        streams = [self._models[one.model].pieces(one.name, PIECE) for one in inputs]
        for parts in zip(*streams, strict=True):
            values = [part.to(current_device()).to(wide) for part in parts]
            base = values.pop(0) if uses_base and output.base else None
            if method.takes == "deltas":
                for value in values:
                    value.sub_(base)
            found = method.call(base, values, **output.settings, ctx=output.ctx)
            yield fitting(found.to(dtype), output.name).cpu()

    def _values(
        self, output: Output, index: int | None, *, deltas: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The base, and the experts' deltas or tensors, after the stages before the merge."""
        if not deltas and not any(one.stages for one in output.inputs):
            uses_base = output.method.base != "input" or bool(self._plan.postprocess)
            one = [output.base] if uses_base and output.base is not None else []
            read = self._read(output, (*one, *output.inputs), index)
            return (read[0], read[1:]) if one else (None, read)
        base, values = self._deltas(output, index)
        return base, values if deltas else [base + delta for delta in values]

    def _deltas(
        self, output: Output, index: int | None, *, until_two_pass: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        if output.base is None:
            raise UnusableInput(
                f"{output.name}: stages work on what a model learnt, so they need a base_model"
            )
        if output.rows:
            base, *others = self._read(output, (output.base, *output.inputs), index)
            deltas = [other.sub_(base) for other in others]
        else:
            wide = self._wide([output.base, *output.inputs])
            base = self._models[output.base.model].read(output.base.name, index)
            base = base.to(current_device()).to(wide)
            deltas = [self._delta(one, output.base, base, wide, index) for one in output.inputs]
        ctx = replace(output.ctx, index=index or 0, totals=self._totals.stages)
        for number, one in enumerate(output.inputs):
            for call in one.stages:
                if until_two_pass and two_pass(call):
                    break
                deltas[number] = call.function.call(
                    base, deltas[number], **call.settings, model=number, ctx=ctx
                )
        return base, deltas

    def _delta(
        self, one: Input, base: Input, w0: Tensor, wide: torch.dtype, index: int | None
    ) -> Tensor:
        """x − b, from the low-rank factors where the model is an adapter over this very base."""
        model = self._models[one.model]
        if isinstance(model, AdaptedCheckpoint) and model.base is not self._models[base.model]:
            return model.read(one.name, index).to(w0.device).to(wide).sub_(w0)
        form = model.delta(one.name, index)
        return torch.zeros_like(w0) if form is None else form(w0).to(wide)

    def _read(self, output: Output, inputs: Sequence[Input], index: int | None) -> list[Tensor]:
        """Whole tensors in fp32 or wider, on this thread's device; laid over the output's
        vocabulary where they have a row per token."""
        wide = self._wide(inputs)
        if output.rows:
            return [
                values.to(current_device())
                for values in self._plan.rows.read(self._plan.inputs, inputs, wide)
            ]
        return [
            self._models[one.model].read(one.name, index).to(current_device()).to(wide)
            for one in inputs
        ]

    def _wide(self, inputs: Sequence[Input]) -> torch.dtype:
        dtypes = {self._models[one.model].tensors[one.name].dtype for one in inputs}
        return torch.float64 if "F64" in dtypes else torch.float32


def two_pass(call: StageCall) -> bool:
    """Whether a stage needs sums over all tensors first."""
    return call.function.totals is not None


def job(plan: Plan, output: Output) -> Job:
    """What the work on one tensor takes."""
    infos = list(plan.infos(output))
    size = sum(info.nbytes for info in infos)
    count = prod(output.shape)
    each = prod(output.shape[1:]) if output.stacked else count
    if output.method is None and not output.rows:
        return Job(output.name, cost=count, memory=2**25, size=size)
    streams = Merger(plan).streams(output)
    # Of what streams, a piece of each model and some that are made of them.
    held, length = (len(infos) + 3, PIECE) if streams else (_held(plan, output), each)
    memory = int(held * length * _width(infos))
    return Job(output.name, cost=count * (1 + len(infos)), memory=memory, size=size)


def _held(plan: Plan, output: Output) -> float:
    """How many tensors of its size, in the dtype they are computed in, an output's computation
    holds at its peak."""
    inputs = [one for one in (output.base, *output.inputs) if one is not None]
    if output.rows:  # as they are stored, laid over the vocabulary, and what fills the gaps
        return 2.0 * len(inputs) + len(plan.inputs.models)
    always, each = output.method.scratch
    # One more is on its way from its dtype into theirs while it is read.
    scratch = max(0.5, always + each * len(output.inputs))
    if any(isinstance(plan.inputs.models[one.model], AdaptedCheckpoint) for one in inputs):
        scratch = max(scratch, 6.0)  # sums of low-rank products are formed in fp64
    if plan.postprocess or any(one.stages for one in output.inputs):
        scratch += 3.0
    return len(inputs) + scratch


def _width(infos: Sequence[TensorInfo]) -> int:
    return 8 if any(info.dtype == "F64" for info in infos) else 4


def summed(found: Mapping[str, list[float]]) -> tuple[float, ...]:
    """The sums of all tensors' shares, in an order that is not that of the work."""
    rows = [found[name] for name in sorted(found)]
    return tuple(map(sum, zip(*rows, strict=True))) if rows else ()
