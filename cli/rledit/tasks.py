"""`rledit tasks`."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mergekit_rl.tasks import Kind


@click.command("tasks", short_help="List tasks, or print sample prompts of one.")
@click.argument("name", required=False)
@click.option(
    "-n", "count", type=click.IntRange(0), default=5, show_default=True, help="Sample prompts."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of their order.")
@click.option(
    "--plugin", "plugins", multiple=True, metavar="FILE", help="A Python file with your own."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(
    name: str | None, count: int, seed: int, plugins: tuple[str, ...], as_json: bool
) -> None:
    """List the tasks a line each; or tell all of the one called NAME, or of the JSONL file NAME,
    with sample prompts and their gold answers."""
    import json

    from mergekit_rl.plugins import load_plugins
    from mergekit_rl.tasks import kinds
    from rledit.escape import plain

    load_plugins(plugins)
    if name is None:
        found = [{"name": one.name, "summary": one.summary} for one in kinds().values()]
        width = max(len(one["name"]) for one in found)
        text = "\n".join(f"{one['name']:<{width}}  {one['summary']}" for one in found)
    else:
        found = describe(name, count, seed)
        text = task_text(found)
    click.echo(json.dumps(found, indent=1) if as_json else plain(text))


def describe(name: str, count: int, seed: int) -> dict[str, Any]:
    """Settings, sizes and sample rows of a task; of one that needs a setting, its settings."""
    from mergekit_rl.tasks import find_kind, kinds, load_task

    if name in kinds() and any(one.required for one in find_kind(name).settings.values()):
        kind = find_kind(name)
        return {**_head(kind), "sizes": None, "samples": []}
    task = load_task(name)
    sizes = task.sizes()
    split = "train" if sizes["train"] else "test"
    samples = task.rows(split, seed)[:count] if sizes[split] else []
    return {**_head(task.kind), "sizes": sizes, "samples": samples}


def task_text(found: dict[str, Any]) -> str:
    """A described task as a person reads it."""
    lines = [f"{found['name']}: {found['summary']}"]
    if found["sizes"]:
        lines.append("rows: " + ", ".join(f"{n:,} {split}" for split, n in found["sizes"].items()))
    lines += ["", "settings:"]
    width = max(len(name) for name in found["settings"])
    for name, one in found["settings"].items():
        default = "must be given" if one["required"] else f"default {one['default']!r}"
        lines.append(f"  {name:<{width}}  {one['expected']}; {default}")
    if found["samples"]:
        lines += ["", "samples:"]
    for row in found["samples"]:
        lines += [f"  {row['prompt']}", f"    {row['answer']}"]
    return "\n".join(lines)


def _head(kind: "Kind") -> dict[str, Any]:
    settings = {
        name: {"expected": one.expected, "required": one.required, "default": one.default}
        for name, one in kind.settings.items()
    }
    return {"name": kind.name, "summary": kind.summary, "settings": settings}
