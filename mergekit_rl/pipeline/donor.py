"""Whose config, tokenizer and other side files an edited model gets."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.checkpoint import FLOATS, TORCH_DTYPES, Checkpoint
from mergekit_rl.io.jsonfile import parse_object, read_object
from mergekit_rl.io.sidefiles import side_files
from mergekit_rl.pipeline.options import SarOptions
from mergekit_rl.pipeline.pair import Pair

CONFIG = "config.json"


@dataclass(frozen=True)
class Donor:
    """Whose files go with an edited model.

    Attributes:
        whose: the expert or the base, and why, for the user.
        files: side files to copy, config.json aside.
        config: path of the config.json to use; None where neither has one.
        skipped: names of what the donor's folder holds and does not travel.
    """

    whose: str
    files: tuple[Path, ...]
    config: Path | None
    skipped: tuple[str, ...]


def choose_donor(pair: Pair, options: SarOptions) -> Donor:
    """The expert where its vocabulary fits the output, else the base. An adapter's folder has no
    config.json: the base's serves. A donor without a tokenizer takes the base's files."""
    whose = "the expert"
    donor = pair.expert
    misfit = None if options.rest == "rl" else _misfit(pair)
    if misfit:
        whose, donor = f"the base (the expert's do not fit: {misfit})", pair.base
    files, skipped = side_files(donor.folder)
    if donor is not pair.base and not any("token" in path.name for path in files):
        own = {path.name for path in files}
        lent = [path for path in side_files(pair.base.folder)[0] if path.name not in own]
        if any("token" in path.name for path in lent):
            whose += ", tokenizer from the base"
        files = [*files, *lent]
    configs = {path.name: path for path in files}
    holder = pair.base.base if isinstance(pair.base, AdaptedCheckpoint) else pair.base
    base_config = holder.folder / CONFIG
    config = configs.pop(CONFIG, base_config if base_config.is_file() else None)
    return Donor(whose, tuple(configs[name] for name in sorted(configs)), config, tuple(skipped))


def config_text(config: Path | None) -> str:
    """The text of a config.json; "" for None."""
    if config is None:
        return ""
    read_object(config)  # names the fault of a malformed one
    return config.read_text(encoding="utf-8")


def with_dtype(text: str, dtypes: Mapping[str, str]) -> str:
    """A config.json's text for a model of {tensor: dtype}: byte for byte as it is, unless it names
    another dtype than most of the tensors have."""
    if not text:
        return ""
    content = parse_object(text.encode(), CONFIG)
    most = Counter(dtype for dtype in dtypes.values() if dtype in FLOATS).most_common(1)[0][0]
    name = str(TORCH_DTYPES[most]).removeprefix("torch.")
    stale = [key for key in ("dtype", "torch_dtype") if content.get(key, name) != name]
    if not stale:
        return text
    return json.dumps(content | dict.fromkeys(stale, name), indent=2, ensure_ascii=False) + "\n"


def _misfit(pair: Pair) -> str | None:
    """Why the expert's config and tokenizer do not fit the base's tensors; None where they do."""
    different = [name for name in pair.names if not pair.same_shape(name)]
    if different:
        return f"{different[0]} has another shape"
    if pair.base.tied != pair.expert.tied:
        return "one ties embedding and head, the other does not"
    for key in ("model_type", "vocab_size"):
        ours, theirs = (_value(side, key) for side in (pair.base, pair.expert))
        if ours != theirs:
            return f"{key} differs"
    return None


def _value(checkpoint: Checkpoint, key: str) -> object:
    return checkpoint.config.get(key)
