"""Tasks of a run: their names and states, and the inputs of a spin. Pure; shared by backends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from scanflow.app.executor import Executor
from scanflow.app.references import Ref, list_references
from scanflow.app.workflow import Workflow
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import FINISHED_STATES, RunRecord, TaskRecord
from scanflow.errors import NotFoundError, UsageError, did_you_mean
from scanflow.graphs import list_ancestors
from scanflow.names import StepName

OutputsT = TypeVar("OutputsT")


def format_task_name(step: str, index: int | None) -> StepName:
    """Return ``train`` or ``train.3``; a step's own name has no dot."""
    return StepName(step if index is None else f"{step}.{index}")


def split_task(task: str) -> tuple[str, int | None]:
    step, _, index = task.partition(".")
    return step, int(index) if index else None


def add_details(record: RunRecord, workflow: Workflow, tasks: Iterable[TaskRecord]) -> RunRecord:
    """Return the record of a run with what only the record of a single run has: its tasks and its graph."""
    return record.model_copy(update={"tasks": tuple(tasks), "parents": dict(workflow.parents)})


def add_pending_tasks(
    workflow: Workflow, records: Iterable[TaskRecord], *, is_driven: bool = True
) -> tuple[TaskRecord, ...]:
    """Return all tasks of a run in the order of its graph; steps that were not reached are one pending task each.

    ``is_driven``: whether some process starts its tasks; else none of them waits for anything.
    """
    tasks = list(records) if workflow.type == "mpi" else select_current_tasks(workflow, records)
    if not is_driven:
        tasks = [task.model_copy(update={"waits_for": None}) if task.waits_for else task for task in tasks]
    steps = {record.step for record in tasks}
    tasks += [
        build_empty_record(node.name)
        if isinstance(node, Executor) and node.for_each == ()
        else TaskRecord(task=StepName(node.name), step=node.name, state="pending")
        for node in workflow.nodes
        if node.name not in steps
    ]
    position = {name: index for index, name in enumerate(name for level in workflow.levels for name in level)}

    def sort_key(record: TaskRecord) -> tuple[int, int]:
        return position.get(record.step, len(position)), split_task(record.task)[1] or 0

    return tuple(sorted(tasks, key=sort_key))


def select_current_tasks(workflow: Workflow, records: Iterable[TaskRecord]) -> list[TaskRecord]:
    """Return the tasks that a run still has: when it was resumed, it may have lost steps and items."""
    current = [record for record in records if _is_current(workflow.by_name.get(record.step), record)]
    with_items = {record.step for record in current if split_task(record.task)[1] is not None}
    # A fan-out of which no item had begun, by its step's name.
    return [
        record
        for record in current
        if record.state == "failed" or record.step not in with_items or split_task(record.task)[1] is not None
    ]


def _is_current(node: Any, record: TaskRecord) -> bool:
    index = split_task(record.task)[1]
    if not isinstance(node, Executor) or node.for_each is None:
        return isinstance(node, Executor) and index is None
    if index is None:
        return record.state != "succeeded"
    return isinstance(node.for_each, Ref) or index < len(node.for_each)


def reset_changed_tasks(before: Workflow, now: Workflow, records: Iterable[TaskRecord]) -> dict[StepName, TaskRecord]:
    """Return the finished tasks whose item, or whose step's condition, is another now, and those of all steps after
    them, as tasks that are to run."""
    finished = [record for record in select_current_tasks(now, records) if record.state in FINISHED_STATES]
    if not finished:
        return {}
    earlier = {node.name: node for node in before.steps}
    changed = {node.name for node in now.steps if _describe(node) != _describe(earlier.get(node.name, node))}
    after = set[str]()
    for step in chain.from_iterable(now.levels):
        if not (changed | after).isdisjoint(now.parents[step]):
            after.add(step)
    return {
        record.task: reset_task(record)
        for record in finished
        if record.step in after
        or (
            record.step in changed
            and _describe(earlier[record.step], record.task) != _describe(now.by_name[record.step], record.task)
        )
    }


def _describe(node: Any, task: str = "") -> str:
    """Return what decides which tasks a step has; of one task, the condition and its item."""
    described, index = node.model_dump(mode="json", include={"for_each", "when"}), split_task(task)[1]
    if index is not None and isinstance(items := described["for_each"], list):
        described["for_each"] = items[index : index + 1]
    return json.dumps(described, sort_keys=True)


def reset_task(record: TaskRecord) -> TaskRecord:
    """Return a task as it is to run again."""
    return TaskRecord(task=record.task, step=record.step, state="pending", attempts=record.attempts)


def select_running_tasks(run: RunRecord, task: str) -> list[TaskRecord]:
    """Return the running tasks of that name, or of the step of that name.

    Raises:
        NotFoundError: the run has no such task.
        UsageError: none of them is running.
    """
    matches = select_tasks(run, task)
    running = [record for record in matches if record.state == "running"]
    if not running:
        states = ", ".join(sorted({record.state for record in matches}))
        raise UsageError(
            f"The task {task!r} of the run {run.name!r} is not running: it is {states}. See: scanflow show {run.name}"
        )
    return running


def get_logged_task(run: RunRecord, task: str) -> TaskRecord:
    """Return the task of that name, which has a log.

    Raises:
        NotFoundError: there is none, or it has no log in this run.
    """
    record = {task_record.task: task_record for task_record in run.tasks}.get(StepName(task))
    if record is not None and record.attempts:
        return record
    if record is not None and record.origin:
        hint = f" Its outputs came from {record.origin!r}."
    else:
        hint = did_you_mean(task, [task_record.task for task_record in run.tasks if task_record.attempts])
    raise NotFoundError(f"The run {run.name!r} has no log of {task!r}.{hint}")


def build_empty_record(step: str) -> TaskRecord:
    """Return the record of a fan-out over no items."""
    return TaskRecord(task=StepName(step), step=step, state="empty")


def group_by_step(tasks: Iterable[TaskRecord]) -> dict[str, set[StepName]]:
    """Return the names of the tasks of each step."""
    names: dict[str, set[StepName]] = {}
    for record in tasks:
        names.setdefault(record.step, set()).add(record.task)
    return names


def select_tasks(run: RunRecord, step: str | None) -> list[TaskRecord]:
    """Return the tasks of that name, or of the step of that name; None: all.

    Raises:
        NotFoundError: the run has no such task.
    """
    matches = [record for record in run.tasks if step is None or step in {record.task, record.step}]
    if not matches and step is not None:
        names = {name for record in run.tasks for name in (record.task, record.step)}
        raise NotFoundError(f"The run {run.name!r} has no task {step!r}.{did_you_mean(step, names)}")
    return matches


def list_output_tasks(run: RunRecord, step: str) -> list[TaskRecord]:
    """Return the tasks whose outputs are those of a step or task; none for a fan-out over no items.

    Raises:
        NotFoundError: the step did not finish in that run.
    """
    # A task of that name goes first: the step of the ranks of an MPI job may have the name of the job.
    tasks = [task for task in run.tasks if task.task == step] or [task for task in run.tasks if task.step == step]
    if tasks and all(task.state == "empty" for task in tasks):
        return []
    if not tasks or any(task.state != "succeeded" for task in tasks):
        done = {task.step for task in run.tasks if task.state == "succeeded"} - {step}
        raise NotFoundError(f"The step {step!r} has no outputs in the run {run.name!r}.{did_you_mean(step, done)}")
    return tasks


def arrange_outputs(step: str, tasks: Sequence[TaskRecord], values: list[OutputsT]) -> OutputsT | list[OutputsT]:
    """Return the outputs of a step's tasks: those of its only task, or a list of a fan-out's."""
    return values[0] if tasks and step == tasks[0].task else values


def list_spin_inputs(definition: RunDefinition, past: RunRecord) -> list[TaskRecord]:
    """Return the tasks of a past run that a spin, which is cut down already, takes its inputs from.

    Raises:
        UsageError: one of them did not finish.
    """
    needed = set(definition.workflow.by_name) - {split_task(definition.step or "")[0]}
    records = [record for record in past.tasks if record.step in needed]
    done = {record.step for record in records} - {
        record.step for record in records if record.state not in FINISHED_STATES
    }
    missing = sorted(needed - done)
    if missing:
        raise UsageError(
            f"The step {definition.step!r} needs {', '.join(missing)}, which did not finish in the run {past.name!r}. "
            "Name a run in which it finished: scanflow runs"
        )
    return [record.model_copy(update={"origin": past.name}) for record in records]


def cut_down(definition: RunDefinition) -> RunDefinition:
    """Reduce a spin's workflow to its step and that step's ancestors; return other definitions unchanged.

    A fan-out runs once if the changed ``parameters`` leave nothing that differs from item to item.

    Raises:
        UsageError: a task is named of a step that runs once.
    """
    if definition.step is None:
        return definition
    workflow, (step, index) = definition.workflow, split_task(definition.step)
    spun = workflow.node(step)
    if (
        isinstance(spun, Executor)
        and spun.for_each is not None
        and not _has_item_parameters(spun, definition.parameters)
    ):
        spun = spun.replace(for_each=None)
    if index is not None and (not isinstance(spun, Executor) or spun.for_each is None):
        raise UsageError(
            f"The step {step!r} runs once, so it has no task {definition.step!r}. Write: scanflow spin {step}"
        )
    needed = list_ancestors(workflow.parents, step) | {step}
    reduced = workflow.replace(
        nodes=tuple(spun if node.name == step else node for node in workflow.nodes if node.name in needed),
        edges=tuple(edge for edge in workflow.dependencies if {edge.dependee, edge.depender} <= needed),
    )
    return replace(definition, workflow=reduced)


def _has_item_parameters(node: Executor, changed: Mapping[str, Any]) -> bool:
    """Return whether the tasks of a fan-out still have different parameters after the changes."""
    touched = any(name in changed or f"{node.name}.{name}" in changed for name in node.parameters)
    return not touched or any(ref.step is None for ref in list_references(node.parameters))
