"""A base and an expert trained from it: which tensors correspond, and whether they look related."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mergekit_rl.errors import EditError
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.names import match_names

# Config keys that say nothing of the weights' meaning.
_VOLATILE = {
    "_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures",
    "_attn_implementation", "_commit_hash", "auto_map", "model_name", "unsloth_version",
    "unsloth_fixed", "quantization_config",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two checkpoints and what corresponds in them.

    Attributes:
        base, expert: the two checkpoints.
        names: {base's name: expert's name} of the tensors both have.
        notes: what does not look like a base and its child, a sentence each.
    """

    base: Checkpoint
    expert: Checkpoint
    names: Mapping[str, str]
    notes: tuple[str, ...]

    def delta(self, name: str, index: int | None = None) -> Callable[[Tensor], Tensor] | None:
        """What forms the expert's W − W₀ of the base's tensor `name`; see `Checkpoint.delta`. An
        expert laid over another base is compared by its weights, not by its own delta."""
        if self._laid_elsewhere:
            return Checkpoint.delta(self.expert, self.names[name], index)
        return self.expert.delta(self.names[name], index)

    def touches(self, name: str) -> bool:
        """Whether the expert's tensor may differ from the base's `name`."""
        return self._laid_elsewhere or self.expert.touches(self.names[name])

    @property
    def _laid_elsewhere(self) -> bool:
        return isinstance(self.expert, AdaptedCheckpoint) and not _same(self.expert.base, self.base)

    def same_shape(self, name: str) -> bool:
        """Whether both have the base's tensor `name`, in one shape."""
        other = self.names.get(name)
        if other is None:
            return False
        return self.base.tensors[name].shape == self.expert.tensors[other].shape


def open_pair(base: "str | Path | Checkpoint", expert: "str | Path | Checkpoint") -> Pair:
    """Opens both and pairs their tensors by name; an adapter is laid over the base.

    Raises:
        EditError: either cannot be opened, or they share no tensor.
    """
    base = base if isinstance(base, Checkpoint) else Checkpoint.open(base)
    if not isinstance(expert, Checkpoint):
        expert = Checkpoint.open(expert, base=base)
    if _same(base, expert):
        raise EditError(f"{base.ref} and {expert.ref} are the same checkpoint: nothing was learnt")
    names = match_names(base.tensors, set(expert.tensors))
    if not names:
        theirs, ours = next(iter(expert.tensors)), next(iter(base.tensors))
        raise EditError(
            f"{expert.ref} and {base.ref} share no tensor ({theirs!r} there, {ours!r} here): "
            "they are not of one architecture"
        )
    return Pair(base, expert, names, tuple(_notes(base, expert, names)))


def _same(a: Checkpoint, b: Checkpoint) -> bool:
    return a is b or (type(a) is type(b) and a.folder.resolve() == b.folder.resolve())


def config_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, volatile ones aside, as `key: here → there`."""
    found = []
    for key in sorted((set(ours) & set(theirs)) - _VOLATILE):
        if ours[key] != theirs[key]:
            here, there = (
                "…" if isinstance(side[key], dict | list) else repr(side[key])
                for side in (ours, theirs)
            )
            found.append(f"{key}: {here} → {there}" if here != there else key)
    return found


def _notes(base: Checkpoint, expert: Checkpoint, names: Mapping[str, str]) -> list[str]:
    notes = []
    if isinstance(expert, AdaptedCheckpoint) and expert.base_named:
        theirs = expert.base_named.rstrip("/").rpartition("/")[2]
        if theirs not in (base.name.rpartition("/")[2], base.folder.resolve().name):
            notes.append(f"{expert.name} names another base than {base.name}: {theirs}")
    renamed = sum(ours != theirs for ours, theirs in names.items())
    if renamed:
        notes.append(
            f"{renamed} names match across a prefix (`model.` or `transformer.`) that only one "
            "side has"
        )
    differing = config_differences(base.config, expert.config)
    if differing:
        notes.append(f"the configs differ in {'; '.join(differing)}")
    shapes = [
        f"{name} {base.tensors[name].shape} → {expert.tensors[theirs].shape}"
        for name, theirs in names.items()
        if base.tensors[name].shape != expert.tensors[theirs].shape
    ]
    if shapes:
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        notes.append(f"shapes differ (another vocabulary?): {', '.join(shapes[:3])}{more}")
    for whose, left in (
        (f"the base ({base.name})", [n for n in base.tensors if n not in names]),
        (f"the expert ({expert.name})", sorted(set(expert.tensors) - set(names.values()))),
    ):
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            notes.append(f"only {whose} has {', '.join(left[:3])}{more}")
    return notes
