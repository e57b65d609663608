"""The config.json of a merged model."""

import json
from collections.abc import Mapping
from typing import Any

from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.pipeline.donor import CONFIG, config_text, with_dtype
from mergekit_rl.pipeline.merging.plan import Plan

_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_TEXT = "text_config"


def merged_config(plan: Plan) -> dict[str, Any]:
    """The output's config, {} where the donor has none; its dtype aside."""
    config = dict(plan.inputs.models[plan.inputs.donor].config)
    return _edited(plan, config) if config else {}


def merged_config_text(plan: Plan) -> str:
    """The text of the output's config.json: the donor's byte for byte, but for what the merge
    changes; "" where the donor has none."""
    donor = plan.inputs.models[plan.inputs.donor]
    text = _text(donor)
    if text is None:
        text = json.dumps(donor.config, indent=2, ensure_ascii=False) + "\n"
    if text:
        before = json.loads(text)
        after = _edited(plan, before)
        if after != before:
            text = json.dumps(after, indent=2, ensure_ascii=False) + "\n"
    return with_dtype(text, {name: dtype for name, (dtype, _) in plan.tensors.items()})


def _text(donor: Checkpoint) -> str | None:
    """The donor's config.json as it lies on disk; None where what it says is not on disk."""
    holder = donor
    while isinstance(holder, AdaptedCheckpoint):
        holder = holder.base
    path = holder.folder / CONFIG
    if type(holder) is not Checkpoint:
        return None
    return config_text(path) if path.is_file() else ""


def _edited(plan: Plan, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with layers, vocabulary and ties as the output has them."""
    found = dict(config)
    if plan.placed.layers is not None:
        found = _stacked(plan, found)
    if plan.rows is not None:
        found = renumbered(plan, _everywhere(found, {"vocab_size": plan.rows.count}))
    if plan.recipe.embeddings is not None:
        ties = plan.recipe.embeddings == "tie"
        found = _everywhere(found, {"tie_word_embeddings": ties}) | {"tie_word_embeddings": ties}
    return found


def renumbered(plan: Plan, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of the donor's with the ids of its special tokens in the output's vocabulary."""
    donor = plan.inputs.vocabularies.of(plan.inputs.donor)
    if plan.rows is None or donor is None:
        return dict(config)

    def new(value: Any) -> Any:
        if isinstance(value, list):
            return [new(one) for one in value]
        if type(value) is not int:
            return value
        found = plan.rows.renumbered(value, donor)
        return value if found is None else found

    return {
        key: new(value)
        if key.endswith("_token_id")
        else renumbered(plan, value)
        if isinstance(value, Mapping)
        else value
        for key, value in config.items()
    }


def _everywhere(config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Sets keys where the config has them, also in the text model's part."""
    found = config | {key: value for key, value in values.items() if key in config}
    if isinstance(config.get(_TEXT), Mapping):
        found[_TEXT] = _everywhere(dict(config[_TEXT]), values)
    return found


def _stacked(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    """The number of layers, and every list that has an entry per layer."""
    models = plan.inputs.models
    if not any(key in config for key in _COUNTS) and isinstance(config.get(_TEXT), Mapping):
        return config | {_TEXT: _stacked(plan, dict(config[_TEXT]))}
    found = dict(config)
    for key in _COUNTS:
        if key in config:
            found[key] = len(plan.placed.layers)
    before = next((config[key] for key in _COUNTS if key in config), None)
    for key, value in config.items():
        if isinstance(value, list) and len(value) == before:
            entries = []
            for model, layer in plan.placed.layers:
                theirs = models[model].config
                part = theirs if key in theirs else theirs.get(_TEXT, {})
                own = part.get(key, value)
                entries.append(own[layer] if layer < len(own) else value[-1])
            found[key] = entries
    return found
