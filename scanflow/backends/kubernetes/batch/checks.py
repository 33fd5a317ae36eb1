"""What is looked at before a run is entered: that a cluster can honour it, and that its files are here."""

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


def check_definition(definition: RunDefinition, by_value: Callable[[Target], bool]) -> None:
    """Raise what would fail later.

    Args:
        definition: The run's; of a spin, cut down already.
        by_value: Says whether a function is one that no file holds; raises where it was lost.
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
        elif not by_value(node.target):
            files.function_file(node.target, node.name)


def capacity(cluster: Cluster) -> tuple[float, int]:
    """Return the cores and the memory that the cluster's nodes give to pods; without the right to look, no end of
    both."""
    try:
        nodes, _ = cluster.find("Node")
    except AccessDeniedError:
        return float(sys.maxsize), sys.maxsize
    given = [read_allocatable(node) for node in nodes]
    return max(sum(cores for cores, _ in given), 0.001), sum(memory for _, memory in given)
