"""The GPUs that this pod's container was granted, read back in it: from the driver, else what its runtime was told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from scanflow.accelerators.accelerator_port import Accelerators, Device
from scanflow.accelerators.nvml import read_accelerators
from scanflow.accelerators.visible import HOLDER_VARIABLE, SHARE_VARIABLE
from scanflow.backends.run_records import DeviceUse

_GRANT: Final = "NVIDIA_VISIBLE_DEVICES"
"""The UUIDs that NVIDIA's device plugin tells the container's runtime."""

_MPS: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""Set by the device plugin for shares that the Multi-Process Service bounds."""


def read_pod_devices(
    environ: Mapping[str, str] = os.environ, find: Callable[[], Accelerators] = read_accelerators
) -> tuple[DeviceUse, ...]:
    """Return what was granted; nothing to a container that asked for no GPU, or outside a pod."""
    if environ.get(HOLDER_VARIABLE) != "pod":
        return ()
    uuids = [name for name in environ.get(_GRANT, "").split(",") if name.startswith(("GPU-", "MIG-"))]
    share = float(environ.get(SHARE_VARIABLE, 1))
    sharing = "exclusive" if share == 1 else "mps" if _MPS in environ else "time slicing"
    devices = [use for device in find().read().devices for use in _describe(device, share, sharing)]
    if devices:
        return tuple(use for use in devices if not uuids or use.uuid in uuids)
    return tuple(
        DeviceUse(number=number, uuid=uuid, share=share, sharing="mig" if uuid.startswith("MIG-") else sharing)
        for number, uuid in enumerate(uuids)
    )


def _describe(device: Device, share: float, sharing: str) -> Iterator[DeviceUse]:
    if not device.mig_enabled:
        used = device.memory_used_bytes if share == 1 else None  # else it is also that of others
        yield DeviceUse(
            number=device.number,
            uuid=device.uuid,
            name=device.name,
            sharing=sharing,
            share=share,
            memory_bytes=device.memory_bytes,
            peak_bytes=used,
            used_bytes=used,
            busy_share=device.busy_share if share == 1 else None,
            power_w=device.power_w if share == 1 else None,
            fault=device.fault,
        )
    for part in device.mig_instances:
        yield DeviceUse(
            number=device.number,
            uuid=part.uuid,
            name=f"{device.name} {part.profile}",
            sharing="mig",
            memory_bytes=part.memory_bytes,
            peak_bytes=part.memory_used_bytes,
            used_bytes=part.memory_used_bytes,
        )
