"""Build Argo's conditions of steps: expressions over the signals of earlier steps. Pure.

A step waits until all its dependencies have succeeded or were skipped. It is skipped where its condition is false, and
where all its dependencies were skipped; else it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.batch.workflow_signals import WRONG

Sources = Mapping[str, str]
"""From a step to the task of Argo's graph that reports its signals."""


def list_skippable(workflow: Workflow) -> set[str]:
    """Return the steps that may be skipped: by a condition, or with all their dependencies."""
    steps: set[str] = set()
    for name in (name for level in workflow.levels for name in level):
        node, parents = workflow.by_name[name], workflow.parents[name]
        if (isinstance(node, Executor) and node.when is not None) or (parents and steps.issuperset(parents)):
            steps.add(name)
    return steps


def build_when(
    node: Executor,
    waits_for: Collection[str],
    sources: Sources,
    may_skip: Collection[str],
    *,
    ran: Collection[str] = (),
) -> str | None:
    """Return the expression under which Argo runs a step; None: always.

    Args:
        node: The step.
        waits_for: Its dependencies that have not ended yet.
        sources: The task that reports each step's signals.
        may_skip: The steps that may be skipped.
        ran: Its dependencies that have run already.
    """
    clauses = []
    if waits_for and not ran and all(step in may_skip for step in waits_for):
        clauses.append(" || ".join(f"'{{{{tasks.{step}.status}}}}' == 'Succeeded'" for step in waits_for))
    if node.when is not None and node.when.left.step is not None:
        step = node.when.left.step
        skipped = ("true" if node.when.holds_if_skipped() else "false") if step in may_skip else None
        clauses.append(f"'{format_output_reference(sources[step], f'when-{node.name}', skipped)}' == 'true'")
    return " && ".join(f"({clause})" for clause in clauses) if len(clauses) > 1 else next(iter(clauses), None)


def format_items_reference(node: Executor, task: str, may_skip: Collection[str]) -> str:
    """Return the reference to the parameter of ``task`` that lists the tasks of a fan-out."""
    return format_output_reference(task, f"items-{node.name}", WRONG if task in may_skip else None)


def format_output_reference(task: str, name: str, default: str | None) -> str:
    """Return the reference to an output parameter, with ``default`` for a skipped task; None: it is never skipped."""
    if default is None:
        return f"{{{{tasks.{task}.outputs.parameters.{name}}}}}"
    reference = f"tasks['{task}']"
    return f"{{{{={reference}.status == 'Succeeded' ? {reference}.outputs.parameters['{name}'] : '{default}'}}}}"
