"""Which tasks a resumed run keeps after its workflow was changed."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.run_records import TaskRecord
from scanflow.backends.tasks import add_pending_tasks, reset_changed_tasks, select_current_tasks
from scanflow.names import StepName


@sf.step
def a(x: Any) -> Any:
    return x


@sf.step
def b(x: Any) -> Any:
    return x


def build_workflow(first: sf.Executor) -> sf.Workflow:
    return sf.Workflow(name="w", nodes=[first, b.bind(first), b.options(name="c").bind(1)])


def make_tasks(*names: str, state: Any = "succeeded") -> list[TaskRecord]:
    return [TaskRecord(task=StepName(name), step=name.partition(".")[0], state=state, attempts=1) for name in names]


@pytest.mark.parametrize(
    ("before", "now", "again"),
    [
        (a.bind(1), a.bind(2), []),
        (a.map([1, 2]), a.map([1, 2]), []),
        (a.map([1, 2]), a.map([1, 3]), ["a.1", "b"]),
        (a.map([1, 2]), a.map([1, True]), ["a.1", "b"]),
        (a.map([1, 2]), a.map([1, 2, 3]), ["b"]),
        (a.map([1, 2]), a.map([1]), ["b"]),
        (a.map([1, 2]), a.bind(1), ["b"]),
        (a.map([1, 2]), a.options(name="z").map([1, 2]), []),
    ],
)
def test_a_task_of_another_item_runs_again_with_all_after_it(
    before: sf.Executor, now: sf.Executor, again: list[str]
) -> None:
    tasks = make_tasks("a.0", "a.1", "b", "c")
    reset = reset_changed_tasks(build_workflow(before), build_workflow(now), tasks)
    assert list(reset) == again
    assert {(task.state, task.attempts) for task in reset.values()} <= {("pending", 1)}


def test_a_step_that_is_skipped_by_another_condition_runs_again() -> None:
    first = a.bind(1)

    def build(when: Any) -> sf.Workflow:
        return sf.Workflow(
            name="w", nodes=[first, b.options(when=when).bind(2), b.options(name="c", when=None).bind(3)]
        )

    tasks = [*make_tasks("a", "c"), *make_tasks("b", state="skipped")]
    assert list(reset_changed_tasks(build(first.output > 1), build(first.output > 0), tasks)) == ["b"]


def test_a_run_shows_the_steps_and_items_that_it_has_now() -> None:
    tasks = [*make_tasks("a.0", "a.1", "a.2", "a", "old"), *make_tasks("c", state="pending")]
    assert [task.task for task in select_current_tasks(build_workflow(a.map([1, 2])), tasks)] == ["a.0", "a.1", "c"]
    assert [task.task for task in select_current_tasks(build_workflow(a.bind(1)), tasks)] == ["a", "c"]


def test_a_fan_out_is_shown_by_its_items_or_else_as_a_whole() -> None:
    whole = make_tasks("a", state="empty")
    tasks = [*whole, *make_tasks("a.0", "a.1")]
    assert [task.task for task in select_current_tasks(build_workflow(a.map([1])), tasks)] == ["a.0"]
    assert select_current_tasks(build_workflow(a.map([])), tasks) == whole
    failed = make_tasks("a", state="failed")
    assert len(select_current_tasks(build_workflow(a.map([1])), [*failed, *make_tasks("a.0")])) == 2


def test_nothing_waits_in_a_run_that_nobody_drives() -> None:
    workflow, (task,) = build_workflow(a.bind(1)), make_tasks("a", state="pending")
    waiting = task.model_copy(update={"waits_for": "a GPU: GPU 0 is granted to other/train"})
    for is_driven, expected in ((True, waiting), (False, task)):
        assert add_pending_tasks(workflow, [waiting], is_driven=is_driven)[0] == expected
