"""A PEFT LoRA folder, or a core, over its base: low-rank deltas that stream tensor by tensor."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.adapter_config import LoraConfig, read_lora_config
from mergekit_rl.io.adapter_reader import AdapterReader
from mergekit_rl.io.checkpoint import Checkpoint, sampled_hash
from mergekit_rl.io.folder import safe_file
from mergekit_rl.io.header import TensorInfo
from mergekit_rl.io.hub import locate
from mergekit_rl.io.jsonfile import shown
from mergekit_rl.io.low_rank import LowRank, Rows

WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"


class AdaptedCheckpoint(Checkpoint):
    """A base with an adapter's deltas added while its tensors stream.

    Attributes:
        base: the checkpoint underneath.
        low_rank: {tensor name: its factors}.
        replaced: {tensor name: a whole tensor, or rows, of the adapter's file}.
        base_named: the base that the adapter's own files name.
    """

    def __init__(
        self,
        ref: str,
        folder: Path,
        revision: str | None,
        base: Checkpoint,
        low_rank: Mapping[str, LowRank],
        replaced: Mapping[str, TensorInfo | Rows],
        base_named: str,
    ) -> None:
        super().__init__(ref, folder, revision, base.config, base.tensors)
        self.base = base
        self.low_rank = low_rank
        self.replaced = replaced
        self.base_named = base_named

    def read(self, name: str, index: int | None = None) -> Tensor:
        w0 = self.base.read(name, index)
        delta = self.delta(name, index)
        return w0 if delta is None else (w0.to(torch.float64) + delta(w0)).to(torch.float32)

    def pieces(self, name: str, elements: int = 2**22) -> Iterator[Tensor]:
        if self.touches(name):
            yield from self.read(name).reshape(-1).split(elements)
        else:
            yield from self.base.pieces(name, elements)

    def delta(self, name: str, index: int | None = None) -> Callable[[Tensor], Tensor] | None:
        if not self.touches(name):
            return None
        low_rank = self.low_rank.get(name)
        part = slice(None) if index is None else index
        factors = None if low_rank is None else [f[part] for f in low_rank.load()]
        new = self.replaced.get(name)
        info = new.values if isinstance(new, Rows) else new
        values = None if info is None else self._read_info(info)

        def form(w0: Tensor) -> Tensor:
            w0 = w0.to(torch.float64)
            total = torch.zeros_like(w0)
            if factors is not None:
                b, a = (f.to(w0.device).to(torch.float64) for f in factors)
                total = (b @ a) * low_rank.scaling
            if values is None:
                return total
            fresh = values.to(w0.device).to(torch.float64)
            if not isinstance(new, Rows):
                return (fresh if index is None else fresh[index]) - w0
            rows = torch.tensor(new.indices, dtype=torch.long, device=w0.device)
            total[rows] = fresh - w0[rows]
            return total

        return form

    def touches(self, name: str) -> bool:
        return name in self.low_rank or name in self.replaced

    def fingerprint(self, *, times: bool = True) -> list[str]:
        own = [self.folder / WEIGHTS, self.folder / "adapter_config.json"]
        return [
            *self.base.fingerprint(times=times),
            *(sampled_hash(path, times=times) for path in own),
        ]


def open_adapted(
    ref: str, folder: Path, revision: str | None, base: Checkpoint | None
) -> AdaptedCheckpoint:
    """The adapter or core in `folder` over `base`, or over the base its config names.

    Raises:
        EditError: no plain LoRA; a key that belongs to no tensor of the base; factors whose shapes
            do not fit; one side of a tied embedding only.
    """
    config = read_lora_config(safe_file(folder, "adapter_config.json", where=folder))
    if not (folder / WEIGHTS).exists() and (folder / PICKLED).exists():
        raise EditError(
            f"{folder} holds a pickled adapter ({PICKLED}) and no {WEIGHTS}; convert it first: "
            "PeftModel.from_pretrained(base, DIR).save_pretrained(OUT) of PEFT writes safetensors"
        )
    weights = safe_file(folder, WEIGHTS, where=folder)
    base = _named_base(folder, config) if base is None else base
    reader = AdapterReader(weights, config, base)
    reader.read()
    return AdaptedCheckpoint(
        ref, folder, revision, base, reader.low_rank, reader.replaced, config.base
    )


def _named_base(folder: Path, config: LoraConfig) -> Checkpoint:
    """The base that an adapter's config names: a whole model, so that no chain of adapters leads
    back to itself."""
    if not config.base:
        raise EditError(f"{folder} names no base model; open it with one")
    try:
        is_folder = Path(config.base).is_dir()
    except OSError as error:
        raise EditError(
            f"{folder} names the base {shown(config.base)}: {error.strerror}; open it with one"
        ) from None
    try:
        place, _ = locate(config.base, None if is_folder else config.revision)
    except EditError as error:
        raise EditError(f"{folder} names a base that cannot be opened: {error}") from None
    if (place / "adapter_config.json").is_file() or (place / "core.json").is_file():
        raise EditError(
            f"{folder} names the base {config.base}, which is an adapter itself; open that over "
            "its base first, and this one over it"
        )
    revision = config.revision if place != Path(config.base) else None
    return Checkpoint.open(config.base, revision=revision)
