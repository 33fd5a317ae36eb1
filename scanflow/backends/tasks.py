"""Tasks of a run: their names, those that are still to come, and what a spin needs. Pure; shared by backends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.graph import ancestors
from scanflow.app.references import references_in
from scanflow.app.workflow import Workflow
from scanflow.backends.records import TaskRecord
from scanflow.errors import UsageError
from scanflow.names import StepName


def task_name(step: str, index: int | None) -> StepName:
    """Return ``train`` or ``train.3``; a step's own name has no dot."""
    return StepName(step if index is None else f"{step}.{index}")


def split_task(task: str) -> tuple[str, int | None]:
    step, _, index = task.partition(".")
    return step, int(index) if index else None


def with_pending(workflow: Workflow, known: Iterable[TaskRecord]) -> tuple[TaskRecord, ...]:
    """Return all tasks of a run in the order of its graph; steps that were not reached are one pending task each."""
    begun = list(known)
    steps = {record.step for record in begun}
    begun += [
        TaskRecord(task=StepName(node.name), step=node.name, state="pending")
        for node in workflow.nodes
        if node.name not in steps
    ]
    position = {name: index for index, name in enumerate(name for level in workflow.levels for name in level)}
    return tuple(sorted(begun, key=lambda one: (position.get(one.step, len(position)), split_task(one.task)[1] or 0)))


def inputs_of_spin(cut: Workflow, task: str, past: str, records: Iterable[TaskRecord]) -> list[TaskRecord]:
    """Return those of a past run's tasks that a spin of ``task`` takes its inputs from.

    Raises:
        UsageError: one of them did not finish.
    """
    needed = set(cut.by_name) - {split_task(task)[0]}
    found = [record for record in records if record.step in needed]
    broken = {record.step for record in found if record.state not in {"succeeded", "skipped"}}
    missing = sorted(needed - {record.step for record in found} | broken)
    if missing:
        raise UsageError(
            f"The step {task!r} needs {', '.join(missing)}, which did not finish in the run {past!r}. "
            "Name a run in which it did: scanflow runs"
        )
    return found


def only_step(workflow: Workflow, task: str, parameters: Mapping[str, Any]) -> Workflow:
    """Return the workflow cut down to a step, or to that of a task such as ``train.3``, and what it needs.

    A fan-out runs once where ``parameters``, which were changed, leave nothing that differs from item to item.

    Raises:
        UsageError: a task is named of a step that runs once.
    """
    step, index = split_task(StepName(task))
    found = workflow.node(step)
    if isinstance(found, Executor) and found.for_each is not None and not _differs(found, parameters):
        found = found.replace(for_each=None)
    if index is not None and (not isinstance(found, Executor) or found.for_each is None):
        raise UsageError(f"The step {step!r} runs once, so there is no {task!r}. Write: scanflow spin {step}")
    kept = ancestors(workflow.parents, step) | {step}
    return workflow.replace(
        nodes=tuple(found if node.name == step else node for node in workflow.nodes if node.name in kept),
        edges=tuple(edge for edge in workflow.dependencies if {edge.dependee, edge.depender} <= kept),
    )


def _differs(node: Executor, changed: Mapping[str, Any]) -> bool:
    """Return whether the tasks of a fan-out have parameters of their own, as far as the changes tell."""
    touched = any(name in changed or f"{node.name}.{name}" in changed for name in node.parameters)
    return not touched or any(ref.step is None for ref in references_in(node.parameters))
