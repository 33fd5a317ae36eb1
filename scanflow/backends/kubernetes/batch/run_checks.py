"""Check before a run is entered that a cluster supports it, and that its files exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeAlias

from scanflow.app.executor import Executor, Target
from scanflow.app.plan import IMAGE_NOTE, Plan, PlannedStep, plan_workflow
from scanflow.app.resources import Resources
from scanflow.app.steps import check_parameters
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.backends.kubernetes.batch.pod_settings import check_honoured
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpu_claims import check_argo, check_device_class, explain_cluster_lack
from scanflow.backends.kubernetes.gpus import DevicePlugin, build_gpu_request, check_gpus, list_tolerated
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.nodes import explain_misfit, list_nodes, sum_allocatable
from scanflow.backends.kubernetes.pod_spec import check_pod_secrets
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import UnsupportedError

CheckGpus: TypeAlias = Callable[[Resources, str], None]
"""Checks the GPUs that somebody asks for, who is named."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRun(RunDefinition):
    """The definition of a run that was checked, as what enters and drives it in the same process takes it."""


def check_definition(
    definition: RunDefinition, is_by_value: Callable[[Target], bool], check_resources: CheckGpus
) -> CheckedRun:
    """Raise for definitions that would fail later; one that was checked is returned as it is.

    Args:
        definition: The run's; of a spin, only its step.
        is_by_value: Whether a function is pickled rather than in a file; raises where the pickle is lost.
        check_resources: See :func:`check_step_gpus`.
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
        check_resources(node.resources, f"Executor {node.name!r}")
        if node.image is not None:
            continue  # its files are in the image
        if node.target is None:
            files.find(node.mainfile or "", node.name)
        elif (call := node.target.declared) is not None:
            check_parameters(call, node.parameters, who=f"Step {node.name!r}")
        elif not is_by_value(node.target):
            files.find_function_file(node.target, node.name)
    return CheckedRun(**{field.name: getattr(definition, field.name) for field in fields(definition)})


def check_step_gpus(cluster: Cluster, plugin: DevicePlugin, resources: Resources, who: str) -> None:
    """Check that a step can have the GPUs that it asks for.

    Raises:
        UnsupportedError: it cannot.
    """
    check_gpus(plugin, partial(list_nodes, cluster), resources, who)
    check_argo(cluster, resources, plugin, who)
    check_device_class(cluster, plugin, resources, who)


def plan_steps(cluster: Cluster, workflow: Workflow, device_plugin: DevicePlugin) -> Plan:
    """Return the plan of a workflow, with a note at each step that fits on no node."""
    nodes = list_nodes(cluster)
    cores, memory = sum_allocatable(nodes)
    plan = plan_workflow(workflow, machine_cores=cores, machine_memory_bytes=memory)
    executors = {node.name: node for node in workflow.steps}
    notes = {step.name: _list_notes(cluster, step, executors[step.name], nodes, device_plugin) for step in plan.steps}
    steps = tuple(step.model_copy(update={"notes": notes[step.name]}) for step in plan.steps)
    return plan.model_copy(update={"steps": steps})


def _list_notes(
    cluster: Cluster, step: PlannedStep, node: Executor, nodes: list[Manifest] | None, device_plugin: DevicePlugin
) -> tuple[str, ...]:
    request = build_gpu_request(node.resources, device_plugin)
    lack = explain_cluster_lack(cluster, request, nodes) if request else ""
    notes = tuple(f"image {node.image}" if note == IMAGE_NOTE else note for note in step.notes)
    tolerated = list_tolerated(request)
    misfit = explain_misfit(nodes, node.resources.cores or 0.0, node.resources.memory_bytes, tolerated)
    return (*notes, *filter(None, (misfit, f"fits on no node: {lack}" if lack else "")))
