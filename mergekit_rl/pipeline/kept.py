"""What is kept of one run for the next, and all that it is found again by."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache as once
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergekit_rl import __version__
from mergekit_rl.io.cache import Cache
from mergekit_rl.spectral import svd
from mergekit_rl.spectral.svd import Method, TruncatedSVD, truncated_svd
from mergekit_rl.spectral.truncation import Decompose, rank_for_energy


class Content:
    """A tensor, and a digest of all that a computation can see of it, once that is asked for."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @cached_property
    def digest(self) -> str:
        """64 hex digits, over dtype, shape, layout in memory (sums round by it) and bytes."""
        tensor = self.tensor
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        running = hashlib.sha256(
            f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} ".encode()
        )
        running.update(memoryview(data))
        return running.hexdigest()


def decomposing(cache: Cache | None) -> Decompose:
    """`truncated_svd`, or what looks in the cache before it: to the last bit the same, also in how
    far the generator has gone afterwards."""
    if cache is None:
        return truncated_svd

    def decompose(
        a: Tensor, k: int, *, method: Method, generator: torch.Generator | None
    ) -> TruncatedSVD:
        start = None if generator is None else _digest(bytes(generator.get_state().numpy()))
        digest = _key([Content(a)], [k, method, start])
        kept = cache.get("decomposition", digest)
        if kept is not None:
            if generator is not None:
                generator.set_state(kept.tensors["generator"])
            u, s, vh = (kept.tensors[name].to(a.device) for name in ("U", "S", "Vh"))
            return TruncatedSVD(u, s, vh, **kept.figures)
        found = truncated_svd(a, k, method=method, generator=generator)
        tensors = {"U": found.U, "S": found.S, "Vh": found.Vh}
        if generator is not None:
            tensors["generator"] = generator.get_state()
        figures = {"error": found.error, "method": found.method}
        cache.put("decomposition", digest, tensors, figures)
        return found

    return decompose


def rank_kept(cache: Cache | None, delta: Tensor, share: float) -> int:
    """`rank_for_energy`, or what an earlier run found it to be."""
    return figures_kept(
        cache, "rank", [Content(delta)], [share], lambda: {"rank": rank_for_energy(delta, share)}
    )["rank"]


def figures_kept(
    cache: Cache | None,
    kind: str,
    of: Sequence[Content],
    settings: Sequence[object],
    compute: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """What `compute` returns, or returned in an earlier run.

    Args:
        of, settings: all that the figures depend on: tensors of one device, and plain values.
        compute: returns values that JSON gives back as they were.
    """
    if cache is None:
        return compute()
    digest = _key(of, settings)
    kept = cache.get(kind, digest)
    if kept is not None:
        return kept.figures
    found = compute()
    cache.put(kind, digest, figures=found)
    return found


def _key(of: Sequence[Content], settings: Sequence[object]) -> str:
    """The digest of an entry: of its inputs, of the code that computed it, and of the machine as
    far as that is known to change last bits."""
    device = of[0].tensor.device
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    machine = [device.type, where, torch.get_num_threads(), torch.get_float32_matmul_precision()]
    parts = [__version__, _code(), torch.__version__, machine, settings, [it.digest for it in of]]
    return _digest(json.dumps(parts).encode())


@once
def _code() -> str:
    """A digest of the sources that compute what is kept, so that a change of one is a miss."""
    here = Path(__file__)
    files = [here, here.with_name("inspect.py"), *sorted(Path(svd.__file__).parent.glob("*.py"))]
    return _digest(b"".join(file.read_bytes() for file in files))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
