"""Whether there may be devices, and which of them this process may use, by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scanflow.accelerators.accelerator_port import Device, Inventory

LIBRARY: Final = "libnvidia-ml.so.1"
_DRIVER_FILES: Final = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")
"""Of Linux, of Windows' subsystem for it, and of containers without devices' files."""

_LIBRARY_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")
"""Where its library is, although its kernel module is loaded by its first use only."""

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
MEMORY_VARIABLE: Final = "SCANFLOW_GPU_MEMORY_BYTES"
"""The memory that a process may use of each of its devices."""

SHARE_VARIABLE: Final = "SCANFLOW_GPU_SHARE"
"""The share of a GPU that a process has; not set: it has whole ones, or a part."""

HOLDER_VARIABLE: Final = "SCANFLOW_DEVICES_OF"
"""Names the claim that a process' devices belong to: what it starts itself may use them too."""


def is_driver_loaded(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether NVIDIA's driver may have devices here, in microseconds: what reads them takes longer to import."""
    folders = [*_LIBRARY_FOLDERS, *filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    return any(map(os.path.exists, [*_DRIVER_FILES, *(f"{folder}/{LIBRARY}" for folder in folders)]))


def restrict_to_visible(inventory: Inventory, environ: Mapping[str, str]) -> Inventory:
    """Leave out what ``CUDA_VISIBLE_DEVICES`` hides: a job of a queue, or a person, has given this process a part.

    As CUDA reads it: numbers, UUIDs or their beginnings; what follows an entry that names nothing is hidden.
    """
    value = environ.get(VISIBLE)
    if value is None:
        return inventory
    if _has_ambiguous_numbers(inventory, value, environ):
        return replace(
            inventory,
            devices=(),
            absence=f"{VISIBLE}={value!r} counts the GPUs as CUDA does, the fastest first, and they differ here. Write "
            "their UUIDs (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID.",
        )
    chosen: dict[str, Device] = {}
    for entry in filter(None, (part.strip() for part in value.split(","))):
        device = _find(inventory, entry)
        if device is None:
            break
        if device.uuid in chosen:  # another part of a device that is cut
            earlier = chosen[device.uuid]
            device = replace(device, mig_instances=(*earlier.mig_instances, *device.mig_instances))
        chosen[device.uuid] = device
    if not chosen:
        hidden = f"{VISIBLE}={value!r} hides all {len(inventory.devices)} GPUs of this machine from this process."
        return replace(inventory, devices=(), absence=hidden)
    others = ", ".join(f"GPU {device.number}" for device in inventory.devices if device.uuid not in chosen)
    return replace(
        inventory, devices=tuple(chosen.values()), hidden=f"{VISIBLE}={value!r} hides {others}" if others else ""
    )


def _has_ambiguous_numbers(inventory: Inventory, value: str, environ: Mapping[str, str]) -> bool:
    by_number = any(part.strip().isdecimal() for part in value.split(","))
    same = len({device.name for device in inventory.devices}) <= 1
    return by_number and not same and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _find(inventory: Inventory, entry: str) -> Device | None:
    """Return the device of an entry, cut down to the part that it names."""
    for device in inventory.devices:
        if entry == str(device.number) or (entry.startswith("GPU-") and device.uuid.startswith(entry)):
            return device
        parts = tuple(part for part in device.mig_instances if entry.startswith("MIG-") and part.uuid.startswith(entry))
        if parts:
            return replace(device, mig_instances=parts[:1])
    return None
