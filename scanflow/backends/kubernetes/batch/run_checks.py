"""Check before a run is entered that a cluster supports it, and that its files exist."""

from __future__ import annotations

from collections.abc import Callable

from scanflow.app.executor import Target
from scanflow.app.steps import check_parameters
from scanflow.app_files import AppFiles
from scanflow.backends.kubernetes.batch.pod_settings import check_honoured
from scanflow.backends.kubernetes.pod_spec import check_pod_secrets
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import UnsupportedError


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
        check_pod_secrets(node.secrets, who=f"Executor {node.name!r}")
        if (part := node.resources.part_of_gpu) is not None:
            raise UnsupportedError(
                f"Executor {node.name!r}: the backend 'kubernetes' does not support resources.{part}: its device "
                "plugin grants whole GPUs. Write gpu=1, without gpu_memory."
            )
        if node.image is not None:
            continue  # its files are in the image
        if node.target is None:
            files.find(node.mainfile or "", node.name)
        elif (call := node.target.call) is not None:
            check_parameters(call, node.parameters, who=f"Step {node.name!r}")
        elif not is_by_value(node.target):
            files.find_function_file(node.target, node.name)
