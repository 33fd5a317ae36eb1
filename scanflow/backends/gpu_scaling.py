"""Whether a service can be scaled by what its GPUs do: whether anybody tells it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanflow.app.scaling import Scaling
from scanflow.backends.service_records import Shape
from scanflow.backends.shapes import build_gpu_resources
from scanflow.errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    from scanflow.accelerators.accelerator_port import Inventory


def check_gpu_scaling(scaling: Scaling, shape: Shape) -> None:
    """Check that the GPUs of an instance of that shape can tell the metric of a scaling, if it is one of GPUs.

    Raises:
        InvalidError: there are none.
        UnsupportedError: no driver tells it of a share or part.
    """
    if not scaling.reads_gpus:
        return
    who, resources = f"Scaling.metric={scaling.metric!r}", build_gpu_resources(shape)
    if not resources.gpu:
        raise InvalidError(
            f"{who} goes by the GPUs of the instances, and they ask for none. Write resources=sf.Resources(gpu=1), or "
            "scale by cpu, rps, p95 or queue."
        )
    if scaling.metric == "gpu" and not isinstance(resources.gpu, int):
        raise UnsupportedError(
            f"{who} of {resources.part_of_gpu}: the driver says how busy a whole GPU is, by all who share it, and of "
            "parts nothing. Write gpu=1, or scale by gpu_memory, rps, p95 or queue."
        )


def check_gpu_readings(scaling: Scaling, shape: Shape, inventory: Inventory) -> None:
    """Check that each of this machine's GPUs, of which an instance may get any, tells the metric of a scaling.

    Raises:
        UnsupportedError: one does not.
    """
    if not scaling.reads_gpus:
        return
    who, is_share = f"Scaling.metric={scaling.metric!r}", isinstance(build_gpu_resources(shape).gpu, float)
    if scaling.metric == "gpu_memory" and is_share and not inventory.sees_processes:
        raise UnsupportedError(
            f"{who} of gpu={shape.gpu}, a share: the process ids in this container are not those that the driver "
            "reports, so the memory of a share cannot be measured. Run the container with the machine's process ids "
            "(--pid host), or scale by rps, p95 or queue."
        )
    for device in inventory.devices:
        if device.fault or device.mig_enabled:
            continue
        if scaling.metric == "gpu" and device.busy_share is None:
            raise UnsupportedError(
                f"{who}: the driver does not say how busy GPU {device.number} {device.name} is. Scale by rps, p95 or "
                "queue."
            )
        if scaling.metric == "gpu_memory" and device.memory_bytes is None and shape.gpu_memory_bytes is None:
            raise UnsupportedError(
                f"{who}: GPU {device.number} {device.name} does not say how much memory it has. Scale by rps, p95 or "
                "queue."
            )
