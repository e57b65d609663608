"""The generators of reasoning-gym."""

from collections.abc import Iterator
from random import Random
from typing import Annotated

from mergekit_rl.errors import EditError
from mergekit_rl.registry import Range
from mergekit_rl.tasks.grade import nearest
from mergekit_rl.tasks.settings import MAPPING
from mergekit_rl.tasks.task import Problem, task


@task(wanted="the answer", grader="reasoning_gym")
def reasoning_gym(
    rng: Random,
    *,
    dataset: str,
    config: Annotated[dict, MAPPING] = {},  # noqa: B006
    most: Annotated[int, Range(1, 10**9)] = 10**6,
) -> Iterator[Problem]:
    """Problems of a reasoning-gym generator; `config` holds its own settings.

    An answer is right where it gets the generator's full score. That score is computed by
    reasoning-gym, with the generator's default settings.
    """
    try:
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise EditError(
            "the task 'reasoning_gym' needs reasoning-gym: pip install reasoning-gym"
        ) from None
    if dataset not in DATASETS:
        near = nearest(dataset, list(DATASETS))
        raise EditError(f"reasoning_gym has no dataset {dataset!r}{near}")
    try:
        made = create_dataset(dataset, **config, seed=rng.getrandbits(31), size=most)
    except (TypeError, AssertionError, ValueError) as error:
        raise EditError(f"reasoning_gym {dataset} refuses {config!r}: {error}") from None
    for number in range(most):
        entry = made[number]
        yield Problem(entry["question"].strip(), str(entry["answer"]), meta={"entry": entry})
