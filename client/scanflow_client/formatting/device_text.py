"""GPUs as text: those of a machine, and those that a run's steps were granted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from scanflow.backends.run_records import DeviceUse, TaskRecord
from scanflow_client.formatting.text import format_bytes

if TYPE_CHECKING:  # most machines have none
    from scanflow.accelerators.accelerator_port import Device, Inventory, MigInstance
    from scanflow.backends.device_claims import DeviceClaim

MAX_LINES = 4


def format_step_devices(tasks: Iterable[TaskRecord]) -> list[str]:
    """Return a line for each step that was granted GPUs: which, how much was seen used, and who was beside it."""
    return format_uses((task.step, task.devices) for task in tasks)


def format_uses(devices: Iterable[tuple[str, Sequence[DeviceUse]]]) -> list[str]:
    """Return a line for each name that has GPUs."""
    by_name: dict[str, dict[str, None]] = {}
    for name, uses_of_name in devices:
        for use in uses_of_name:
            by_name.setdefault(name, {})[_format_use(use)] = None
    lines = []
    for name, uses in by_name.items():
        more = f"; and {len(uses) - MAX_LINES} more" if len(uses) > MAX_LINES else ""
        lines.append(f"GPUs of {name}: {'; '.join(list(uses)[:MAX_LINES])}{more}")
    return lines


def _format_use(use: DeviceUse) -> str:
    how = {"exclusive": "", "mig": ""}.get(use.sharing, f", {use.share:g} of it by {use.sharing}")
    memory = "" if use.memory_bytes is None else f", {format_bytes(use.memory_bytes)}"
    if use.peak_bytes is not None:
        memory = f", used {format_bytes(use.peak_bytes)}" + (f" of{memory[1:]}" if memory else "")
    beside = f", beside {', '.join(use.others)}" if use.others else ""
    return f"GPU {use.number}{f' {use.name}' if use.name else ''}{how}{memory}{beside}"


def format_machine_devices(inventory: Inventory, claims: Sequence[DeviceClaim]) -> list[str]:
    """Return a line for each GPU, and for each part of one: how full it is, and by whom."""
    from scanflow.placement.device_grants import describe_device

    lines = []
    for device in inventory.devices:
        node = "" if device.numa_node is None else f", NUMA node {device.numa_node}"
        lines.append(f"{describe_device(device)}{node}: {_describe_state(device, device.uuid, claims)}")
        lines += [f"  part {part.profile}: {_describe_state(part, part.uuid, claims)}" for part in device.mig_instances]
    return lines


def _describe_state(device: Device | MigInstance, uuid: str, claims: Sequence[DeviceClaim]) -> str:
    from scanflow.placement.device_grants import describe_process

    if fault := getattr(device, "fault", ""):
        return f"failed: {fault}"
    if getattr(device, "mig_enabled", False):
        return "cut into parts"
    owners = [
        claim.who + (f" ({grant.share:g} of it)" if grant.share < 1 else "")
        for claim in claims
        for grant in claim.grants
        if grant.uuid == uuid
    ]
    processes = device.processes
    used = "" if device.memory_used_bytes is None else f"{format_bytes(device.memory_used_bytes)} used; "
    granted = f"granted to {', '.join(owners)}" if owners else "free" if not processes else "granted to nobody"
    return f"{used}{granted}" + (f"; on it: {', '.join(map(describe_process, processes))}" if processes else "")
