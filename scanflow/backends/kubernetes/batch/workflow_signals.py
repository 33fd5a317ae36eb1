"""Signals: output parameters of steps by which Argo decides without reading outputs.

Conditions are evaluated, and lists counted, where the outputs are: by the program of the step that wrote them, with the
same code as on a laptop. Argo gets only the outcome, as an output parameter: ``when-<step>`` is ``true`` or ``false``,
``items-<step>`` the indices of the tasks to run (``[0,1,2]``).

An invalid condition or list (text compared with a number) is reported as *run*: the later step's own program raises the
same error, as its failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.app.workflow import Workflow
from scanflow.backends.step_schedule import StepProgress
from scanflow.backends.task_parameters import StepInputs
from scanflow.backends.tasks import split_task
from scanflow.errors import ScanflowError
from scanflow.graphs import list_ancestors

WRONG: Final = "[-1]"
"""The single task of a fan-out over a value that is not a list, which fails with that error."""


class Signal(NamedTuple):
    """One output parameter."""

    name: str
    source: str
    """The step that reports it."""

    step: str
    """The step that waits for it."""

    list_step: str | None = None
    """For ``items``: the step whose list is counted."""


def list_signals(workflow: Workflow) -> list[Signal]:
    """Return the signals between the steps of a workflow, in their order."""
    signals = []
    for node in workflow.steps:
        if node.when is not None and node.when.left.step is not None:
            signals.append(Signal(f"when-{node.name}", node.when.left.step, node.name))
        if isinstance(node.for_each, Ref):
            root = get_root(workflow, node)
            if isinstance(root.for_each, Ref):
                signals.append(Signal(f"items-{node.name}", root.for_each.step or "", node.name, root.name))
    return signals


def get_root(workflow: Workflow, node: Executor) -> Executor:
    """Return the fan-out whose list sets the number of tasks: of a fan-out over a fan-out, the first."""
    while isinstance(node.for_each, Ref):
        source = workflow.by_name[node.for_each.step or ""]
        if not isinstance(source, Executor) or source.for_each is None:
            break
        node = source
    return node


def format_static_items(root: Executor, node: Executor, kept_tasks: Iterable[int], only: str | None) -> str:
    """Return the indices of the tasks to run, for a fan-out over a list in the definition."""
    width = len(root.for_each) if isinstance(root.for_each, tuple) else 0
    return _format_places(list(range(width)), node, kept_tasks, only)


def evaluate_signal(
    signal: Signal,
    workflow: Workflow,
    inputs: StepInputs,
    *,
    kept_tasks: Mapping[str, tuple[int, ...]],
    only: str | None,
) -> str:
    """Return the value of a signal whose source has ended."""
    node = workflow.by_name[signal.step]
    assert isinstance(node, Executor)
    try:
        if signal.list_step is None:
            return "true" if inputs.is_condition_met(node) else "false"
        root = workflow.by_name[signal.list_step]
        assert isinstance(root, Executor)
        places = [split_task(task)[1] or 0 for task, _ in inputs.expand_tasks(root)]
        return _format_places(places, node, kept_tasks.get(node.name, ()), None if root is node else only)
    except ScanflowError:
        return "true" if signal.list_step is None else WRONG


def replay(workflow: Workflow, inputs: StepInputs, upto: str, *, including: bool = False) -> None:
    """Replay the steps before a step into ``inputs``: which were skipped, and how wide their fan-outs were.

    ``including``: the step itself too, which has ended. All others may not have.
    """
    ancestors, progress = list_ancestors(workflow.parents, upto), StepProgress(workflow.parents)
    ancestors |= {upto} if including else set()
    while (step := progress.take_next_ready()) is not None:
        node = workflow.by_name[step]
        if step not in ancestors or not isinstance(node, Executor):
            progress.end(step, "ran")
        elif progress.should_skip(step) or not inputs.is_condition_met(node):
            inputs.skip(step)
            progress.end(step, "skipped")
        else:
            if node.for_each is not None:
                inputs.expand_tasks(node)
            progress.end(step, "ran")


def _format_places(places: list[int], node: Executor, kept_tasks: Iterable[int], only: str | None) -> str:
    step, index = split_task(only or "")
    if step == node.name and index is not None:
        return json.dumps([index]) if index in places else WRONG
    done = set(kept_tasks)
    return json.dumps([place for place in places if place not in done], separators=(",", ":"))
