"""Where a run stands before a drive: what has ended, and what is run again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.records import TaskRecord
from scanflow.backends.tasks import split_task
from scanflow.names import StepName


@dataclass(frozen=True, slots=True)
class Finished:
    """What of a run has ended, before a drive."""

    done: frozenset[str] = frozenset()
    """Steps of which every task ended well."""

    skipped: frozenset[str] = frozenset()
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Attempts made at tasks that are to run again."""


def finished_of(
    workflow: Workflow, tasks: Mapping[StepName, TaskRecord]
) -> tuple[Finished, dict[str, tuple[int, ...]]]:
    """Return where a run stands, and of fan-outs that go on, the tasks that had finished."""
    done, skipped, kept = set[str](), set[str](), dict[str, tuple[int, ...]]()
    children: dict[str, set[str]] = {name: set() for name in workflow.by_name}
    for child, parents in workflow.parents.items():
        for parent in parents:
            children[parent].add(child)
    begun = {task.step for task in tasks.values() if task.state != "pending"}
    for node in workflow.steps:
        own = [task for task in tasks.values() if task.step == node.name]
        states = {task.state for task in own}
        if states == {"skipped"}:
            skipped.add(node.name)
        elif states == {"succeeded"} and _is_whole(node, own, followed=bool(begun & children[node.name])):
            done.add(node.name)
        elif node.for_each is not None:
            kept[node.name] = tuple(
                sorted(split_task(task.task)[1] or 0 for task in own if task.state == "succeeded" and "." in task.task)
            )
    over = done | skipped
    attempts = {
        str(name): task.attempts
        for name, task in tasks.items()
        if task.attempts and task.step not in over and task.state != "succeeded"
    }
    finished = Finished(frozenset(done), frozenset(skipped), attempts)
    return finished, {name: places for name, places in kept.items() if places}


def _is_whole(node: Executor, tasks: list[TaskRecord], *, followed: bool) -> bool:
    """Say whether those are all tasks of a step: of a fan-out whose list only the cluster knows, what came after it
    tells."""
    if node.for_each is None or followed or all(task.origin is not None and not task.attempts for task in tasks):
        return True
    return isinstance(node.for_each, tuple) and len(tasks) == len(node.for_each)


def with_skipped(workflow: Workflow, finished: Finished) -> Finished:
    """Return where a run stands, with the steps that are skipped because all before them were."""
    skipped = set(finished.skipped)
    for name in (name for level in workflow.levels for name in level):
        before = workflow.parents[name]
        if before and skipped.issuperset(before) and name not in finished.done:
            skipped.add(name)
    return Finished(finished.done, frozenset(skipped), finished.attempts)
