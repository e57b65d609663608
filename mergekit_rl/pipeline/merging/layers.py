"""Where every tensor of the output comes from: layer by layer, piece by piece."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mergekit_rl.io.modules import is_embedding, is_head
from mergekit_rl.io.names import split_layer
from mergekit_rl.pipeline.merging.inputs import Inputs, shown
from mergekit_rl.pipeline.merging.stacks import Stacks, depth, in_module
from mergekit_rl.recipe.recipe import Block, Piece, Recipe, Source
from mergekit_rl.recipe.yaml_reader import key_text


@dataclass(frozen=True)
class Place:
    """A tensor of the output and whose tensors it is made of.

    Attributes:
        name: in the output.
        donor, donor_name: number of the model that gives its form, and what it calls it there.
        sources: (entry of the recipe, number of its model, name) of every model that is merged.
        base: (number of the base, name), None without one.
        layer, layers: its number and how many its stack has in the output; None and 0 outside.
        t: its depth within its piece, 0 to 1, for gradients.
        block, piece: of the recipe; None where no module names it.
    """

    name: str
    donor: int
    donor_name: str
    sources: tuple[tuple[Source, int, str], ...]
    base: tuple[int, str] | None
    layer: int | None
    layers: int
    t: float
    block: Block | None
    piece: Piece | None


@dataclass(frozen=True)
class Placed:
    """The places of all tensors.

    Attributes:
        places: in the order of the donor's files.
        layers: of a stacked output, for each layer (number of the model, its layer there); None
            where the layers are the donor's.
        notes: what the user should know.
    """

    places: tuple[Place, ...]
    layers: tuple[tuple[int, int], ...] | None
    notes: tuple[str, ...] = ()

    @property
    def stacked(self) -> bool:
        """Whether the output's layers are put together anew."""
        return self.layers is not None

    def unused(self, inputs: Inputs, model: int) -> list[str]:
        """The tensors of a model that no tensor of the output is made of."""
        if self.stacked:
            return []
        used = {place.donor_name for place in self.places if place.donor == model}
        for place in self.places:
            used |= {inputs.find(m, name) for _, m, name in place.sources if m == model}
            if place.base is not None and place.base[0] == model:
                used.add(place.base[1])
        return [name for name in inputs.models[model].tensors if name not in used]


def placed(recipe: Recipe, inputs: Inputs) -> Placed:
    """The places of every tensor of a merge.

    Raises:
        EditError: a layer range beyond a model's layers; layers that do not hold the same tensors;
            a model with several stacks of layers and slices that do not say which they are of.
    """
    return _Placer(recipe, inputs).placed()


class _Placer:
    def __init__(self, recipe: Recipe, inputs: Inputs) -> None:
        self._recipe = recipe
        self._inputs = inputs
        self._donor = inputs.models[inputs.donor]
        self._layers: list[tuple[int, int]] | None = None
        self._stacks = Stacks(recipe, inputs)

    def placed(self) -> Placed:
        blocks = self._blocks()
        places: list[Place] = []
        begun: set[str] = set()
        for name in self._donor.tensors:
            block = blocks[name]
            if block is None:
                places.append(self._alone(name))
            elif block.pieces[0].sources[0].layers is None:
                places.append(self._same(name, block, block.pieces[0]))
            else:
                split = split_layer(name)
                if split is None or split[0] != self._stacks.prefix(self._inputs.donor, block):
                    piece = block.pieces[0 if is_embedding(name) else -1]
                    places.append(self._outside(name, block, piece))
                elif block.name not in begun:
                    begun.add(block.name)
                    places += self._stacked(block)
        if self._inputs.untie and not any(map(is_head, self._donor.tensors)):
            embedding = next(filter(is_embedding, self._donor.tensors))
            block = blocks[embedding]
            piece = block.pieces[-1]
            place = self._outside(self._inputs.head or "lm_head.weight", block, piece)
            places.append(replace(place, donor_name=embedding))
        layers = None if self._layers is None else tuple(self._layers)
        return Placed(tuple(places), layers, tuple(self._notes(blocks)))

    def _blocks(self) -> dict[str, Block | None]:
        """{name: the module of the recipe it belongs to}."""
        named = [block for block in self._recipe.blocks if block.name not in ("", "default")]
        others = [block for block in self._recipe.blocks if block.name in ("", "default")]
        found: dict[str, Block | None] = {}
        for name in self._donor.tensors:
            home = next((block for block in named if in_module(name, block.name)), None)
            found[name] = home or (others[0] if others else None)
        for block in named:
            if block not in found.values():
                parts = {part for name in self._donor.tensors for part in name.split(".")[:3]}
                words = sorted(part for part in parts if not part.isdigit())
                raise self._recipe.document.error(
                    ("modules", block.name),
                    f"modules.{block.name} names no part of the model; its tensors' names begin "
                    f"with {', '.join(words[:8])}",
                )
        return found

    def _notes(self, blocks: Mapping[str, Block | None]) -> Iterator[str]:
        alone = [name for name, block in blocks.items() if block is None]
        if alone:
            yield f"no module of the recipe names {shown(alone)}: copied"

    def _alone(self, name: str) -> Place:
        layer, layers, t = self._stacks.depth(self._inputs.donor, name)
        return Place(name, self._inputs.donor, name, (), None, layer, layers, t, None, None)

    def _same(self, name: str, block: Block, piece: Piece) -> Place:
        """A tensor that has the same name in every model."""
        layer, layers, t = self._stacks.depth(self._inputs.donor, name)
        base = self._base(piece)
        sources = self._sources(piece, base, lambda source: name)
        return Place(
            name, self._inputs.donor, name, sources, self._found(base, name), layer, layers, t,
            block, piece,
        )  # fmt: skip

    def _outside(self, name: str, block: Block, piece: Piece) -> Place:
        """A tensor outside the stack of layers that is put together anew."""
        return replace(self._same(name, block, piece), layer=None, layers=0, t=0.0)

    def _stacked(self, block: Block) -> Iterator[Place]:
        """The tensors of all layers of a module whose pieces name layers."""
        if self._layers is not None:
            raise self._recipe.document.error(
                ("modules", block.name),
                f"modules.{block.name}: only one module of a recipe can have slices; give the "
                "others models",
            )
        self._layers = []
        prefix = self._stacks.prefix(self._inputs.donor, block)
        total = sum(
            piece.sources[0].layers[1] - piece.sources[0].layers[0] for piece in block.pieces
        )
        for piece in block.pieces:
            for source in piece.sources:
                self._check_range(source, block)
            length = piece.sources[0].layers[1] - piece.sources[0].layers[0]
            for i in range(length):
                yield from self._layer(
                    block, piece, i, (len(self._layers), total), depth(i, length), prefix
                )
                first = piece.sources[0]
                self._layers.append((self._inputs.number(first.model), first.layers[0] + i))

    def _layer(
        self,
        block: Block,
        piece: Piece,
        i: int,
        place: tuple[int, int],
        t: float,
        prefix: str,
    ) -> Iterator[Place]:
        """The tensors of one layer of the output."""
        base = self._base(piece)
        listed = {self._inputs.number(source.model): source for source in piece.sources}
        holder = listed.get(base, piece.sources[0])
        donor = self._inputs.number(holder.model) if base is None else base
        theirs = holder.layers[0] + i
        suffixes = self._stacks.suffixes(donor, block, theirs)
        for source in piece.sources:
            model = self._inputs.number(source.model)
            other = self._stacks.suffixes(model, block, source.layers[0] + i)
            odd = sorted(set(suffixes) ^ set(other))
            if odd:
                raise self._recipe.document.error(
                    source.path,
                    f"{key_text(piece.path)}: layer {source.layers[0] + i} of {source.model} and "
                    f"layer {theirs} of {holder.model} do not hold the same tensors "
                    f"({odd[0].lstrip('.')}): only layers of one kind can be merged",
                )
        for suffix in suffixes:

            def named(source: Source, suffix: str = suffix) -> str:
                stack = self._stacks.prefix(self._inputs.number(source.model), block)
                return f"{stack}{source.layers[0] + i}{suffix}"

            own = f"{self._stacks.prefix(donor, block)}{theirs}{suffix}"
            yield Place(
                f"{prefix}{place[0]}{suffix}",
                donor,
                own,
                self._sources(piece, base, named),
                None if base is None else (base, own),
                *place,
                t,
                block,
                piece,
            )

    def _sources(
        self, piece: Piece, base: int | None, named
    ) -> tuple[tuple[Source, int, str], ...]:
        """The models of a piece that are merged: a base is none of them."""
        found = []
        for source in piece.sources:
            model = self._inputs.number(source.model)
            if self._recipe.method.base == "input" or model != base:
                found.append((source, model, named(source)))
        return tuple(found)

    def _base(self, piece: Piece) -> int | None:
        reference = piece.base_model or self._recipe.base_model
        return None if reference is None else self._inputs.number(reference)

    def _found(self, base: int | None, name: str) -> tuple[int, str] | None:
        """The base's tensor, where there is a base and it has it."""
        if base is None:
            return None
        found = self._inputs.find(base, name)
        return None if found is None else (base, found)

    def _check_range(self, source: Source, block: Block) -> None:
        count = self._stacks.count(self._inputs.number(source.model), block)
        if source.layers[1] > count:
            at = (*source.path, "layer_range")
            raise self._recipe.document.error(
                at,
                f"{key_text(at)} is {list(source.layers)} and {source.model} has {count} layers: "
                f"the end may be {count} at most",
            )
