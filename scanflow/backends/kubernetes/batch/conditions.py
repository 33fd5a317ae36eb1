"""When Argo starts a step: expressions over what earlier steps told. Pure.

A step waits for all that it depends on, however that ended well: run or skipped. It is skipped where its condition was
told to be false, and where all that it waited for was skipped; else it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.batch.signals import WRONG
from scanflow.errors import InvalidError

Sources = Mapping[str, str]
"""From a step to the task of Argo's graph that tells its signals."""


def skippable(workflow: Workflow) -> set[str]:
    """Return the steps that may be skipped: by a condition, or with all that they wait for."""
    found: set[str] = set()
    for name in (name for level in workflow.levels for name in level):
        node, before = workflow.by_name[name], workflow.parents[name]
        if (isinstance(node, Executor) and node.when is not None) or (before and found.issuperset(before)):
            found.add(name)
    return found


def when_of(
    node: Executor, before: Collection[str], sources: Sources, may_skip: Collection[str], *, ran: Collection[str] = ()
) -> str | None:
    """Return the expression under which Argo runs a step; None: always.

    Args:
        node: The step.
        before: What it waits for, and is still to end.
        sources: Who tells what of which step.
        may_skip: The steps that may be skipped.
        ran: What it waited for, and has run already.
    """
    clauses = []
    if before and not ran and all(step in may_skip for step in before):
        clauses.append(" || ".join(f"'{{{{tasks.{step}.status}}}}' == 'Succeeded'" for step in before))
    if node.when is not None and node.when.left.step is not None:
        step = node.when.left.step
        without = "true" if _holds_without(node) else "false"
        clauses.append(
            f"'{output_of(sources[step], f'when-{node.name}', without if step in may_skip else None)}' == 'true'"
        )
    return " && ".join(f"({clause})" for clause in clauses) if len(clauses) > 1 else next(iter(clauses), None)


def items_of(node: Executor, task: str, may_skip: Collection[str]) -> str:
    """Return the parameter that says which tasks of a fan-out run, as ``task`` of the graph tells it."""
    return output_of(task, f"items-{node.name}", WRONG if task in may_skip else None)


def output_of(task: str, name: str, without: str | None) -> str:
    """Return an output parameter of a task, or ``without`` where that task was skipped; None: it is never skipped."""
    if without is None:
        return f"{{{{tasks.{task}.outputs.parameters.{name}}}}}"
    found = f"tasks['{task}']"
    return f"{{{{={found}.status == 'Succeeded' ? {found}.outputs.parameters['{name}'] : '{without}'}}}}"


def _holds_without(node: Executor) -> bool:
    """Say what a condition on a skipped step is: its outputs are None. One that cannot be tested, the step tells of."""
    assert node.when is not None
    try:
        return node.when.holds(None)
    except InvalidError:
        return True
