"""Checks of workflows for fields that this backend does not support."""

from __future__ import annotations

import os
import platform

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.errors import UnsupportedError


def check_supported(workflow: Workflow) -> None:
    """Reject fields that this backend does not support.

    Raises:
        UnsupportedError: names the field.
    """
    if workflow.type != "batch":
        raise UnsupportedError(
            f"Workflow {workflow.name!r} is of type {workflow.type!r}; the embedded backend runs 'batch' and 'mpi'."
        )
    for node in workflow.steps:
        if problem := _find_problem(node):
            raise UnsupportedError(f"Executor {node.name!r}: the embedded backend does not support {problem}")


def list_ignored_fields(workflow: Workflow) -> tuple[str, ...]:
    """Return short descriptions of a workflow's fields that this backend ignores."""
    return tuple(
        f"{node.name}: image={node.image!r} is not used: steps run with this Python, not in containers"
        for node in workflow.steps
        if node.image is not None
    )


def _find_problem(node: Executor) -> str | None:
    affinity = node.affinity
    if affinity is None or isinstance(affinity, str):
        return None
    if affinity.mode != "any":
        return f"affinity: steps get no exclusive cores, which {affinity.mode!r} requests. Remove it."
    if affinity.node_selector or affinity.apart_from:
        return "affinity: there is one machine. Remove node_selector and apart_from."
    if affinity.avoid_services and not hasattr(os, "sched_setaffinity"):
        return f"affinity: {platform.system()} cannot bind processes to CPUs. Remove avoid_services."
    return None
