"""GPUs that were granted and cannot be used any more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scanflow.backends.run_records import DeviceUse

if TYPE_CHECKING:  # most machines have none
    from scanflow.accelerators.accelerator_port import Inventory
    from scanflow.placement.device_grants import DeviceGrant


def find_fault(inventory: Inventory, grant: DeviceGrant) -> str | None:
    """Return why a device that was granted, or its part, cannot be used any more; None: it can."""
    if not inventory.devices:
        return inventory.absence.partition(". ")[0].rstrip(".")
    device = next((device for device in inventory.devices if device.uuid == grant.device), None)
    if device is None:
        return "the driver does not list it any more"
    if device.fault:
        return device.fault
    is_there = grant.sharing != "mig" or any(part.uuid == grant.uuid for part in device.mig_instances)
    return None if is_there else "the GPU is not cut into this part any more"


def end_readings(use: DeviceUse, faults: Mapping[str, str]) -> DeviceUse:
    """Return a use without what was read of it lately, since its device failed, or its attempt has ended.

    ``faults``: of devices that failed, by the UUIDs of what was granted of them.
    """
    over = {"others": (), "used_bytes": None, "busy_share": None, "power_w": None}
    return use.model_copy(update={**over, "fault": faults.get(use.uuid, "")})
