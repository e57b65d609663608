"""The stacks of layers that models have."""

import re

from mergekit_rl.io.names import split_layer
from mergekit_rl.pipeline.merging.inputs import Inputs, shown
from mergekit_rl.recipe.recipe import Block, Recipe

_TOWERS = re.compile(r"vision|visual|vit\b|image|audio|speech|projector|mtp", re.IGNORECASE)
_TEXT = ("text", "text_decoder", "text_model", "language_model")


class Stacks:
    """What stands before and behind the layer's number in the names of every model's tensors."""

    def __init__(self, recipe: Recipe, inputs: Inputs) -> None:
        self._recipe = recipe
        self._inputs = inputs
        self._prefixes: dict[tuple[int, str], str] = {}
        self._counts: dict[int, dict[str, int]] = {}
        self._suffixes: dict[tuple[int, str], dict[int, list[str]]] = {}

    def counts(self, model: int) -> dict[str, int]:
        """{prefix: how many layers} of a model's stacks."""
        if model not in self._counts:
            counts: dict[str, int] = {}
            for name in self._inputs.models[model].tensors:
                split = split_layer(name)
                if split is not None:
                    counts[split[0]] = max(counts.get(split[0], 0), split[1] + 1)
            self._counts[model] = counts
        return self._counts[model]

    def prefix(self, model: int, block: Block) -> str:
        """The prefix of the stack that a module's slices are of.

        Raises:
            EditError: there is none, or several.
        """
        key = model, block.name
        if key not in self._prefixes:
            self._prefixes[key] = self._find(model, block)
        return self._prefixes[key]

    def count(self, model: int, block: Block) -> int:
        """How many layers that stack has."""
        return self.counts(model)[self.prefix(model, block)]

    def suffixes(self, model: int, block: Block, layer: int) -> list[str]:
        """What follows the layer's number in the names of one layer's tensors."""
        key = model, block.name
        if key not in self._suffixes:
            prefix = self.prefix(model, block)
            found: dict[int, list[str]] = {}
            for name in self._inputs.models[model].tensors:
                split = split_layer(name)
                if split is not None and split[0] == prefix:
                    found.setdefault(split[1], []).append(split[2])
            self._suffixes[key] = found
        return self._suffixes[key].get(layer, [])

    def depth(self, model: int, name: str) -> tuple[int | None, int, float]:
        """(layer, layers, depth 0 to 1) of a model's tensor; (None, 0, 0) outside of stacks."""
        split = split_layer(name)
        if split is None:
            return None, 0, 0.0
        count = self.counts(model)[split[0]]
        return split[1], count, depth(split[1], count)

    def _find(self, model: int, block: Block) -> str:
        counts = self.counts(model)
        named = block.name not in ("", "default")
        if named:
            found = [prefix for prefix in counts if in_module(prefix, block.name)]
        else:
            found = [prefix for prefix in counts if not _TOWERS.search(prefix)]
        if len(found) != 1:
            label = self._inputs.labels[model]
            what = f"{len(found)} stacks of layers ({shown(found)})" if found else "no layers"
            raise self._recipe.document.error(
                ("modules", block.name) if named else ("slices",),
                f"slices are of one stack of layers, and {label} has {what}: name it in modules",
            )
        return found[0]


def depth(layer: int, layers: int) -> float:
    """The place of a layer among others, 0 to 1; 1 for a single one."""
    return 1.0 if layers == 1 else layer / (layers - 1)


def in_module(name: str, module: str) -> bool:
    """Whether a tensor belongs to a part of a multimodal model."""
    if module in name.split("."):
        return True
    return module in _TEXT and not _TOWERS.search(name)
