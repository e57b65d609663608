"""Merges, methods and recipes as a person reads them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mergekit_rl.pipeline.merging.forecast import Forecast
    from mergekit_rl.pipeline.merging.run import Merged
    from mergekit_rl.registry import Function


def merged_text(m: "Merged", out: str) -> str:
    """What a merge did."""
    rows = [
        ("merged", f"{m.merged} tensors of {', '.join(m.models)} by {m.method}"),
        *(("copied", f"{count}: {why}") for why, count in m.copied.items()),
        ("size", f"{m.output_bytes / 1e6:,.1f} MB, {m.dtype}"),
        ("time", f"{m.seconds:.1f} s, {m.peak_bytes / 1e6:,.0f} MB of memory at most"),
        *(("note", note) for note in m.notes),
        ("written", out),
    ]
    return "\n".join(f"{name:<9} {value}" for name, value in rows)


def forecast_text(f: "Forecast") -> str:
    """What a merge would do: a line per tensor, then sums."""
    lines = []
    for one in f.tensors:
        shape = "×".join(map(str, one["shape"]))
        sources = ", ".join(
            label if name == one["name"] else f"{label}:{name}" for label, name in one["from"]
        )
        settings = " ".join(f"{k}={_short(v)}" for k, v in one.get("settings", {}).items())
        lines.append(
            f"{one['name']}  {one['dtype']} {shape}  {one['action']}  [{sources}]  {settings}"
        )
    rows = [
        ("merged", f"{f.merged} tensors of {', '.join(f.models)} by {f.method}"),
        *(("copied", f"{count}: {why}") for why, count in f.copied.items()),
        ("disk", f"{f.output_bytes / 1e6:,.1f} MB, {f.dtype}"),
        ("read", f"{f.read_bytes / 1e6:,.1f} MB"),
        ("memory", f"{f.memory_bytes / 1e6:,.0f} MB at most"),
        ("time", f"{f.seconds:.1f} s at the rate of some tensors computed now"),
        *(("note", note) for note in f.notes),
    ]
    return "\n".join([*lines, "", *(f"{name:<9} {value}" for name, value in rows)])


def explained_text(found: dict[str, Any]) -> str:
    """How one tensor of a merge comes about."""
    lines = [
        f"{found['name']}: {found['dtype']} {'×'.join(map(str, found['shape']))}",
        f"  {found['action']}",
    ]
    if found["base"] is not None:
        lines.append(f"  base      {found['base'][0]}: {found['base'][1]}")
    for number, (label, name) in enumerate(found["from"]):
        stages = found.get("stages", [[]] * len(found["from"]))[number]
        after = f", after {', '.join(stages)}" if stages else ""
        lines.append(f"  model {number}   {label}: {name}{after}")
    for name, value in found.get("settings", {}).items():
        lines.append(f"  {name} = {_short(value)}  ({_short(found['origins'][name])})")
    lines += [f"  {row}" for row in found.get("rows", [])]
    return "\n".join(lines)


def methods_text(methods: "list[Function]") -> str:
    """A line per method."""
    wide = max(len(one.name) for one in methods)
    return "\n".join(f"{one.name:<{wide}}  {one.summary}" for one in methods)


def method_text(one: "Function") -> str:
    """A method's documentation and settings."""
    least, most = one.models
    count = f"{least}" if least == most else f"{least} or more"
    base = {"required": "and a base_model", "optional": "and a base_model or none", "input": ""}
    lines = [
        f"{one.name}: merges {count} model{'' if count == '1' else 's'} {base[one.base]}".rstrip(),
        "",
        one.documentation,
        "",
        "Settings" + ("" if one.settings else ": none"),
    ]
    for setting in one.settings.values():
        default = "required" if setting.required else f"default {_short(setting.default)}"
        each = ", of each model" if setting.per_model else ""
        lines.append(f"  {setting.name}: {setting.expected}{each}; {default}")
    if one.ignores:
        lines.append(f"Accepted, without effect: {', '.join(one.ignores)}")
    return "\n".join(lines)


def method_dict(one: "Function") -> dict[str, Any]:
    """A method as plain values."""
    return {
        "name": one.name,
        "summary": one.summary,
        "takes": one.takes,
        "base": one.base,
        "models": list(one.models),
        "settings": [
            {
                "name": setting.name,
                "type": setting.kind.__name__,
                "per_model": setting.per_model,
                "required": setting.required,
                "default": setting.default,
                "expected": setting.expected,
            }
            for setting in one.settings.values()
        ],
        "ignores": list(one.ignores),
    }


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_short, value))}]"
    return str(value)
