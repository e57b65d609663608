"""The models of a merge, opened and named."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mergekit_rl.errors import EditError
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.modules import is_embedding, is_head
from mergekit_rl.io.names import match_name
from mergekit_rl.pipeline.merging.tokens import Vocabularies
from mergekit_rl.recipe.recipe import Recipe
from mergekit_rl.recipe.reference import ModelReference


@dataclass(frozen=True)
class Inputs:
    """What a recipe's model references stand for.

    Attributes:
        labels: the references as written, the order of `models`.
        models: the checkpoint of each.
        base: number of the base model, None without one.
        donor: number of the model whose config, tokenizer and names the output has.
        untie: whether a model without an output head lends its embedding as one.
    """

    labels: tuple[str, ...]
    models: tuple[Checkpoint, ...]
    base: int | None
    donor: int
    untie: bool = False
    _names: dict[tuple[int, str], str | None] = field(default_factory=dict, repr=False)

    def number(self, reference: ModelReference) -> int:
        """The number of a referenced model."""
        return self.labels.index(str(reference))

    def find(self, model: int, name: str) -> str | None:
        """What a model calls the tensor that others call `name`; None where it has none."""
        key = model, name
        if key not in self._names:
            tensors = self.models[model].tensors
            found = match_name(name, tensors)
            if found is None and self.untie and is_head(name):
                found = next(filter(is_embedding, tensors), None)
            self._names[key] = found
        return self._names[key]

    @cached_property
    def vocabularies(self) -> Vocabularies:
        """What tokens each model has."""
        return Vocabularies(self.models, self.labels)

    @property
    def head(self) -> str | None:
        """What a model with an output head of its own calls it; None where none has one."""
        return next(
            (name for model in self.models for name in model.tensors if is_head(name)), None
        )

    def fingerprint(self, *, times: bool) -> list[list[str]]:
        """What tells each model's files from others; see `Checkpoint.fingerprint`."""
        return [model.fingerprint(times=times) for model in self.models]


def open_inputs(
    recipe: Recipe, places: Mapping[str, str], earlier: Mapping[str, Checkpoint]
) -> Inputs:
    """Opens every model of a recipe.

    Args:
        places: {model as the recipe writes it: where it lies instead}.
        earlier: results of documents before this one, by name.

    Raises:
        EditError: one cannot be opened.
    """
    references = recipe.models()
    opened: dict[str, Checkpoint] = dict(earlier)
    base = recipe.base_model
    for reference in (*((base,) if base else ()), *references):
        if str(reference) not in opened:
            over = None if base is None or reference == base else opened[str(base)]
            with recipe.document.located(recipe.path_of(reference)):
                opened[str(reference)] = _open(reference, places, opened, over)
    labels = tuple(map(str, references))
    giver = base or next(
        (p.base_model for b in recipe.blocks for p in b.pieces if p.base_model), None
    )
    donor = 0 if giver is None else labels.index(str(giver))
    inputs = Inputs(
        labels,
        tuple(opened[label] for label in labels),
        None if base is None else donor,
        donor,
        untie=recipe.embeddings == "untie",
    )
    _check_ties(inputs, recipe)
    return inputs


def _open(
    reference: ModelReference,
    places: Mapping[str, str],
    opened: Mapping[str, Checkpoint],
    over: Checkpoint | None,
) -> Checkpoint:
    if str(reference) in opened:
        return opened[str(reference)]
    path = places.get(reference.path, reference.path)
    if reference.lora is None:
        return Checkpoint.open(path, base=over, revision=reference.revision)
    if path in opened:
        inner = opened[path]
    else:
        inner = Checkpoint.open(path, revision=reference.revision)
    lora = places.get(reference.lora, reference.lora)
    return Checkpoint.open(lora, base=inner, revision=reference.lora_revision)


def _check_ties(inputs: Inputs, recipe: Recipe) -> None:
    """Models that tie head and embedding do not mix with those that do not, unless the recipe says
    what the output does."""
    if recipe.embeddings is not None:
        return
    tied = [label for label, m in zip(inputs.labels, inputs.models, strict=True) if m.tied]
    untied = [
        label
        for label, m in zip(inputs.labels, inputs.models, strict=True)
        if not m.tied and any(map(is_head, m.tensors))
    ]
    if tied and untied:
        raise EditError(
            f"{tied[0]} ties its output head to the embedding and {untied[0]} has a head of its "
            "own: write embeddings: untie to give the output a head of its own, or "
            "embeddings: tie to drop the heads"
        )


def shown(names: Iterable[str], most: int = 3) -> str:
    """The first names of many, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
