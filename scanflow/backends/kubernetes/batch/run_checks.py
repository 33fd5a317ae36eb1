"""Check before a run is entered that a cluster supports it, and that its files exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from scanflow.app.executor import Executor, Target
from scanflow.app.plan import IMAGE_NOTE, Plan, PlannedStep, plan_workflow
from scanflow.app.steps import check_parameters
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.backends.kubernetes.batch.pod_settings import check_honoured
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.nodes import explain_misfit, list_nodes, sum_allocatable
from scanflow.backends.kubernetes.pod_spec import check_pod_secrets
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import UnsupportedError


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRun(RunDefinition):
    """The definition of a run that was checked, as what enters and drives it in the same process takes it."""


def check_definition(definition: RunDefinition, is_by_value: Callable[[Target], bool]) -> CheckedRun:
    """Raise for definitions that would fail later; one that was checked is returned as it is.

    Args:
        definition: The run's; of a spin, only its step.
        is_by_value: Whether a function is pickled rather than in a file; raises where the pickle is lost.
    """
    if isinstance(definition, CheckedRun):
        return definition
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
        elif (call := node.target.declared) is not None:
            check_parameters(call, node.parameters, who=f"Step {node.name!r}")
        elif not is_by_value(node.target):
            files.find_function_file(node.target, node.name)
    return CheckedRun(**{field.name: getattr(definition, field.name) for field in fields(definition)})


def plan_steps(cluster: Cluster, workflow: Workflow) -> Plan:
    """Return the plan of a workflow, with a note at each step that fits on no node."""
    nodes = list_nodes(cluster)
    cores, memory = sum_allocatable(nodes)
    plan = plan_workflow(workflow, machine_cores=cores, machine_memory_bytes=memory)
    executors = {node.name: node for node in workflow.steps}
    steps = tuple(
        step.model_copy(update={"notes": _list_notes(step, executors[step.name], nodes)}) for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def _list_notes(step: PlannedStep, node: Executor, nodes: list[Manifest] | None) -> tuple[str, ...]:
    notes = tuple(f"image {node.image}" if note == IMAGE_NOTE else note for note in step.notes)
    misfit = explain_misfit(nodes, node.resources.cores or 0.0, node.resources.memory_bytes)
    return (*notes, misfit) if misfit else notes
