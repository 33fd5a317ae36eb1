"""Determine which steps of a run have finished before a drive, and which run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.app.workflow import Workflow
from scanflow.backends.definition import read_definition
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord
from scanflow.backends.tasks import reset_changed_tasks, select_current_tasks, split_task
from scanflow.names import StepName


@dataclass(frozen=True, slots=True)
class FinishedSteps:
    """The finished steps of a run, before a drive."""

    done: frozenset[str] = frozenset()
    """Steps whose tasks have all succeeded."""

    skipped: frozenset[str] = frozenset()
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Earlier attempts of tasks that run again."""


def list_finished(workflow: Workflow, tasks: Mapping[StepName, TaskRecord]) -> list[StepName]:
    """Return the tasks of a workflow, as it is now, that have succeeded."""
    return [task.task for task in select_current_tasks(workflow, tasks.values()) if task.state == "succeeded"]


def reset_changed(journal: Journal, run: JournalRun, definition: RunDefinition) -> tuple[StepName, ...]:
    """Record that tasks whose item or condition is another now are to run, and forget those that are gone; return
    them."""
    before, now = read_definition(run).workflow, definition.workflow
    tasks = journal.read_tasks(run)
    changed = reset_changed_tasks(before, now, tasks.values())
    kept = {task.task: changed.get(task.task, task) for task in select_current_tasks(now, tasks.values())}
    fed = {node.name for node in now.steps if isinstance(node.for_each, Ref)}  # how many items, only Pods will know
    journal.replace_tasks(run, [task for name, task in kept.items() if name not in changed or task.step not in fed])
    return tuple(changed)


def list_finished_steps(
    workflow: Workflow, tasks: Mapping[StepName, TaskRecord]
) -> tuple[FinishedSteps, dict[str, tuple[int, ...]]]:
    """Return the finished steps of a run, and the finished tasks of unfinished fan-outs."""
    done, skipped, kept_tasks = set[str](), set[str](), dict[str, tuple[int, ...]]()
    children: dict[str, set[str]] = {name: set() for name in workflow.by_name}
    for child, parents in workflow.parents.items():
        for parent in parents:
            children[parent].add(child)
    begun_steps = {task.step for task in tasks.values() if task.state != "pending"}
    for node in workflow.steps:
        step_tasks = [task for task in tasks.values() if task.step == node.name]
        states = {task.state for task in step_tasks}
        if states == {"skipped"}:
            skipped.add(node.name)
        elif states in ({"empty"}, {"succeeded"}) and _is_whole(
            node, step_tasks, followed=states == {"empty"} or bool(begun_steps & children[node.name])
        ):
            done.add(node.name)
        elif node.for_each is not None:
            kept_tasks[node.name] = tuple(
                sorted(
                    split_task(task.task)[1] or 0
                    for task in step_tasks
                    if task.state == "succeeded" and "." in task.task
                )
            )
    settled = done | skipped
    attempts = {
        str(name): task.attempts
        for name, task in tasks.items()
        if task.attempts and task.step not in settled and task.state != "succeeded"
    }
    finished = FinishedSteps(frozenset(done), frozenset(skipped), attempts)
    return finished, {name: places for name, places in kept_tasks.items() if places}


def _is_whole(node: Executor, tasks: list[TaskRecord], *, followed: bool) -> bool:
    """Return whether ``tasks`` are all of a step's. ``followed``: a later step has begun, which shows it for a fan-out
    whose list only the cluster knows."""
    if isinstance(node.for_each, tuple):
        return len(node.for_each) == sum(split_task(task.task)[1] is not None for task in tasks)
    inherited = all(task.origin is not None and not task.attempts for task in tasks)
    return node.for_each is None or followed or inherited


def add_skipped(workflow: Workflow, finished: FinishedSteps) -> FinishedSteps:
    """Return the finished steps, with those that are skipped because all their dependencies were."""
    skipped = set(finished.skipped)
    for name in (name for level in workflow.levels for name in level):
        before = workflow.parents[name]
        if before and skipped.issuperset(before) and name not in finished.done:
            skipped.add(name)
    return FinishedSteps(finished.done, frozenset(skipped), finished.attempts)
