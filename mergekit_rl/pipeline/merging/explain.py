"""How one tensor of a merge comes about."""

from typing import Any

from mergekit_rl.errors import EditError
from mergekit_rl.pipeline.merging.forecast import row
from mergekit_rl.pipeline.merging.run import Run, Written
from mergekit_rl.registry import suggestion


def explain(recipe: Written, tensor: str, **options: Any) -> dict[str, Any]:
    """The sources, rows and settings of one tensor of the output, as plain values.

    Args:
        recipe, options: as in `merge_events`.
        tensor: its name in the output.

    Raises:
        EditError: the output has no such tensor; what `merge_events` raises before it reads.
    """
    run = Run.of(recipe, **options)
    outputs = {output.name: output for output in run.plan.outputs}
    if tensor not in outputs:
        hint = suggestion(tensor, outputs) or f"; it has {next(iter(outputs))} and others"
        raise EditError(f"the output has no tensor {tensor!r}{hint}")
    output = outputs[tensor]
    found = row(run, output)
    found["origins"] = {name.removesuffix("_"): where for name, where in output.origins.items()}
    found["layer"] = output.ctx.layer
    if output.rows:
        found["rows"] = run.plan.rows.described()
    return found
