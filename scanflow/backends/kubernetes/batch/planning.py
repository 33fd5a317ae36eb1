"""Plan the steps of a workflow for a cluster of these nodes."""

from __future__ import annotations

from scanflow.app.executor import Executor
from scanflow.app.plan import IMAGE_NOTE, Plan, PlannedStep, plan_workflow
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.nodes import explain_misfit, list_nodes, sum_allocatable


def plan_steps(cluster: Cluster, workflow: Workflow) -> Plan:
    """Return the plan of a workflow, with a note at each step that fits on no node."""
    cores, memory = sum_allocatable(cluster)
    plan = plan_workflow(workflow, machine_cores=cores, machine_memory_bytes=memory)
    nodes, executors = list_nodes(cluster), {node.name: node for node in workflow.steps}
    steps = tuple(
        step.model_copy(update={"notes": _list_notes(step, executors[step.name], nodes)}) for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def _list_notes(step: PlannedStep, node: Executor, nodes: list[Manifest]) -> tuple[str, ...]:
    notes = tuple(f"image {node.image}" if note == IMAGE_NOTE else note for note in step.notes)
    misfit = explain_misfit(nodes, node.resources.cores or 0.0, node.resources.memory_bytes)
    return (*notes, misfit) if misfit else notes
