"""Check before a run is entered that a cluster supports it, and that its files exist."""

from __future__ import annotations

import sys
from collections.abc import Callable

from scanflow.app.executor import Target
from scanflow.app.steps import check_parameters
from scanflow.app_files import AppFiles
from scanflow.backends.kubernetes.batch.place import check_honoured
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.nodes import read_allocatable
from scanflow.backends.port import RunDefinition
from scanflow.errors import AccessDeniedError, UnsupportedError


def check_definition(definition: RunDefinition, is_by_value: Callable[[Target], bool]) -> None:
    """Raise for definitions that would fail later.

    Args:
        definition: The run's; of a spin, only its step.
        is_by_value: Whether a function is pickled rather than in a file; raises where the pickle is lost.
    """
    workflow = definition.workflow
    if workflow.type != "batch":
        raise UnsupportedError(
            f"Workflow {workflow.name!r} is of type {workflow.type!r}; a batch run takes 'batch' only."
        )
    files = AppFiles(definition.app, workflow)
    for node in workflow.steps:
        check_honoured(node)
        if node.image is not None:
            continue  # its files are in the image
        if node.target is None:
            files.find(node.mainfile or "", node.name)
        elif (call := node.target.call) is not None:
            check_parameters(call, node.parameters, who=f"Step {node.name!r}")
        elif not is_by_value(node.target):
            files.function_file(node.target, node.name)


def sum_allocatable(cluster: Cluster) -> tuple[float, int]:
    """Return the allocatable cores and bytes of memory of all nodes; unbounded without the right to list nodes."""
    try:
        nodes, _ = cluster.find("Node")
    except AccessDeniedError:
        return float(sys.maxsize), sys.maxsize
    allocatable = [read_allocatable(node) for node in nodes]
    return max(sum(cores for cores, _ in allocatable), 0.001), sum(memory for _, memory in allocatable)
