"""What a step's program tells the engine at run time, so that Argo decides without reading outputs.

A condition is tested, and a list counted, where the outputs are: by the program of the step that left them, with the
same code as on a laptop. Argo is told only the outcome, as an output parameter: ``when-<step>`` is ``true`` or
``false``, ``items-<step>`` the places in the list of the tasks that are to run (``[0,1,2]``).

What cannot be told (text compared with a number, no list) is told as *go on*: the later step's own program meets the
same trouble, and says so in its own name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.app.workflow import Workflow
from scanflow.backends.parameters import StepInputs
from scanflow.backends.schedule import StepProgress
from scanflow.backends.tasks import split_task
from scanflow.errors import ScanflowError

WRONG: Final = "[-1]"
"""The one task of a fan-out over what is no list: it says so and fails."""


class Signal(NamedTuple):
    """One output parameter."""

    name: str
    source: str
    """The step that has to have ended."""

    step: str
    """The step that it is for."""

    over: str | None = None
    """For ``items``: the step whose own list is the one to count."""


def signals_of(workflow: Workflow) -> list[Signal]:
    """Return all that is told between the steps of a workflow, in their order."""
    found = []
    for node in workflow.steps:
        if node.when is not None and node.when.left.step is not None:
            found.append(Signal(f"when-{node.name}", node.when.left.step, node.name))
        if isinstance(node.for_each, Ref):
            root = root_of(workflow, node)
            if isinstance(root.for_each, Ref):
                found.append(Signal(f"items-{node.name}", root.for_each.step or "", node.name, root.name))
    return found


def root_of(workflow: Workflow, node: Executor) -> Executor:
    """Return the fan-out whose list decides how many tasks this one has: of a fan-out over a fan-out, the first."""
    while isinstance(node.for_each, Ref):
        before = workflow.by_name[node.for_each.step or ""]
        if not isinstance(before, Executor) or before.for_each is None:
            break
        node = before
    return node


def static_items(root: Executor, node: Executor, kept: Iterable[int], only: str | None) -> str:
    """Return the places of the tasks to run, of a fan-out over a list that the definition holds."""
    width = len(root.for_each) if isinstance(root.for_each, tuple) else 0
    return _places(list(range(width)), node, kept, only)


def tell(
    signal: Signal, workflow: Workflow, inputs: StepInputs, *, kept: Mapping[str, tuple[int, ...]], only: str | None
) -> str:
    """Return the value of a signal, once its source has ended."""
    node = workflow.by_name[signal.step]
    assert isinstance(node, Executor)
    try:
        if signal.over is None:
            return "true" if inputs.condition_holds(node) else "false"
        root = workflow.by_name[signal.over]
        assert isinstance(root, Executor)
        places = [split_task(task)[1] or 0 for task, _ in inputs.tasks_of(root)]
        return _places(places, node, kept.get(node.name, ()), None if root is node else only)
    except ScanflowError:
        return "true" if signal.over is None else WRONG


def replay(workflow: Workflow, inputs: StepInputs, upto: Iterable[str]) -> None:
    """Let ``inputs`` know which steps before those were skipped and how wide the others were, as their outputs tell."""
    wanted, progress = _before(workflow, upto), StepProgress(workflow.parents)
    while (step := progress.next_ready()) is not None:
        node = workflow.by_name[step]
        if step not in wanted or not isinstance(node, Executor):
            progress.end(step, "ran")
        elif progress.must_skip(step) or not inputs.condition_holds(node):
            inputs.skip(step)
            progress.end(step, "skipped")
        else:
            if node.for_each is not None:
                inputs.tasks_of(node)
            progress.end(step, "ran")


def _before(workflow: Workflow, steps: Iterable[str]) -> set[str]:
    found: set[str] = set()
    left = [parent for step in steps for parent in workflow.parents[step]]
    while left:
        if (step := left.pop()) not in found:
            found.add(step)
            left += workflow.parents[step]
    return found


def _places(places: list[int], node: Executor, kept: Iterable[int], only: str | None) -> str:
    step, index = split_task(only or "")
    if step == node.name and index is not None:
        return json.dumps([index]) if index in places else WRONG
    done = set(kept)
    return json.dumps([place for place in places if place not in done], separators=(",", ":"))
