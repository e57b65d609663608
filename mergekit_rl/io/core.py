"""The core artifact: a PEFT adapter with a `core.json` that says what it is of.

adapter_model.safetensors  fp32 factors, Δ* = B A
adapter_config.json        PEFT's, scaling 1
core.json                  base and its digests, options, per-tensor figures
rledit.json, README.md     provenance and model card, as in every output
tokenizer files, …         the expert's
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.adapter_layout import expert_offsets
from mergekit_rl.io.checkpoint import TORCH_DTYPES
from mergekit_rl.io.folder import check_link
from mergekit_rl.io.header import is_name
from mergekit_rl.io.jsonfile import read_object, shown
from mergekit_rl.io.modules import Modules

FILE = "core.json"
FORMAT = 1


class Core:
    """A core folder's own description.

    Attributes:
        folder: where it lies.
        ranks: {target: rank of its factors}; `shapes`: their shapes.
        base_name: Hub id or folder name of the base.
        digests: {every tensor of the base: digest of its values}.
        dtypes: {every tensor of the base: dtype of the output}.
        config_text: config.json of the model it makes, "" where none was there.
        content: all of core.json.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        if not path.is_file():
            raise EditError(f"{folder} holds no {FILE}: expected a core that `rledit sar` wrote")
        check_link(folder, path)
        self.folder = folder
        self._offsets: dict[str, int] | None = None
        self.content = read_object(path)
        version = self.content.get("format")
        if version != FORMAT:
            raise EditError(f"{path}: format is {shown(version)}, expected {FORMAT}")
        base = _field(self.content, "base", dict, path)
        output = _field(self.content, "output", dict, path)
        targets = _field(self.content, "targets", dict, path)
        self.digests: dict[str, str] = _field(base, "tensors", dict, path)
        for name in self.digests:
            if not is_name(name):
                raise EditError(f"{path}: {shown(name)} is no tensor's name: the file is damaged")
        default = _field(output, "dtype", str, path)
        others = _field(output, "other_dtypes", dict, path)
        self.dtypes = {name: others.get(name, default) for name in self.digests}
        self.config_text = _field(output, "config", str, path)
        self.base_name = _field(base, "name", str, path)
        if not is_name(self.base_name):
            raise EditError(f"{path}: the base's name is {shown(self.base_name)}: it is damaged")
        self.ranks = {name: _rank(target, path) for name, target in targets.items()}
        self.shapes = {name: _shape(target, path) for name, target in targets.items()}
        if not set(self.ranks) <= set(self.digests):
            raise EditError(f"{path} lists targets that the base has not: the file is damaged")
        for dtype in (default, *others.values()):
            if not isinstance(dtype, str) or dtype not in TORCH_DTYPES:
                raise EditError(f"{path}: the output dtype {shown(dtype)} is not known")

    def factors(self, edited: AdaptedCheckpoint, name: str) -> tuple[Tensor, Tensor]:
        """(B, A) of a target exactly as they were computed, without an adapter's padding.

        Args:
            edited: this core's folder, opened over its base.
        """
        if name not in edited.low_rank:
            raise EditError(f"{self.folder}: {FILE} lists {name}, and the adapter has no factors")
        b, a = edited.low_rank[name].load()
        k = self.ranks[name]
        if self._offsets is None:
            shapes = {name: info.shape for name, info in edited.base.tensors.items()}
            self._offsets = {
                name: at
                for parts in Modules(shapes, edited.base.config).experts.values()
                for name, (_, at) in expert_offsets(parts, self.ranks)[0].items()
            }
        at = self._offsets.get(name, 0)
        if at + k > a.shape[-2]:
            raise EditError(
                f"{self.folder}: {FILE} lists {name} with rank {k}, and the adapter's factors have "
                f"rank {a.shape[-2]}"
            )
        return b[..., at : at + k].contiguous(), a[..., at : at + k, :].contiguous()


def _shape(target: object, path: Path) -> tuple[int, ...]:
    sizes = _field(target, "shape", list, path)
    if len(sizes) > 64 or not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
        raise EditError(f"{path}: a target has shape {shown(sizes)}: the file is damaged")
    return tuple(sizes)


def _rank(target: object, path: Path) -> int:
    rank = _field(target, "rank", int, path)
    if not 0 <= rank < 2**31:
        raise EditError(f"{path}: a target has rank {shown(rank)}: the file is damaged")
    return rank


def _field(holder: object, key: str, kind: type, path: Path) -> Any:
    value = holder.get(key) if isinstance(holder, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise EditError(f"{path}: {key!r} is absent or no {kind.__name__}: the file is damaged")
    return value
