"""Plans a workflow: its steps and the resources they would use, without running it."""

from __future__ import annotations

import math
import re
import sys
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow

IMAGE_NOTE = "image not used here"
UNBOUNDED: Final = sys.maxsize
"""The cores, or bytes of memory, of a machine or cluster that does not tell them."""

_PICKLE_REFERENCE = re.compile(r"^(?:[0-9a-f]{64}\.pickle|__main__):")
"""The name that a server gives to a function that a program or notebook sent; or that it has before it is sent."""


class _Planned(BaseModel):
    model_config = ConfigDict(frozen=True)


class PlannedStep(_Planned):
    name: str
    wave: int
    """Steps of one wave depend only on earlier waves."""

    runs: str
    after: tuple[str, ...]
    cores: float
    """Cores counted for planning: one if the step requests none."""

    memory_bytes: int | None
    width: int | None = 1
    """Tasks it fans out to; None: known only at run time."""

    notes: tuple[str, ...] = ()


class PlannedInstance(_Planned):
    name: str
    cores: float
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    """NUMA nodes to take memory from."""

    threads: int


class PlannedObject(_Planned):
    """The planned change of one object of the backend."""

    kind: str
    name: str
    change: Literal["create", "change", "none", "conflict", "refused"]
    fields: tuple[str, ...] = ()
    """The changes of an existing object: ``~ .spec.replicas: 1 -> 2``."""

    why: str = ""
    """The reason for a conflict or a refusal."""


class Plan(_Planned):
    """A workflow's steps in the order of their start, and their peak use of the given cores.

    Of an online workflow: its nodes in the order data flows, and its instances, each of which holds all of them.
    """

    workflow: str
    steps: tuple[PlannedStep, ...]
    waves: int
    machine_cores: float
    """:data:`UNBOUNDED` where the machine's, or the cluster's, are not known."""

    machine_memory_bytes: int
    """:data:`UNBOUNDED` where the machine's, or the cluster's, is not known."""

    peak_cores: float
    """At most the cores of the machine: steps that do not fit wait."""

    peak_memory_bytes: int
    """At most the memory of the machine, except for a single step that requests more."""

    unsized: int
    """Steps without a memory request, which the peak does not include."""

    peak_gpus: float = 0.0
    """Whole GPUs and shares, but no parts of one that is cut; at most those of the machine, as steps wait."""

    machine_gpus: float = UNBOUNDED
    """:data:`UNBOUNDED` where the machine's, or the cluster's, are not known, or no step asks for one."""

    instances: tuple[PlannedInstance, ...] = ()
    objects: tuple[PlannedObject, ...] = ()
    """The objects that would be created or changed in a cluster; none on other backends."""

    notes: tuple[str, ...] = ()
    """What else holds of it: whether its GPUs are free, and have the memory for a second version."""


def plan_workflow(workflow: Workflow, *, machine_cores: float, machine_memory_bytes: int) -> Plan:
    planned: list[PlannedStep] = []
    peak_cores, peak_memory, peak_gpus = 0.0, 0, 0.0
    for wave, names in enumerate(workflow.levels):
        steps = [_plan_step(workflow, name, wave) for name in names]
        planned += steps
        requested = sum(step.cores * (math.inf if step.width is None else step.width) for step in steps)
        peak_cores = max(peak_cores, min(requested, machine_cores))
        largest = max(machine_memory_bytes, *(step.memory_bytes or 0 for step in steps))  # one alone is let through
        peak_memory = max(peak_memory, min(largest, sum(_sum_memory(step, machine_cores) for step in steps)))
        peak_gpus = max(peak_gpus, min(UNBOUNDED, sum(_sum_gpus(workflow, step) for step in steps)))
    return Plan(
        workflow=workflow.name,
        steps=tuple(planned),
        waves=len(workflow.levels),
        machine_cores=machine_cores,
        machine_memory_bytes=machine_memory_bytes,
        peak_cores=peak_cores,
        peak_memory_bytes=peak_memory,
        unsized=sum(step.memory_bytes is None for step in planned),
        peak_gpus=peak_gpus,
    )


def plan_graph(
    workflow: Workflow,
    instances: tuple[PlannedInstance, ...],
    *,
    memory_bytes: int | None,
    machine_cores: float,
    machine_memory_bytes: int,
) -> Plan:
    nodes = [_plan_node(workflow, name, wave) for wave, names in enumerate(workflow.levels) for name in names]
    return Plan(
        workflow=workflow.name,
        steps=tuple(nodes),
        waves=len(workflow.levels),
        machine_cores=machine_cores,
        machine_memory_bytes=machine_memory_bytes,
        peak_cores=min(machine_cores, sum(instance.cores for instance in instances)),
        peak_memory_bytes=(memory_bytes or 0) * len(instances),
        unsized=sum(node.memory_bytes is None for node in nodes),
        instances=instances,
    )


def _sum_memory(step: PlannedStep, machine_cores: float) -> int:
    at_once = max(1, math.floor(machine_cores / step.cores))
    return (step.memory_bytes or 0) * min(at_once, at_once if step.width is None else step.width)


def _sum_gpus(workflow: Workflow, step: PlannedStep) -> float:
    node = workflow.by_name[step.name]
    assert isinstance(node, Executor)
    gpu = node.resources.gpu
    return 0.0 if isinstance(gpu, str) or not gpu else gpu * (math.inf if step.width is None else step.width)


def _plan_step(workflow: Workflow, name: str, wave: int) -> PlannedStep:
    node = workflow.by_name[name]
    assert isinstance(node, Executor)
    runs = node.mainfile or _PICKLE_REFERENCE.sub("by value: ", str(node.function))
    return _build_step(workflow, node, wave, runs=runs, notes=_list_notes(node)).model_copy(
        update={"width": _count_tasks(node)}
    )


def _plan_node(workflow: Workflow, name: str, wave: int) -> PlannedStep:
    node = workflow.by_name[name]
    assert isinstance(node, Service)
    batching = [] if node.batching is None else [f"batches of up to {node.batching.max_size}"]
    scaling = node.scaling
    scaled = [] if scaling is None else [f"{scaling.min} to {scaling.max} instances by {scaling.metric}"]
    gpu = [described] if (described := _describe_gpu(node)) else []
    notes = (node.role, *batching, *scaled, *gpu, *([IMAGE_NOTE] if node.image is not None else []))
    return _build_step(workflow, node, wave, runs=node.implementation or str(node.model), notes=notes)


def _build_step(
    workflow: Workflow, node: Executor | Service, wave: int, *, runs: str, notes: tuple[str, ...]
) -> PlannedStep:
    return PlannedStep(
        name=node.name,
        wave=wave,
        runs=runs,
        after=workflow.parents[node.name],
        cores=node.resources.cores or 1.0,
        memory_bytes=node.resources.memory_bytes,
        notes=notes,
    )


def _count_tasks(node: Executor) -> int | None:
    if node.for_each is None:
        return 1
    return None if isinstance(node.for_each, Ref) else len(node.for_each)


def _describe_gpu(node: Executor | Service) -> str:
    gpu, memory = node.resources.gpu, node.resources.gpu_memory
    return f"gpu={gpu!r}{'' if memory is None else f' with {memory}'}" if gpu else ""


def _list_notes(node: Executor) -> tuple[str, ...]:
    over, retries = node.for_each, node.retry.limit
    notes = (
        "" if over is None else f"for each {over!s}" if isinstance(over, Ref) else f"for each of {len(over)}",
        "" if node.when is None else f"when {node.when}",
        "in process" if node.in_process else "",
        _describe_gpu(node),
        "" if node.requirements is None else "own environment",
        f"{retries} {'retry' if retries == 1 else 'retries'}" if retries else "",
        "" if node.timeout_s is None else f"at most {node.timeout_s:g} s",
        "cached" if node.cache else "",
        "" if node.image is None else IMAGE_NOTE,
    )
    return tuple(filter(None, notes))
