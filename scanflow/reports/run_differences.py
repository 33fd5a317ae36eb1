"""What two runs of a workflow differ in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scanflow.backends.run_records import TaskRecord


class ValueDifference(NamedTuple):
    """A name whose values differ; None: there is none."""

    name: str
    first: str | None
    second: str | None


class TaskPair(NamedTuple):
    """The tasks of one name in both runs; None: there is none."""

    name: str
    first: TaskRecord | None
    second: TaskRecord | None


def list_differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[ValueDifference]:
    pairs = (ValueDifference(name, first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second]))
    return [pair for pair in pairs if pair.first != pair.second]


def pair_tasks(first: Iterable[TaskRecord], second: Iterable[TaskRecord]) -> list[TaskPair]:
    """Return the tasks of both runs side by side, those first that ended otherwise."""
    tasks, others = ({str(task.task): task for task in own} for own in (first, second))
    pairs = [TaskPair(name, tasks.get(name), others.get(name)) for name in dict.fromkeys([*tasks, *others])]
    return sorted(pairs, key=lambda pair: getattr(pair.first, "state", None) == getattr(pair.second, "state", None))
