"""A checkpoint opened lazily: names, shapes and dtypes from headers, tensors one at a time."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergekit_rl.errors import EditError, UnusableInput
from mergekit_rl.io.folder import check_link, read_tensors
from mergekit_rl.io.header import TensorInfo
from mergekit_rl.io.hub import locate
from mergekit_rl.io.jsonfile import read_object
from mergekit_rl.io.modules import Modules
from mergekit_rl.io.quantised import refuse_quantised

TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")
_SAMPLES, _SAMPLE_BYTES = 16, 4096


class Checkpoint:
    """The tensors of a model by name, none of them read before it is asked for.

    Open one with `Checkpoint.open`. A LoRA adapter or a core opens as the whole edited model: the
    base's tensors, those the adapter touches with its low-rank deltas added while they stream.

    Attributes:
        ref: the reference as given.
        folder: where its files lie.
        revision: the commit, for a Hub id.
        config: its config.json, {} where there is none; an adapter's base's.
        tensors: {name: TensorInfo} in order of the files.
    """

    def __init__(
        self,
        ref: str,
        folder: Path,
        revision: str | None,
        config: Mapping[str, Any],
        tensors: Mapping[str, TensorInfo],
    ) -> None:
        self.ref = ref
        self.folder = folder
        self.revision = revision
        self.config = config
        self.tensors = tensors

    @staticmethod
    def open(
        ref: "str | Path", *, base: "Checkpoint | None" = None, revision: str | None = None
    ) -> "Checkpoint":
        """The checkpoint at `ref`.

        Args:
            ref: a folder of safetensors, a Hub id `org/name[@revision]`, a PEFT LoRA folder or a
                core folder.
            base: what an adapter or core is laid over; None opens the base its files name.
            revision: of a Hub id.

        Raises:
            EditError: what cannot be opened, with the file and the reason, before a weight is read:
                absent or truncated shards, malformed headers, pickles only, quantised weights, an
                adapter kind that is no plain LoRA.
        """
        folder, commit = locate(ref, revision)
        if (folder / "core.json").is_file() or (folder / "adapter_config.json").is_file():
            from mergekit_rl.io.adapter import open_adapted

            return open_adapted(str(ref), folder, commit, base)
        config_file = folder / "config.json"
        if config_file.is_symlink():
            check_link(folder, config_file)
        config = read_object(config_file, optional=True)
        tensors = read_tensors(folder)
        refuse_quantised(str(ref), config, tensors)
        for info in tensors.values():
            if info.dtype not in TORCH_DTYPES:
                raise EditError(f"{info.path}: {info.name!r} is {info.dtype}, which is not edited")
        return Checkpoint(str(ref), folder, commit, config, tensors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ref!r}, {len(self.tensors)} tensors)"

    @property
    def name(self) -> str:
        """The Hub id, or the folder's own name without the path to it."""
        return self.ref.partition("@")[0] if self.revision else self.folder.resolve().name

    @property
    def tied(self) -> bool:
        """Whether the output head is the embedding: no head is stored, and the config says so, or
        says nothing (which is how older versions of transformers write their families' default)."""
        text = self.config.get("text_config")
        configs = [self.config, text if isinstance(text, Mapping) else {}]
        stated = [c["tie_word_embeddings"] for c in configs if "tie_word_embeddings" in c]
        modules = Modules({name: info.shape for name, info in self.tensors.items()}, self.config)
        return modules.embedding is not None and modules.tied_head and (any(stated) or not stated)

    @property
    def parameters(self) -> int:
        """How many numbers the checkpoint stores."""
        return sum(prod(info.shape) for info in self.tensors.values())

    @property
    def dtype(self) -> str:
        """The dtype, as safetensors names it, that most of the floating-point weights have."""
        counts: dict[str, int] = {}
        for info in self.tensors.values():
            if info.dtype in FLOATS:
                counts[info.dtype] = counts.get(info.dtype, 0) + prod(info.shape)
        if not counts:
            raise EditError(f"{self.ref} holds no floating-point tensor")
        return max(counts, key=counts.__getitem__)

    def read(self, name: str, index: int | None = None) -> Tensor:
        """A tensor on the CPU, in the dtype it is stored in; fp32 where an adapter touches it.

        Args:
            index: only this entry along the first axis: one matrix of a stack.

        Raises:
            EditError: the file cannot be read any more, or the tensor holds NaN or Inf.
        """
        return self._read_info(self.tensors[name], index)

    def pieces(self, name: str, elements: int = 2**22) -> Iterator[Tensor]:
        """A tensor in consecutive flat pieces of at most `elements` numbers."""
        info = self.tensors[name]
        total = prod(info.shape)
        for start in range(0, total, elements):
            yield self._read_elements(info, start, min(elements, total - start))

    def delta(self, name: str, index: int | None = None) -> Callable[[Tensor], Tensor] | None:
        """Reads what it takes to form W − W₀, and returns the function that forms it: from W₀ as
        stored, on its device, in fp32 (one rounding of the exact difference) or wider. None
        where the delta is known to be 0 unread.

        Args:
            name: this checkpoint's name of the tensor.
            index: as in `read`.
        """
        w1 = self.read(name, index)
        wide = torch.float64 if w1.dtype == torch.float64 else torch.float32
        return lambda w0: w1.to(w0.device).to(wide).sub_(w0.to(wide))

    def touches(self, name: str) -> bool:
        """Whether the tensor may differ from the base's, as far as that is known unread."""
        return True

    def fingerprint(self, *, times: bool = True) -> list[str]:
        """What tells these files from others without reading them whole: the revision, or each
        file's name, size, time and a hash of its header and of samples of its data."""
        if self.revision:
            return [f"{self.name}@{self.revision}"]
        paths = sorted({info.path for info in self.tensors.values()})
        return [sampled_hash(path, times=times) for path in (*paths, self.folder / "config.json")]

    def _read_info(self, info: TensorInfo, index: int | None = None) -> Tensor:
        shape = info.shape if index is None else info.shape[1:]
        count = prod(shape)
        return self._read_elements(info, count * (index or 0), count).reshape(shape)

    def _read_elements(self, info: TensorInfo, start: int, count: int) -> Tensor:
        dtype = TORCH_DTYPES[info.dtype]
        out = torch.empty(count, dtype=dtype)
        if count:
            view = memoryview(out.view(torch.uint8).numpy())
            _read_into(info.path, info.offset + start * dtype.itemsize, view)
            if dtype.is_floating_point:
                least, most = torch.aminmax(out)  # NaN passes through both
                if not (math.isfinite(float(least)) and math.isfinite(float(most))):
                    raise UnusableInput(
                        f"{info.name} of {self.ref} holds NaN or Inf ({info.path.name}): "
                        "the training run went wrong before it was saved"
                    )
        return out


def _read_into(path: Path, offset: int, view: memoryview) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            done = 0
            while done < len(view):
                got = os.preadv(fd, [view[done:]], offset + done)
                if got == 0:
                    raise EditError(f"{path} ended early: it changed while it was read")
                done += got
        finally:
            os.close(fd)
    except OSError as error:
        raise EditError(f"{path} cannot be read: {error.strerror}") from None


def sampled_hash(path: Path, *, times: bool = True) -> str:
    """Name, size, time and a hash of samples of a file, enough to notice that it changed."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return f"{path.name} absent"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for step in range(_SAMPLES):
            file.seek(stat.st_size * step // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    changed = f"{stat.st_mtime_ns} " if times else ""
    return f"{path.name} {stat.st_size} {changed}{digest.hexdigest()}"
