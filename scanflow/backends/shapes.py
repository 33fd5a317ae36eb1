"""Shapes of whole graphs: the nodes of a graph share one instance, as the containers of a pod do. Pure."""

from __future__ import annotations

from scanflow.app.resources import Affinity, AffinityMode
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Sizing
from scanflow.backends.service_records import Shape

_STRICTNESS: tuple[AffinityMode, ...] = ("any", "cpu", "cpumem", "cpumempin")


def compute_shape(workflow: Workflow) -> Shape:
    """Return the shape an online workflow requests: the sum of its nodes' cores and memory, their maximum number of
    instances and their strictest affinity.

    A scaling's bounds hold for the instances. Thread variables are derived later, from the cores granted.
    """
    nodes = workflow.services
    instances = max(node.instances for node in nodes)
    for scaling in (node.scaling for node in nodes if node.scaling is not None):
        instances = min(max(instances, scaling.min), scaling.max)
    cores = [node.resources.cores for node in nodes if node.resources.cores is not None]
    memory = [node.resources.memory_bytes for node in nodes if node.resources.memory_bytes is not None]
    modes = {_get_mode(node) for node in nodes}
    return Shape(
        instances=instances,
        cores=sum(cores) if cores else None,
        memory_bytes=sum(memory) if memory else None,
        affinity=next(mode for mode in reversed(_STRICTNESS) if mode in modes),
    )


def apply_sizing(shape: Shape, sizing: Sizing) -> Shape:
    fields = {name: getattr(sizing, name) for name in Sizing.model_fields if getattr(sizing, name) is not None}
    if "threads" in fields:
        fields["pool_threads"] = fields.pop("threads")
    derived: dict[str, object] = {"threads": {}} if fields.keys() - {"instances"} else {}
    return Shape.model_validate({**shape.model_dump(), **derived, **fields})


def read_shape(text: str | None) -> Shape | None:
    """Parse the shape stored with a model version; None: there is none, or the text is not ours."""
    try:
        return None if text is None else Shape.model_validate_json(text)
    except ValueError:
        return None


def _get_mode(node: Service) -> AffinityMode:
    return node.affinity.mode if isinstance(node.affinity, Affinity) else "any"
