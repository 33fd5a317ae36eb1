"""Shapes of whole graphs: the nodes of a graph share one instance, as the containers of a pod do. Pure."""

from __future__ import annotations

from scanflow.app.resources import Affinity, AffinityMode, Resources
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Sizing
from scanflow.backends.service_records import Shape
from scanflow.errors import InvalidError
from scanflow.placement.device_grants import DeviceDemand, build_demand

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
    gpu, gpu_memory = _add_gpus(workflow)
    modes = {_get_mode(node) for node in nodes}
    return Shape(
        instances=instances,
        cores=sum(cores) if cores else None,
        memory_bytes=sum(memory) if memory else None,
        gpu=gpu,
        gpu_memory_bytes=gpu_memory,
        affinity=next(mode for mode in reversed(_STRICTNESS) if mode in modes),
    )


def _add_gpus(workflow: Workflow) -> tuple[int | float | str, int | None]:
    """Return the GPUs of one instance, and how much of a GPU's memory it needs: all nodes share one process.

    Raises:
        InvalidError: what its nodes ask for makes no sense together.
    """
    asking = [node.resources for node in workflow.services if node.resources.gpu]
    amounts = [resources.gpu for resources in asking]
    if not amounts:
        return 0, None
    memory = [resources.gpu_memory_bytes for resources in asking if resources.gpu_memory_bytes is not None]
    numbers = [amount for amount in amounts if not isinstance(amount, str)]
    total = amounts[0] if len(amounts) == 1 else round(sum(numbers), 6)
    if len(amounts) > 1 and (len(numbers) < len(amounts) or (total > 1 and total % 1)):  # type: ignore[operator]
        raise InvalidError(
            f"Workflow {workflow.name!r}: its nodes share one process, and ask for gpu="
            f"{' and '.join(map(repr, amounts))}, which is neither one share, whole GPUs nor one MIG profile. Let one "
            "node ask for what all need."
        )
    gpu = total if isinstance(total, str) or total % 1 else int(total)
    return gpu, (sum(memory) if isinstance(gpu, float) else max(memory)) if memory else None


def build_gpu_resources(shape: Shape) -> Resources:
    """Return what each instance asks for of GPUs."""
    return Resources(gpu=shape.gpu, gpu_memory=shape.gpu_memory_bytes if shape.gpu else None)


def build_shape_demand(shape: Shape) -> DeviceDemand | None:
    """Return the devices that each instance asks for; None: none."""
    return build_demand(build_gpu_resources(shape))


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
