"""Everything that the readers of an opened folder do."""

from pathlib import Path

from mergekit_rl import Checkpoint, EditError
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.adapter_layout import adapter_layout
from mergekit_rl.io.core import Core
from mergekit_rl.io.modules import Modules
from mergekit_rl.io.names import is_projection, layer_index, match_names, module_kind
from mergekit_rl.io.sidefiles import side_files
from mergekit_rl.pipeline.apply import _check_names


def read_all(folder: Path, base: Checkpoint | None) -> bool:
    """Opens a folder and uses all of it; whether nothing in it was refused.

    Raises:
        EditError: it is refused as a whole.
    """
    if (folder / "core.json").is_file():
        return _core(folder, base)
    return _checkpoint(Checkpoint.open(folder, base=base))


def _core(folder: Path, base: Checkpoint | None) -> bool:
    core = Core(folder)
    _check_names(base, core)
    edited = Checkpoint.open(folder, base=base)
    sound = [_sound(core.factors, edited, name) for name in core.ranks]
    return _checkpoint(edited) and all(sound)


def _checkpoint(checkpoint: Checkpoint) -> bool:
    assert isinstance(checkpoint.name + repr(checkpoint), str)
    assert checkpoint.parameters >= 0
    side_files(checkpoint.folder)
    sound = [
        _sound(lambda: checkpoint.dtype),
        _sound(lambda: checkpoint.tied),
        _sound(checkpoint.fingerprint),
        _sound(_names, checkpoint),
    ]
    touched = [name for name in checkpoint.tensors if checkpoint.touches(name)]
    sound += [_sound(_tensor, checkpoint, name) for name in touched]
    return all(sound)


def _tensor(checkpoint: Checkpoint, name: str) -> None:
    shape = checkpoint.tensors[name].shape
    base = checkpoint.base if isinstance(checkpoint, AdaptedCheckpoint) else checkpoint
    whole = checkpoint.read(name)
    assert tuple(whole.shape) == shape
    assert sum(piece.numel() for piece in checkpoint.pieces(name, 7)) == whole.numel()
    assert tuple(checkpoint.delta(name)(base.read(name)).shape) == shape
    if shape and shape[0]:
        last = shape[0] - 1
        if len(shape) == 3 or not isinstance(checkpoint, AdaptedCheckpoint):
            assert tuple(checkpoint.read(name, last).shape) == shape[1:]


def _names(checkpoint: Checkpoint) -> None:
    """What planning an edit asks of the names, and an adapter's layout for all projections."""
    modules = Modules({n: i.shape for n, i in checkpoint.tensors.items()}, checkpoint.config)
    for name in checkpoint.tensors:
        assert module_kind(name) is not None
        assert (layer_index(name) or 0) >= 0
        modules.parameter(name)
    match_names(checkpoint.tensors, {"transformer." + n for n in checkpoint.tensors})
    targets = {n: 1 for n, i in checkpoint.tensors.items() if is_projection(n, i.shape)}
    if targets and not isinstance(checkpoint, AdaptedCheckpoint):
        config, groups = adapter_layout(modules, targets, "base")
        assert sorted(n for group in groups for n in group.members) == sorted(targets)
        keys = [key for group in groups for key in group.tensors]
        assert len(keys) == len(set(keys)) and config["peft_type"] == "LORA"


def _sound(action, *args) -> bool:
    try:
        action(*args)
    except EditError as error:
        one_line(error)
        return False
    return True


def one_line(error: EditError) -> None:
    """An error is a line that fits a screen."""
    text = str(error)
    assert "\n" not in text and "\r" not in text, text
    assert 0 < len(text) < 3000, text[:3000]
