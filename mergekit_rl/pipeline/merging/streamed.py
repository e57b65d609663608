"""The result of one merge as the input of the next, computed as it is read."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.header import TensorInfo
from mergekit_rl.pipeline.merging.compute import Merger, Totals
from mergekit_rl.pipeline.merging.config import merged_config
from mergekit_rl.pipeline.merging.plan import Plan


class MergedCheckpoint(Checkpoint):
    """What a plan would write, without a disk in between: the values are those of the written
    files, rounded to their dtype.

    Attributes:
        plan: of the merge.
        totals: of its reductions; set before the first tensor is read.
    """

    def __init__(self, name: str, plan: Plan) -> None:
        if plan.rows is not None:
            raise EditError(
                f"{name} has a tokenizer: only the last document may change the vocabulary; merge "
                "it to a folder of its own first"
            )
        donor = plan.inputs.models[plan.inputs.donor]
        tensors = {
            output.name: TensorInfo(
                name=output.name,
                dtype=output.dtype,
                shape=output.shape,
                path=donor.folder,
                offset=0,
                nbytes=output.nbytes,
            )
            for output in plan.outputs
        }
        super().__init__(name, donor.folder, None, merged_config(plan), tensors)
        self.plan = plan
        self.totals = Totals()
        self._outputs = {output.name: output for output in plan.outputs}

    @property
    def name(self) -> str:
        return self.ref

    def read(self, name: str, index: int | None = None) -> Tensor:
        output = self._outputs[name]
        merger = Merger(self.plan, self.totals)
        if index is not None and output.stacked and output.method is not None:
            return merger.matrix(output, index)
        pieces = list(merger.pieces(output))
        whole = torch.cat(pieces) if pieces else torch.empty(0)
        whole = whole.reshape(output.shape)
        return whole if index is None else whole[index]

    def pieces(self, name: str, elements: int = 2**22) -> Iterator[Tensor]:
        yield from self.read(name).reshape(-1).split(elements)

    def fingerprint(self, *, times: bool = True) -> list[str]:
        return [self.plan.key(times=times)]
