"""Planning a merge, from recipe, headers and configs alone."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.io.checkpoint import FLOATS
from mergekit_rl.io.header import TensorInfo
from mergekit_rl.io.modules import has_token_rows, is_head
from mergekit_rl.io.names import is_projection, is_router, module_kind, split_layer
from mergekit_rl.pipeline.merging.chat import chat_template
from mergekit_rl.pipeline.merging.inputs import Inputs, shown
from mergekit_rl.pipeline.merging.layers import Place, Placed, placed
from mergekit_rl.pipeline.merging.plan import Input, Output, Plan
from mergekit_rl.pipeline.merging.vocabulary import TokenRows
from mergekit_rl.pipeline.options import DTYPES
from mergekit_rl.recipe.recipe import Recipe
from mergekit_rl.recipe.reference import ModelReference
from mergekit_rl.registry import Context, find_method


def plan_merge(recipe: Recipe, inputs: Inputs, dtype: str | None = None) -> Plan:
    """The plan of one document of a recipe.

    Args:
        dtype: of the output, before what the recipe says; a key of `DTYPES`.

    Raises:
        EditError: shapes that do not fit, a vocabulary that differs, a layer that is not there, a
            setting that is missing, a tensor that only some models have.
    """
    return _Planner(recipe, inputs, dtype).plan()


class _Planner:
    def __init__(self, recipe: Recipe, inputs: Inputs, dtype: str | None) -> None:
        self._recipe = recipe
        self._inputs = inputs
        self._asked = dtype
        asked = dtype or recipe.out_dtype or recipe.dtype
        self._dtype = None if asked is None else DTYPES[asked]
        key = "tokenizer_source" if recipe.entry.tokenizer is None else "tokenizer"
        with recipe.document.located((key,)):
            self._rows = TokenRows.of(recipe, inputs)
        with recipe.document.located(("chat_template",)):
            self._chat = chat_template(recipe.chat_template, inputs.vocabularies)
        self._left_out: dict[str, list[str]] = {}
        self._checked: set[str] = set()

    def plan(self) -> Plan:
        layout = placed(self._recipe, self._inputs)
        outputs = tuple(self._output(place) for place in layout.places if not self._drops(place))
        if not any(output.method is not None for output in outputs):
            raise self._recipe.document.error(
                ("exclude" if self._recipe.entry.include is None else "include",),
                "the recipe merges no tensor: include, exclude and the models' names leave none",
            )
        notes = [*self._recipe.notes, *layout.notes]
        notes += self._rows.notes if self._rows else ()
        notes += [f"{shown(names)}: {why}" for why, names in self._left_out.items()]
        notes += self._extra(layout)
        routers = [output for output in outputs if is_router(output.name) and output.method]
        if routers and self._recipe.router == "merge":
            notes.append(
                f"{len(routers)} routers are merged like other tensors; router: base keeps the "
                "base's"
            )
        if self._recipe.chat_template == "auto" and self._chat is None:
            notes.append("chat_template: auto: no model has a chat template")
        return Plan(
            recipe=self._recipe,
            inputs=self._inputs,
            outputs=outputs,
            placed=layout,
            rows=self._rows,
            notes=tuple(notes),
            asked_dtype=self._asked,
            chat=self._chat,
        )

    def _drops(self, place: Place) -> bool:
        """Whether the output does without a tensor of the donor."""
        if is_head(place.name) and self._recipe.embeddings == "tie":
            return True
        if is_head(place.name) and self._recipe.embeddings is None and self._stated_tied:
            self._left_out.setdefault("left out: the config ties it to the embedding", []).append(
                place.name
            )
            return True
        return False

    @cached_property
    def _stated_tied(self) -> bool:
        config = self._inputs.models[self._inputs.donor].config
        text = config.get("text_config")
        text = text if isinstance(text, Mapping) else {}
        return bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))

    def _output(self, place: Place) -> Output:
        donor = self._inputs.models[place.donor]
        info = donor.tensors[place.donor_name]
        own = Input(place.donor, place.donor_name)
        if info.dtype not in FLOATS:
            return self._copy(place, info, own, "no floating-point numbers")
        if not self._recipe.wants(place.name, place.layer, module_kind(place.name)):
            rest = self._recipe.rest
            return self._rest(place, info, own, "left out by include or exclude", "rest", rest)
        if self._recipe.router != "merge" and is_router(place.name):
            return self._rest(place, info, own, "a router", "router", self._recipe.router)
        found = [(source, self._inputs.find(model, name)) for source, model, name in place.sources]
        having = [source for source, name in found if name is not None]
        if not having:
            return self._copy(place, info, own, "no expert has it")
        if len(having) < len(found):
            lacking = next(source for source, name in found if name is None)
            raise self._recipe.document.error(
                lacking.path,
                f"{place.name} is in {having[0].model} and not in {lacking.model}: merge models "
                "that have the same tensors, or leave it out with exclude",
            )
        inputs = tuple(
            Input(model, name, source.preprocess)
            for (source, name), (_, model, _) in zip(found, place.sources, strict=True)
        )
        base = None if place.base is None else Input(*place.base)
        rows, shape = self._fitted(place.name, (*inputs, *((base,) if base else ())), info)
        settings, origins = self._recipe.settings(
            place.block, place.piece, [(s, n) for s, n in found], place.name, place.t
        )
        self._check_settings(place, settings)
        return Output(
            name=place.name,
            dtype=self._dtype or info.dtype,
            shape=shape,
            method=self._recipe.method,
            base=base,
            inputs=inputs,
            settings=settings,
            origins=origins,
            ctx=self._context(place, shape),
            rows=rows,
        )

    def _context(self, place: Place, shape: tuple[int, ...]) -> Context:
        return Context(
            name=place.name,
            layer=place.layer,
            layers=place.layers,
            kind=module_kind(place.name),
            projection=is_projection(place.name, shape),
            seed=self._recipe.seed,
            models=tuple(str(model) for _, model, _ in place.sources),
        )

    def _rest(
        self,
        place: Place,
        info: TensorInfo,
        own: Input,
        why: str,
        key: str,
        rest: str | ModelReference,
    ) -> Output:
        """A tensor that the method does not merge, as the recipe says under a key."""
        if rest == "base":
            return self._copy(place, info, own, why)
        if rest != "mean":
            model = self._inputs.number(rest)
            name = self._inputs.find(model, place.donor_name)
            if name is None:
                return self._copy(place, info, own, f"{why}; {rest} has none")
            return self._copy(place, info, Input(model, name), f"{why}; from {rest}")
        inputs = tuple(
            Input(model, found)
            for _, model, name in place.sources
            for found in (self._inputs.find(model, name),)
            if found is not None
        )
        if not inputs:
            return self._copy(place, info, own, why)
        rows, shape = self._fitted(place.name, inputs, info)
        settings = {"weight": [1.0] * len(inputs), "normalize": True}
        return Output(
            place.name,
            self._dtype or info.dtype,
            shape,
            find_method("linear"),
            None,
            inputs,
            settings,
            dict.fromkeys(settings, f"{key}: mean"),
            self._context(place, shape),
            rows,
        )

    def _copy(self, place: Place, info: TensorInfo, own: Input, why: str) -> Output:
        dtype = (self._dtype or info.dtype) if info.dtype in FLOATS else info.dtype
        rows, shape = self._fitted(place.name, (own,), info)
        return Output(
            name=place.name,
            dtype=dtype,
            shape=shape,
            method=None,
            base=None,
            inputs=(own,),
            ctx=self._context(place, shape),
            rows=rows,
            why=why,
        )

    def _fitted(
        self, name: str, inputs: Iterable[Input], info: TensorInfo
    ) -> tuple[bool, tuple[int, ...]]:
        """Whether a tensor of the output is laid over another vocabulary, and its shape.

        Raises:
            EditError: the models' shapes or vocabularies differ.
        """
        tokens = has_token_rows(name)
        rows = tokens and self._rows is not None
        for one in inputs:
            theirs = self._inputs.models[one.model].tensors[one.name].shape
            if tokens and not rows:
                self._inputs.vocabularies.check(one.model, self._inputs.donor)
            if theirs == info.shape or (rows and theirs[1:] == info.shape[1:]):
                continue
            ours = self._inputs.labels[self._inputs.donor]
            here = self._inputs.labels[one.model]
            remedy = "models that are merged must have the same shapes"
            if tokens and theirs[1:] == info.shape[1:]:
                remedy = "the number of rows differs: add a tokenizer to the recipe, such as "
                remedy += "tokenizer: {source: base}"
            raise EditError(f"{name} is {info.shape} in {ours} and {theirs} in {here}: {remedy}")
        return rows, (self._rows.count, *info.shape[1:]) if rows else info.shape

    def _check_settings(self, place: Place, settings: Mapping[str, Any]) -> None:
        check = self._recipe.method.check
        if check is None:
            return
        seen = repr(settings)
        if seen not in self._checked:
            self._checked.add(seen)
            try:
                check(**settings)
            except EditError as error:
                # The line of the setting that the error speaks of, whose name it has in it.
                named = [name for name in self._recipe.method.settings if name in str(error)]
                path = self._recipe.written(named[0], place.piece) if named else ("parameters",)
                raise self._recipe.document.error(path, f"{place.name}: {error}") from None

    def _extra(self, layout: Placed) -> list[str]:
        """Notes on tensors that models have and the output does not.

        Raises:
            EditError: one that include and exclude let through.
        """
        notes = []
        donor = self._inputs.donor
        whose = self._inputs.labels[donor]
        merged = {model for place in layout.places for _, model, _ in place.sources}
        merged |= {place.base[0] for place in layout.places if place.base is not None}
        for number in sorted(merged):
            model, label = self._inputs.models[number], self._inputs.labels[number]
            left = [
                name
                for name in layout.unused(self._inputs, number)
                if not is_head(name) and self._inputs.find(donor, name) is None
            ]
            wanted = [name for name in left if self._recipe.wants(name, *_place(name))]
            wanted = [name for name in wanted if model.tensors[name].dtype in FLOATS]
            if wanted:
                raise EditError(
                    f"{label} has {shown(wanted)}, which {whose} lacks: the output takes its "
                    "tensors from there; leave them out with exclude, or make the other one the "
                    "base_model"
                )
            if left:
                notes.append(f"not in the output, of {label}: {shown(left)}")
        return notes


def _place(name: str) -> tuple[int | None, str]:
    found = split_layer(name)
    return (None if found is None else found[1]), module_kind(name)
