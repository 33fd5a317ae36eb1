"""What pods tell Argo, and when Argo starts what: pure parts of batch workflows on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.batch.argo_workflow import build_when, list_skippable
from scanflow.backends.kubernetes.batch.finished_steps import FinishedSteps, add_skipped, list_finished_steps
from scanflow.backends.kubernetes.batch.retries import has_own_backoff
from scanflow.backends.kubernetes.batch.workflow_signals import WRONG, evaluate_signal, list_signals, replay
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord, TaskState
from scanflow.backends.task_parameters import StepInputs
from scanflow.names import StepName
from tests.golden.batch_shapes import step


def compute_signals(
    nodes: list[sf.Executor], outputs: Mapping[str, Mapping[str, Any]], only: str | None = None
) -> dict[str, str]:
    """Return the signals of a workflow whose steps left those outputs."""
    workflow = sf.Workflow(name="wf", nodes=nodes)
    definition = RunDefinition(sf.Application(name="shop", workflows=[workflow]), workflow, step=only)
    outcomes = {}
    for signal in list_signals(workflow):
        inputs = StepInputs(definition, read=outputs.__getitem__, outputs=Path("/outputs"), max_fan_out=4)
        replay(workflow, inputs, signal.source, including=True)
        outcomes[signal.name] = evaluate_signal(signal, workflow, inputs, kept_tasks={"again": (1,)}, only=only)
    return outcomes


@pytest.mark.parametrize(
    ("condition", "output", "outcome"),
    [
        (lambda it: it > 0.5, 0.75, "true"),
        (lambda it: it > 0.5, 0.25, "false"),
        (lambda it: it.equals(1), "1", "false"),
        (lambda it: it.equals("1"), "1", "true"),
        (lambda it: it.equals(True), True, "true"),
        (lambda it: it.equals(None), None, "true"),
        (lambda it: it.equals({"a": [1, 2]}), {"a": [1, 2]}, "true"),
        (lambda it: it.is_in(["a", "b"]), "b", "true"),
        (lambda it: it > 1, "text", "true"),  # cannot be tested: the step itself says so
    ],
)
def test_a_condition_is_tested_on_values_as_they_are(condition: Any, output: object, outcome: str) -> None:
    check = step("check")
    nodes = [check, step("next", when=condition(check["it"]))]
    assert compute_signals(nodes, {"check": {"it": output}}) == {"when-next": outcome}


def test_a_fan_out_says_which_of_its_tasks_run() -> None:
    load = step("load")
    first = step("first", for_each=load["files"], parameters={"file": sf.item})
    again = step("again", for_each=first["path"], parameters={"file": sf.item})
    nodes = [load, first, again]
    assert compute_signals(nodes, {"load": {"files": ["a", "b", "c"]}}) == {
        "items-first": "[0,1,2]",
        "items-again": "[0,2]",
    }
    assert compute_signals(nodes, {"load": {"files": []}})["items-first"] == "[]"
    assert compute_signals([load, first], {"load": {"files": ["a", "b"]}}, only="first.1") == {"items-first": "[1]"}
    for wrong in ("text", 7, ["a"] * 5):  # no list, or a wider one than is allowed: the step itself says so
        assert compute_signals([load, first], {"load": {"files": wrong}}) == {"items-first": WRONG}


def test_what_was_skipped_is_made_out_from_what_was_left() -> None:
    check, other = step("check"), step("other")
    never = step("never", when=check["ok"].equals(1))
    after = step("after", parameters={"x": never["y"]})
    both = step("both", when=after["z"].equals(None), parameters={"o": other["o"]})
    outputs = {"check": {"ok": 0}, "other": {"o": 1}}
    assert compute_signals([check, other, never, after, both], outputs) == {"when-never": "false", "when-both": "true"}


def test_only_what_may_be_skipped_is_checked() -> None:
    check, other = step("check"), step("other")
    good = step("good", when=check["ok"].equals(1))
    after, mixed = (
        step("after", parameters={"x": good["y"]}),
        step("mixed", parameters={"x": good["y"], "o": other["o"]}),
    )
    workflow = sf.Workflow(name="wf", nodes=[check, other, good, after, mixed])
    may_skip = list_skippable(workflow)
    assert may_skip == {"good", "after"}
    sources = {node.name: node.name for node in workflow.nodes}
    whens = {node.name: build_when(node, workflow.parents[node.name], sources, may_skip) for node in workflow.steps}
    assert whens == {
        "check": None,
        "other": None,
        "good": "'{{tasks.check.outputs.parameters.when-good}}' == 'true'",
        "after": "'{{tasks.good.status}}' == 'Succeeded'",
        "mixed": None,
    }


def record(task: str, state: TaskState, attempts: int = 1) -> TaskRecord:
    return TaskRecord(task=StepName(task), step=task.partition(".")[0], state=state, attempts=attempts)


def test_a_run_goes_on_with_what_had_not_finished() -> None:
    load = step("load")
    wide = step("wide", for_each=load["files"], parameters={"file": sf.item})
    join = step("join", parameters={"all": wide["path"]})
    workflow = sf.Workflow(name="wf", nodes=[load, wide, join])
    tasks = [record("load", "succeeded"), record("wide.0", "succeeded"), record("wide.1", "failed", 2)]
    steps, saved_steps = list_finished_steps(workflow, {task.task: task for task in tasks})
    assert (steps, saved_steps) == (FinishedSteps(frozenset({"load"}), frozenset(), {"wide.1": 2}), {"wide": (0,)})
    whole = [record("load", "succeeded"), record("wide.0", "succeeded"), record("join", "failed")]
    assert list_finished_steps(workflow, {task.task: task for task in whole})[0].done == {"load", "wide"}
    empty = [TaskRecord(task=StepName("wide"), step="wide", state="empty")]
    assert list_finished_steps(workflow, {task.task: task for task in empty})[0].done == {"wide"}


def test_what_depends_only_on_skipped_steps_is_skipped_too() -> None:
    a, b = step("a"), step("b")
    workflow = sf.Workflow(name="wf", nodes=[a, b, step("c", parameters={"a": a["x"], "b": b["x"]}), step("d")])
    steps = add_skipped(workflow, FinishedSteps(skipped=frozenset({"a", "b"})))
    assert steps.skipped == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("retry", "itself"),
    [
        (sf.Retry(limit=0), False),
        (sf.Retry(limit=3, delay="10s"), False),
        (sf.Retry(limit=3, delay="10s", factor=1.5), True),
        (sf.Retry(limit=9, delay="10s"), True),
        (sf.Retry(limit=9, delay="10s", factor=1), False),
        (sf.Retry(limit=3, delay=None), False),
    ],
)
def test_waits_that_argo_cannot_keep_are_kept_by_the_step(retry: sf.Retry, itself: bool) -> None:
    assert has_own_backoff(step("a", retries=retry)) is itself
