"""The small files of a merged model: config, tokenizer, provenance, model card."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mergekit_rl import __version__
from mergekit_rl.io.adapter import AdaptedCheckpoint
from mergekit_rl.io.chat_template import CONFIG as TOKENIZER_CONFIG
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.jsonfile import read_object
from mergekit_rl.io.output import MARKER
from mergekit_rl.io.sidefiles import side_files
from mergekit_rl.pipeline.documents import as_json, described
from mergekit_rl.pipeline.donor import CONFIG
from mergekit_rl.pipeline.merging.chat import chat_files
from mergekit_rl.pipeline.merging.config import merged_config_text, renumbered
from mergekit_rl.pipeline.merging.plan import Plan
from mergekit_rl.pipeline.merging.union import united_files

Small = dict[str, bytes | Path]
GENERATION = "generation_config.json"


def small_files(plans: Sequence[Plan]) -> Small:
    """{path in the output: content} of all small files; of several plans, the last is written."""
    plan = plans[-1]
    small: Small = {path.name: path for path in donor_files(plan) if path.name != CONFIG}
    text = merged_config_text(plan)
    if text:
        small[CONFIG] = text.encode()
    small |= _vocabulary_files(plan, small)
    small["README.md"] = model_card(plans).encode()
    small[MARKER] = as_json(provenance(plans))
    return small


def _vocabulary_files(plan: Plan, small: Small) -> Small:
    """The files that another vocabulary or chat template changes; takes out of `small` what they
    must not stand beside."""
    found: Small = {}
    rows = plan.rows
    if rows is not None and rows.united:
        found |= united_files(plan.inputs.vocabularies.folders[rows.donor], rows.united)
    if rows is not None and GENERATION in small:
        before = read_object(small[GENERATION])
        after = renumbered(plan, before)
        if after != before:
            found[GENERATION] = (json.dumps(after, indent=2, ensure_ascii=False) + "\n").encode()
    if plan.chat is not None:
        config = found.get(TOKENIZER_CONFIG, small.get(TOKENIZER_CONFIG))
        for name, content in chat_files(plan.chat, config).items():
            small.pop(name, None)
            if content is not None:
                found[name] = content
    return found


def donor_files(plan: Plan) -> list[Path]:
    """The side files that the output takes over: the donor's, an adapter's base's; of the
    vocabulary's model where that is another."""
    files = {path.name: path for path in side_files(_folder(plan, plan.inputs.donor))[0]}
    if plan.rows is not None and plan.rows.donor != plan.inputs.donor:
        theirs = side_files(_folder(plan, plan.rows.donor))[0]
        files = {name: path for name, path in files.items() if not _of_tokenizer(name)}
        files |= {path.name: path for path in theirs if _of_tokenizer(path.name)}
    return [files[name] for name in sorted(files)]


def provenance(plans: Sequence[Plan]) -> dict[str, Any]:
    """What was made of what, without an absolute path: a recipe that makes the same bytes again."""
    plan = plans[-1]
    names = _Names(plans)
    documents = names.documents(plans)
    models: dict[str, Any] = {}
    for one in plans:
        for label, model in zip(one.inputs.labels, one.inputs.models, strict=True):
            if type(model) in (Checkpoint, AdaptedCheckpoint):
                models[names.plain(label)] = described(model) | {
                    "files": model.fingerprint(times=False)
                }
    return {
        "rledit": __version__,
        "command": "merge",
        "recipe": documents if len(documents) > 1 else documents[0],
        "models": models,
        "dtype": plan.dtype,
        "merged": len(plan.merged),
        "copied": plan.copied,
        "notes": names.sentences(plan.notes),
    }


def model_card(plans: Sequence[Plan]) -> str:
    """A README.md with the front matter the Hub reads, and the recipe."""
    plan = plans[-1]
    models = [
        model
        for one in plans
        for model in one.inputs.models
        if type(model) in (Checkpoint, AdaptedCheckpoint)
    ]
    ids = list(dict.fromkeys(model.name for model in models if model.revision))
    front: dict[str, Any] = {"library_name": "transformers"}
    if ids:
        front["base_model"] = ids
    front["tags"] = ["merge", "rledit"]
    short = _Names(plans)
    recipe = yaml.safe_dump_all(short.documents(plans), sort_keys=False, allow_unicode=True)
    names = list(dict.fromkeys(model.name for model in models))
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False).strip(),
        "---",
        f"# A merge of {', '.join(names)}",
        "",
        f"Made with `rledit merge`, method `{plan.recipe.method.name}`: "
        f"{plan.recipe.method.summary}",
        "",
        f"{len(plan.merged)} tensors are merged"
        + "".join(f"; {len(names)} copied: {why}" for why, names in plan.copied.items())
        + ".",
        "",
        *(f"- note: {note}" for note in short.sentences(plan.notes)),
        *([""] if plan.notes else []),
        "```yaml",
        recipe.strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


class _Names:
    """Short names for the absolute paths of recipes: of each the folder's name, and a number where
    two are alike."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._short: dict[str, str] = {}
        for plan in plans:
            for label in plan.inputs.labels:
                for part in label.split("+"):
                    self._add(part)

    def documents(self, plans: Sequence[Plan]) -> list[Any]:
        """The recipes' documents without absolute paths."""
        return [self.plain(plan.document) for plan in plans]

    def plain(self, content: Any) -> Any:
        """Plain values without absolute paths."""
        if isinstance(content, Mapping):
            return {self.plain(str(key)): self.plain(value) for key, value in content.items()}
        if isinstance(content, list | tuple):
            return [self.plain(value) for value in content]
        if not isinstance(content, str) or "/" not in content:
            return content
        return "+".join(self._short.get(part, part) for part in content.split("+"))

    def sentences(self, texts: Iterable[str]) -> list[str]:
        """Texts that name models, without absolute paths."""
        found = list(texts)
        for path in sorted(self._short, key=len, reverse=True):
            found = [text.replace(path, self._short[path]) for text in found]
        return found

    def _add(self, path: str) -> None:
        if path in self._short or not Path(path).is_absolute():
            return
        name = wanted = Path(path).name or "model"
        number = 1
        while name in self._short.values():
            number += 1
            name = f"{wanted}-{number}"
        self._short[path] = name


def _folder(plan: Plan, number: int) -> Path:
    """The folder that a model's config and tokenizer lie in."""
    model = plan.inputs.models[number]
    if isinstance(model, AdaptedCheckpoint) and not (model.folder / CONFIG).is_file():
        return model.base.folder
    return model.folder


def _of_tokenizer(name: str) -> bool:
    return "token" in name or name.split(".")[0] in (
        "vocab", "merges", "spiece", "tekken", "chat_template",
    )  # fmt: skip
