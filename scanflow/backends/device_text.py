"""GPUs as text: those of a machine, and those that steps and instances were granted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scanflow.app.quantities import format_bytes
from scanflow.backends.run_records import DeviceUse, TaskRecord

if TYPE_CHECKING:  # most machines have none
    from scanflow.accelerators.accelerator_port import Device, Inventory, MigInstance
    from scanflow.backends.device_claims import DeviceClaim

MAX_LINES = 4


def format_step_devices(tasks: Iterable[TaskRecord]) -> list[str]:
    """Return a line for each step that was granted GPUs: which, how much was seen used, and who was beside it."""
    return format_uses((task.step, task.devices) for task in tasks)


def format_uses(devices: Iterable[tuple[str, Sequence[DeviceUse]]]) -> list[str]:
    """Return a line for each name that has GPUs."""
    return [f"GPUs of {name}: {uses}" for name, uses in list_uses(devices)]


def list_uses(devices: Iterable[tuple[str, Sequence[DeviceUse]]]) -> list[tuple[str, str]]:
    """Return each name that has GPUs, with these on one line."""
    by_name: dict[str, list[DeviceUse]] = {}
    for name, uses in devices:
        by_name.setdefault(name, []).extend(uses)
    return [(name, describe_uses(uses)) for name, uses in by_name.items() if uses]


def describe_uses(devices: Iterable[DeviceUse]) -> str:
    """Return the GPUs that were granted on one line: which, how shared, how full, and who was beside; empty: none."""
    uses = list(dict.fromkeys(map(_format_use, devices)))
    more = f"; and {len(uses) - MAX_LINES} more" if len(uses) > MAX_LINES else ""
    return f"{'; '.join(uses[:MAX_LINES])}{more}"


def _format_use(use: DeviceUse) -> str:
    share = "all" if use.share >= 1 else f"{use.share:g}"  # all: in several shares, as of the ranks of a job
    way = "MPS" if use.sharing == "mps" else use.sharing
    how = "" if use.sharing in {"exclusive", "mig"} else f", {share} of it by {way}"
    memory = "" if use.memory_bytes is None else f", {format_bytes(use.memory_bytes)}"
    head = f"GPU {use.number}{f' {use.name}' if use.name else ''}{how}"
    if use.fault:
        return f"{head}{memory}, failed: {use.fault}"
    if use.peak_bytes is not None:
        memory = f", used {format_bytes(use.peak_bytes)}" + (f" of{memory[1:]}" if memory else "")
    load = "".join(f", {text}" for text in _format_load(use.busy_share, use.power_w))
    beside = f", beside {', '.join(use.others)}" if use.others else ""
    return f"{head}{memory}{load}{beside}"


class DeviceState(NamedTuple):
    """A GPU of a machine, or a part of one: what it is, how full it is, and by whom."""

    name: str
    """``GPU 0 NVIDIA H100 (80 GiB), NUMA node 1``, or ``part 1, 1g.10gb``."""

    number: int
    is_part: bool
    used: str = ""
    """``2 GiB used, 93% busy, 412 W``; empty: unknown, or said of its parts."""

    holders: Sequence[tuple[str, DeviceClaim]] = ()
    """To whom it is granted, each as text and with its claim: ``calm-otter-417/train (0.5 of it)``."""

    note: str = ""
    """Why it is not granted: it failed, is cut or free, or others use it."""

    processes: str = ""
    """Who computes on it: ``python 4711 (12 GiB)``."""

    def __str__(self) -> str:
        granted = f"granted to {', '.join(text for text, _ in self.holders)}" if self.holders else self.note
        state = "; ".join(filter(None, (self.used, granted, self.processes and f"on it: {self.processes}")))
        return f"{'  ' if self.is_part else ''}{self.name}: {state}"


def list_device_states(inventory: Inventory, claims: Sequence[DeviceClaim]) -> list[DeviceState]:
    """Return each GPU, and each part of one after it."""
    from scanflow.placement.device_grants import describe_device

    states = []
    for device in inventory.devices:
        node = "" if device.numa_node is None else f", NUMA node {device.numa_node}"
        whole = DeviceState(f"{describe_device(device)}{node}", device.number, is_part=False)
        if device.fault or device.mig_enabled:
            states.append(whole._replace(note=f"failed: {device.fault}" if device.fault else "cut into parts"))
        else:
            states.append(_fill_state(whole, device, claims, _format_load(device.busy_share, device.power_w)))
        for place, part in enumerate(device.mig_instances, 1):
            name = f"part {place}, {part.profile}"
            states.append(_fill_state(DeviceState(name, device.number, is_part=True), part, claims))
    return states


def _format_load(busy_share: float | None, power_w: float | None) -> list[str]:
    busy = [] if busy_share is None else [f"{busy_share:.0%} busy"]
    return [*busy, *([] if power_w is None else [f"{power_w:.0f} W"])]


def _fill_state(
    state: DeviceState, device: Device | MigInstance, claims: Sequence[DeviceClaim], load: Sequence[str] = ()
) -> DeviceState:
    from scanflow.placement.device_grants import describe_process

    used = [] if device.memory_used_bytes is None else [f"{format_bytes(device.memory_used_bytes)} used"]
    holders = [
        (claim.who + (f" ({grant.share:g} of it)" if grant.share < 1 else ""), claim)
        for claim in claims
        for grant in claim.grants
        if grant.uuid == device.uuid
    ]
    note = "" if holders else "not granted" if device.processes else "free"
    return state._replace(
        used=", ".join([*used, *load]),
        holders=holders,
        note=note,
        processes=", ".join(map(describe_process, device.processes)),
    )


def format_machine_devices(inventory: Inventory, claims: Sequence[DeviceClaim]) -> list[str]:
    """Return a line for each GPU, and for each part of one: how full it is, and by whom; and one for those that this
    process may not use."""
    hidden = [f"{inventory.hidden} from this process"] if inventory.hidden else []
    return [*map(str, list_device_states(inventory, claims)), *hidden]
