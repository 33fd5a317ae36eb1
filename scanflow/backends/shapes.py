"""How a whole graph is cut: its nodes live in one instance, as the containers of a pod do. Pure."""

from __future__ import annotations

from scanflow.app.resources import Affinity, AffinityMode
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Sizing
from scanflow.backends.service_records import Shape

_STRICTNESS: tuple[AffinityMode, ...] = ("any", "cpu", "cpumem", "cpumempin")


def shape_of(workflow: Workflow) -> Shape:
    """Return what an online workflow asks for: its nodes' cores and memory together, the most instances that one asks
    for, and the strictest affinity.

    A scaling's bounds hold for the instances. Thread variables are derived later, from the cores granted.
    """
    nodes = workflow.services
    instances = max(node.instances for node in nodes)
    for scaling in (node.scaling for node in nodes if node.scaling is not None):
        instances = min(max(instances, scaling.min), scaling.max)
    cores = [node.resources.cores for node in nodes if node.resources.cores is not None]
    memory = [node.resources.memory_bytes for node in nodes if node.resources.memory_bytes is not None]
    modes = {_mode(node) for node in nodes}
    return Shape(
        instances=instances,
        cores=sum(cores) if cores else None,
        memory_bytes=sum(memory) if memory else None,
        affinity=next(mode for mode in reversed(_STRICTNESS) if mode in modes),
    )


def changed_shape(shape: Shape, sizing: Sizing) -> Shape:
    given = {name: getattr(sizing, name) for name in Sizing.model_fields if getattr(sizing, name) is not None}
    if "threads" in given:
        given["pool_threads"] = given.pop("threads")
    derived: dict[str, object] = {"threads": {}} if given.keys() - {"instances"} else {}
    return Shape.model_validate({**shape.model_dump(), **derived, **given})


def read_shape(text: str | None) -> Shape | None:
    """Return the shape that a model version was served with; None: none was kept, or somebody else wrote the text."""
    try:
        return None if text is None else Shape.model_validate_json(text)
    except ValueError:
        return None


def _mode(node: Service) -> AffinityMode:
    return node.affinity.mode if isinstance(node.affinity, Affinity) else "any"
