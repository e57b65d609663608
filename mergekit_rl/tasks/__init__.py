"""Prompts, gold answers and graders. Loads no torch, so that grader processes start fast."""

from mergekit_rl.tasks.grade import Grade, Row, grade, grader
from mergekit_rl.tasks.load import load_task
from mergekit_rl.tasks.pool import GraderPool
from mergekit_rl.tasks.task import Kind, Problem, Task, find_kind, kinds, task

__all__ = [
    "Grade",
    "GraderPool",
    "Kind",
    "Problem",
    "Row",
    "Task",
    "find_kind",
    "grade",
    "grader",
    "kinds",
    "load_task",
    "task",
]
