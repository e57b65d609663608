"""Edit and merge RL-tuned checkpoints after training.

The public names load on first use, so that importing the package loads neither torch nor
transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mergekit_rl.errors import EditError
    from mergekit_rl.io.checkpoint import Checkpoint
    from mergekit_rl.pipeline.apply import apply_core
    from mergekit_rl.pipeline.merging.memory import merge_state_dicts
    from mergekit_rl.pipeline.merging.run import merge
    from mergekit_rl.pipeline.sar import sar

__version__ = "0.1.0"
__all__ = ["Checkpoint", "EditError", "apply_core", "merge", "merge_state_dicts", "sar"]

_HOMES = {
    "Checkpoint": "mergekit_rl.io.checkpoint",
    "EditError": "mergekit_rl.errors",
    "apply_core": "mergekit_rl.pipeline.apply",
    "merge": "mergekit_rl.pipeline.merging.run",
    "merge_state_dicts": "mergekit_rl.pipeline.merging.memory",
    "sar": "mergekit_rl.pipeline.sar",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
