"""The small files of an output: core.json, config, provenance, model card, side files."""

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mergekit_rl import __version__
from mergekit_rl.io import core
from mergekit_rl.io.checkpoint import Checkpoint
from mergekit_rl.io.output import MARKER
from mergekit_rl.pipeline.donor import config_text, with_dtype
from mergekit_rl.pipeline.plan import Files, Plan
from mergekit_rl.pipeline.summary import Summary

Small = dict[str, bytes | Path]
_PROJECTED = {
    "spectral": " and projected onto the spectral space of the base.",
    "random": " and projected onto random subspaces of the size of the base's: a control.",
    "none": ", without a projection.",
}
_RUN_ONLY = ("reading", "computing", "writing")  # differ from run to run
_SUMMARY_RUN_ONLY = (
    "seconds", "seconds_reading", "seconds_computing", "seconds_writing", "peak_bytes",
    "output_bytes", "not_copied",
)  # fmt: skip


def documents(
    plan: Plan, files: Files, records: Mapping[str, Mapping[str, Any]], summary: Summary
) -> Small:
    """{path in the output: content} of all small files of one rank."""
    small: Small = {}
    if plan.saves_core:
        small |= _core_files(plan, files, records, summary)
    if plan.saves_model:
        small |= _model_files(plan, files, summary)
    return small


def _core_files(
    plan: Plan, files: Files, records: Mapping[str, Mapping[str, Any]], summary: Summary
) -> Small:
    """What lies beside a core's factors."""
    at = files.core_at
    dtypes = {name: plan.output_dtype(name) for name in plan.pair.base.tensors}
    default = Counter(dtypes.values()).most_common(1)[0][0]
    base = plan.pair.base
    content = {
        "format": core.FORMAT,
        "rledit": __version__,
        "base": described(base)
        | {
            "dtype": base.dtype,
            "config": config_digest(base),
            "tensors": {name: records[name]["digest"] for name in base.tensors},
        },
        "expert": described(plan.pair.expert),
        "options": files.options.as_dict(),
        "output": {
            "dtype": default,
            "other_dtypes": {name: d for name, d in dtypes.items() if d != default},
            "config": config_text(plan.donor.config),
        },
        "summary": _lasting(summary),
        "targets": {
            name: {key: value for key, value in records[name].items() if key not in _RUN_ONLY}
            for name in plan.targets
        },
    }
    return {
        at + core.FILE: as_json(content),
        at + "adapter_config.json": as_json(files.adapter_config),
        **_shared(plan, files, summary, at, peft=True),
    }


def _model_files(plan: Plan, files: Files, summary: Summary) -> Small:
    """What lies beside a whole model's shards."""
    at = files.model_at
    dtypes = {name: dtype for name, (dtype, _) in plan.model.items()}
    text = with_dtype(config_text(plan.donor.config), dtypes)
    config: Small = {f"{at}config.json": text.encode()} if text else {}
    return {**config, **files.index, **_shared(plan, files, summary, at, peft=False)}


def provenance(plan: Plan, files: Files, summary: Summary) -> dict[str, Any]:
    """What was made of what, without a path of this machine."""
    return {
        "rledit": __version__,
        "command": "sar",
        "base": described(plan.pair.base),
        "expert": described(plan.pair.expert),
        "options": files.options.as_dict(),
        "summary": _lasting(summary),
    }


def sweep_marker(plan: Plan) -> bytes:
    """What lies at the top of a sweep."""
    content = {
        "rledit": __version__,
        "command": "sar",
        "base": described(plan.pair.base),
        "expert": described(plan.pair.expert),
        "options": plan.options.as_dict(),
    }
    return as_json(content)


def described(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's Hub id and revision, or its folder's name."""
    return {"name": checkpoint.name, "revision": checkpoint.revision}


def config_digest(checkpoint: Checkpoint) -> str:
    """SHA-256 of a config.json's content, dtype and version of transformers aside."""
    volatile = ("dtype", "torch_dtype", "transformers_version", "_name_or_path")
    content = {key: value for key, value in checkpoint.config.items() if key not in volatile}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def model_card(plan: Plan, files: Files, summary: Summary, *, peft: bool) -> str:
    """A README.md with the front matter the Hub reads."""
    base, expert = plan.pair.base, plan.pair.expert
    front = ["---", "library_name: " + ("peft" if peft else "transformers")]
    front += [f"base_model: {base.name}"] if base.revision else []
    front += ["tags:", "- rledit", "- sar", *(["- lora"] if peft else []), "---"]
    options = " ".join(
        f"--{key.replace('_', '-')} {shlex.quote(str(value))}"
        for key, value in files.options.as_dict().items()
        if value is not None and key not in ("save", "device")
    )
    what = "core" if peft else "model edited with the core"
    use = (
        f"Load it with `PeftModel.from_pretrained(base, …)`, or make the whole model with "
        f"`rledit apply {base.name} THIS --out MODEL`."
        if peft
        else "Load it like any model of transformers."
    )
    lines = [
        *front,
        f"# The {what} of {expert.name} over {base.name}",
        "",
        "Made with `rledit sar` (Subspace-Aligned Rewiring, arXiv:2607.03065): the update that "
        "training left in the projections of attention and MLP, cut to a low rank"
        + _PROJECTED[plan.options.projection],
        "",
        use,
        "",
        f"    rledit sar {base.name} {expert.name} {options}",
        "",
        f"- kept energy of the update in the targets: {summary.kept:.4f}",
        f"- the projection's share: {summary.projection_share:.4f}"
        + ("" if summary.chance is None else f" (by chance: {summary.chance:.4f})"),
        f"- share of the update outside the targets, left at the base: {summary.outside:.4f}"
        if plan.options.rest == "base"
        else f"- share of the update outside the targets, kept: {summary.outside:.4f}",
        f"- entries that differ from the base in {summary.dtype}: {summary.visible:.4f}",
        *(f"- note: {note}" for note in summary.notes),
        "",
    ]
    return "\n".join(lines)


def _shared(plan: Plan, files: Files, summary: Summary, at: str, *, peft: bool) -> Small:
    small: Small = {at + path.name: path for path in plan.donor.files}
    small[at + "README.md"] = model_card(plan, files, summary, peft=peft).encode()
    small[at + MARKER] = as_json(provenance(plan, files, summary))
    return small


def _lasting(summary: Summary) -> dict[str, Any]:
    return {k: v for k, v in summary.as_dict().items() if k not in _SUMMARY_RUN_ONLY}


def as_json(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
