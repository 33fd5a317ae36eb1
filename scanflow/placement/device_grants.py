"""Which GPUs a step or an instance gets: whole ones, shares of one, or the parts that a device was cut into. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.accelerators.mps import START, build_mps_variables
from scanflow.accelerators.usable_memory import compute_usable_bytes
from scanflow.accelerators.visible import MEMORY_VARIABLE, SHARE_VARIABLE, VISIBLE
from scanflow.app.quantities import format_bytes, format_count
from scanflow.app.resources import Resources
from scanflow.errors import InvalidError, UnsupportedError

Sharing = Literal["exclusive", "mig", "mps", "time slicing"]
"""How a device is given: to one; a part that it was cut into; with bounds that NVIDIA's Multi-Process Service holds; or
in turns, with a bound of memory that is watched."""

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDemand:
    """What a step asks for: ``count`` whole devices, a ``share`` of one below 1, or one part of a ``profile``; and that
    as often as there are ``copies``."""

    count: int = 1
    share: float = 1.0
    profile: str | None = None
    memory_bytes: int | None = None
    """Of a share, the most it may use; else what each device must have."""

    copies: int = 1
    """How many get as much each: the ranks of a job, or the instances of a service."""

    copy: str = "task"
    """What one of them is called."""

    @property
    def joined(self) -> DeviceDemand:
        """The same as one demand, if it is for whole devices: all copies get theirs beside each other."""
        is_whole = self.profile is None and self.share == 1
        return replace(self, count=self.count * self.copies, copies=1) if is_whole else self

    def __str__(self) -> str:
        amount = "" if self.copies == 1 else f"{format_count(self.copies, self.copy)} x "
        if self.profile is not None:
            amount += f"gpu={self.profile!r}"
        else:
            amount += f"gpu={self.count if self.share == 1 else self.share}"
        return amount if self.memory_bytes is None else f"{amount} with {format_bytes(self.memory_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """A device, or part of one, that was given."""

    uuid: str
    """What ``CUDA_VISIBLE_DEVICES`` names: the device's, or that of its part."""

    device: str
    """The UUID of the device."""

    number: int
    name: str = ""
    sharing: Sharing = "exclusive"
    share: float = 1.0
    memory_bytes: int | None = None
    """Of a share, the most it may use; else what the device or part has."""

    device_bytes: int | None = None
    """The memory of the whole device; None: unknown."""

    owner: str = ""
    """For people, who has it: ``calm-otter-417/train``."""

    is_kept: bool = False
    """Whether it is not granted yet, but kept for one who waits: see device_reservations.py."""


def build_demand(resources: Resources) -> DeviceDemand | None:
    """Return what resources ask for; None: no device."""
    memory, gpu = resources.gpu_memory_bytes, resources.gpu
    if isinstance(gpu, str):
        return DeviceDemand(profile=gpu, memory_bytes=memory)
    if not gpu:
        return None
    if isinstance(gpu, float):
        return DeviceDemand(share=gpu, memory_bytes=memory)
    return DeviceDemand(count=gpu, memory_bytes=memory)


def check_demand(inventory: Inventory, demand: DeviceDemand) -> None:
    """Check that a machine could grant a demand, to all its copies at once, if nothing else ran on it.

    Raises:
        UnsupportedError: it could not; the message says what there is, and what to write.
    """
    alone = replace(demand, copies=1)
    if not inventory.devices:
        raise UnsupportedError(f"{alone} asks for a GPU, and there is none here: {inventory.absence}")
    if demand.profile is not None:
        _check_profile(inventory, alone, demand.profile)
    elif demand.share < 1:
        _check_share(inventory, alone)
    else:
        _check_whole(inventory, alone)
    claims: list[DeviceGrant] = []
    for count in range(demand.copies):
        chosen = choose_devices(inventory, alone, claims, is_foreign=lambda _: False)
        if isinstance(chosen, str):
            raise UnsupportedError(
                f"{demand} are more than there is here, which is enough for {count}: {_describe_inventory(inventory)}."
            )
        claims += chosen


def check_environment(env: Mapping[str, object], inventory: Inventory, *, asks: bool) -> None:
    """Check that a step or service does not name devices itself, except to hide all in one that asks for none.

    Raises:
        InvalidError: it does.
    """
    named = env.get(VISIBLE)
    if named in {"", "-1"}:
        if asks:
            raise InvalidError(
                f"its env sets {VISIBLE}={named!r}, which hides all GPUs from it, and it asks for one. Remove it, or "
                "ask for none."
            )
    elif named is not None and (asks or inventory.devices):
        raise InvalidError(
            f"its env sets {VISIBLE}={named!r}, by which it would use GPUs that are given to others. Remove it, and "
            "ask for a GPU: resources=sf.Resources(gpu=1)."
        )


def choose_devices(
    inventory: Inventory,
    demand: DeviceDemand,
    claims: Sequence[DeviceGrant],
    *,
    near: Collection[int] = (),
    is_foreign: Callable[[DeviceProcess], bool] = lambda _: True,
) -> tuple[DeviceGrant, ...] | str:
    """Return the devices for a demand beside the ``claims`` of others, or why it has to wait.

    Args:
        near: The NUMA nodes of the cores that it was given: devices of these go first.
        is_foreign: Whether a process is none of those that hold the claims. A device that one uses is not free.
    """
    chosen = _choose(inventory, demand, claims, near, is_foreign)
    if not isinstance(chosen, str):
        return chosen
    failed = [f"GPU {device.number} has failed: {device.fault}" for device in inventory.devices if device.fault]
    return "; ".join(filter(None, (chosen, *failed))) or inventory.absence.rstrip(".")


def _choose(
    inventory: Inventory,
    demand: DeviceDemand,
    claims: Sequence[DeviceGrant],
    near: Collection[int],
    is_foreign: Callable[[DeviceProcess], bool],
) -> tuple[DeviceGrant, ...] | str:
    demand = demand.joined
    if demand.copies > 1:
        return _choose_copies(inventory, demand, claims, near, is_foreign)
    if demand.profile is not None:
        return _choose_part(inventory, demand, demand.profile, claims, near, is_foreign)
    if demand.share < 1:
        return _choose_share(inventory, demand, claims, near, is_foreign)
    free, reasons = [], []
    for device in _list_fitting(inventory, demand):
        used = describe_use(device, claims, is_foreign, inventory)
        free += [] if used else [device]
        reasons += [used] if used else []
    if len(free) < demand.count:
        return f"{len(free)} of {demand.count} free; {'; '.join(reasons)}" if demand.count > 1 else "; ".join(reasons)
    chosen = _sort_near(free, near, demand.count)[: demand.count]
    return tuple(build_device_grant(device) for device in sorted(chosen, key=lambda device: device.number))


def _choose_copies(
    inventory: Inventory,
    demand: DeviceDemand,
    claims: Sequence[DeviceGrant],
    near: Collection[int],
    is_foreign: Callable[[DeviceProcess], bool],
) -> tuple[DeviceGrant, ...] | str:
    """Choose as often as there are copies, each beside the ones before; all of them, or none."""
    chosen: list[DeviceGrant] = []
    for _ in range(demand.copies):
        own = [replace(grant, owner=f"its other {demand.copy}s") for grant in chosen]
        more = _choose(inventory, replace(demand, copies=1), [*claims, *own], near, is_foreign)
        if isinstance(more, str):
            return f"{len(chosen)} of {demand.copies} free; {more}"
        chosen += more
    return tuple(chosen)


def build_device_grant(device: Device, **changes: Any) -> DeviceGrant:
    """Return the grant of a whole device, or with ``changes`` of a part or share of it."""
    grant = DeviceGrant(
        uuid=device.uuid,
        device=device.uuid,
        number=device.number,
        name=device.name,
        memory_bytes=device.memory_bytes,
        device_bytes=device.memory_bytes,
    )
    return replace(grant, **changes)


def build_device_variables(grants: Sequence[DeviceGrant], mps_directory: str | None = None) -> dict[str, str]:
    """Return the environment variables that show a process its devices and no others, and bound its share."""
    variables = {VISIBLE: ",".join(dict.fromkeys(grant.uuid for grant in grants))}
    for grant in grants:
        if grant.memory_bytes is not None:
            variables[MEMORY_VARIABLE] = str(grant.memory_bytes)
        if grant.sharing == "mps":
            variables |= build_mps_variables(mps_directory or "", grant.share, grant.memory_bytes)
        if grant.share < 1:  # JAX takes three quarters of a device at once, TensorFlow all of it, unless told
            variables |= {SHARE_VARIABLE: f"{grant.share:g}", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
            variables |= _build_jax_variables(grant)
    return variables


def _build_jax_variables(grant: DeviceGrant) -> dict[str, str]:
    """Return what JAX may take at once of a share: of what the whole device has, not of the share."""
    if grant.memory_bytes is None or not grant.device_bytes:
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    fraction = compute_usable_bytes(grant.memory_bytes) / grant.device_bytes
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{math.floor(fraction * 10**6) / 10**6:.6f}"}


def merge_grants(grants: Iterable[DeviceGrant]) -> tuple[DeviceGrant, ...]:
    """Return grants with several shares of one device as one: whose processes are whose cannot be told."""
    merged: dict[str, DeviceGrant] = {}
    for grant in grants:
        other = merged.get(grant.uuid)
        if other is None:
            merged[grant.uuid] = grant
        else:
            memory = None if grant.memory_bytes is None else grant.memory_bytes + (other.memory_bytes or 0)
            merged[grant.uuid] = replace(other, share=other.share + grant.share, memory_bytes=memory)
    return tuple(merged.values())


def describe_wait(demand: DeviceDemand, why: str) -> str:
    """Return ``gpu=1 is not free now: GPU 0 is granted to calm-otter-417/train.``"""
    return f"{demand} {'is' if demand.copies == 1 else 'are'} not free now: {why}."


def describe_device(device: Device) -> str:
    """Return ``GPU 0 NVIDIA H100 (80 GiB)``."""
    memory = "" if device.memory_bytes is None else f" ({format_bytes(device.memory_bytes)})"
    return f"GPU {device.number}{f' {device.name}' if device.name else ''}{memory}"


def describe_use(
    device: Device, claims: Sequence[DeviceGrant], is_foreign: Callable[[DeviceProcess], bool], inventory: Inventory
) -> str:
    """Return who uses a device, so that it cannot be given as a whole; empty: nobody."""
    own = [claim for claim in claims if claim.device == device.uuid]
    reserves = [claim for claim in own if claim.is_kept]
    if reserves:
        why = f"GPU {device.number} is kept for {_format_owners(reserves)}"
        held = describe_use(device, [claim for claim in own if not claim.is_kept], is_foreign, inventory)
        return f"{held}; {why}" if held else why
    if own:
        share = sum(claim.share for claim in own)
        part = f"{share:.3g} of " if share < 1 - ROUNDING else ""
        return f"{part}GPU {device.number} is granted to {_format_owners(own)}"
    return _describe_foreign(device.number, device.processes, is_foreign, inventory)


def _format_owners(claims: Sequence[DeviceGrant]) -> str:
    return ", ".join(dict.fromkeys(claim.owner or "another" for claim in claims))


def _describe_foreign(
    number: int, processes: Iterable[DeviceProcess], is_foreign: Callable[[DeviceProcess], bool], inventory: Inventory
) -> str:
    others = [process for process in processes if is_foreign(process)] if inventory.sees_processes else []
    return f"GPU {number} is used by {', '.join(map(describe_process, others))}" if others else ""


def describe_process(process: DeviceProcess) -> str:
    """Return ``python 4711 (12 GiB)``."""
    memory = "" if process.memory_bytes is None else f" ({format_bytes(process.memory_bytes)})"
    return f"{process.name or 'process'} {process.pid}{memory}"


def _check_whole(inventory: Inventory, demand: DeviceDemand) -> None:
    if len(_list_fitting(inventory, demand)) >= demand.count:
        return
    cut = [device for device in inventory.devices if device.mig_enabled]
    hint = (
        f" GPU {cut[0].number} is cut into parts: ask for one (gpu={_list_profiles(cut)[0]!r})."
        if any(device.mig_instances for device in cut)
        else ""
    )
    raise UnsupportedError(f"{demand} is more than there is here: {_describe_inventory(inventory)}.{hint}")


def _check_profile(inventory: Inventory, demand: DeviceDemand, profile: str) -> None:
    parts = [part for device in inventory.devices if not device.fault for part in device.mig_instances]
    same = [part for part in parts if part.profile == profile]
    if not same:
        there = (
            f"Parts there are: {', '.join(_list_profiles(inventory.devices))}."
            if parts
            else f"No GPU here is cut into parts: {_describe_inventory(inventory)}. Its administrator cuts it "
            f"(nvidia-smi -i 0 -mig 1; nvidia-smi mig -cgi {profile} -C), where it can be; else write gpu=1 or gpu=0.5."
        )
        raise UnsupportedError(f"{demand} names a part that no GPU here has. {there}")
    if all(not _has_memory(part.memory_bytes, demand.memory_bytes) for part in same):
        most = max(part.memory_bytes or 0 for part in same)
        raise UnsupportedError(f"{demand} of memory is more than a {profile} has here: {format_bytes(most)}.")


def _check_share(inventory: Inventory, demand: DeviceDemand) -> None:
    usable = [device for device in inventory.devices if not device.mig_enabled and not device.fault]
    if not usable:
        raise UnsupportedError(f"{demand} is a share of a GPU that is not cut: {_describe_inventory(inventory)}.")
    if inventory.mps_directory is None and not inventory.sees_processes:
        raise UnsupportedError(
            f"{demand} is a share of a GPU, and nothing here would hold a step to it: NVIDIA's Multi-Process Service "
            f"does not run, and the process ids in this container are not those that its driver reports. Start it "
            f"({START}), run the container with the machine's process ids (--pid host), or write gpu=1."
        )
    if all(device.memory_bytes is None for device in usable) and demand.memory_bytes is None:
        raise UnsupportedError(
            f"{demand} is a share of a GPU that does not say how much memory it has. Add gpu_memory=."
        )
    if all(not _has_memory(device.memory_bytes, demand.memory_bytes) for device in usable):
        raise UnsupportedError(f"{demand} of memory is more than there is here: {_describe_inventory(inventory)}.")


def _choose_part(
    inventory: Inventory,
    demand: DeviceDemand,
    profile: str,
    claims: Sequence[DeviceGrant],
    near: Collection[int],
    is_foreign: Callable[[DeviceProcess], bool],
) -> tuple[DeviceGrant, ...] | str:
    claimed, reasons = {claim.uuid for claim in claims}, []
    for device in _sort_near([device for device in inventory.devices if not device.fault], near, 1):
        for part in device.mig_instances:
            if part.profile != profile or not _has_memory(part.memory_bytes, demand.memory_bytes):
                continue
            foreign = _describe_foreign(device.number, part.processes, is_foreign, inventory)
            if part.uuid not in claimed and not foreign:
                changes = {"name": f"{device.name} {profile}", "memory_bytes": part.memory_bytes}
                return (build_device_grant(device, uuid=part.uuid, sharing="mig", **changes),)
            reasons += [foreign] if foreign else []
    owners = _format_owners([claim for claim in claims if claim.sharing == "mig"])
    return "; ".join([*reasons, *([f"the others of {profile} are granted to {owners}"] if owners else [])])


def _choose_share(
    inventory: Inventory,
    demand: DeviceDemand,
    claims: Sequence[DeviceGrant],
    near: Collection[int],
    is_foreign: Callable[[DeviceProcess], bool],
) -> tuple[DeviceGrant, ...] | str:
    sharing: Sharing = "time slicing" if inventory.mps_directory is None else "mps"
    reasons, fitting = [], []
    for device in _sort_near(_list_fitting(inventory, demand), near, 1):
        own = [claim for claim in claims if claim.device == device.uuid]
        memory = demand.memory_bytes
        if memory is None and device.memory_bytes is not None:
            memory = math.floor(device.memory_bytes * demand.share)
        if foreign := _describe_foreign(device.number, device.processes, is_foreign, inventory):
            reasons.append(foreign)
        elif (own and own[0].sharing != sharing) or sum(
            claim.share for claim in own
        ) + demand.share > 1 + ROUNDING:  # the service was started or ended meanwhile
            reasons.append(describe_use(device, claims, is_foreign, inventory))
        elif device.memory_bytes is not None and (memory or 0) > (free := device.memory_bytes - _sum_memory(own)):
            reasons.append(f"GPU {device.number}: the shares of {_format_owners(own)} leave {format_bytes(free)}")
        else:
            grant = build_device_grant(device, sharing=sharing, share=demand.share, memory_bytes=memory)
            fitting.append((sum(claim.share for claim in own), grant))
    if not fitting:
        return "; ".join(reasons)
    return (max(fitting, key=lambda pair: pair[0])[1],)  # the fullest: whole ones stay free for those who need them


def _sum_memory(claims: Iterable[DeviceGrant]) -> int:
    return sum(claim.memory_bytes or 0 for claim in claims)


def _list_fitting(inventory: Inventory, demand: DeviceDemand) -> list[Device]:
    return [
        device
        for device in inventory.devices
        if not device.mig_enabled and not device.fault and _has_memory(device.memory_bytes, demand.memory_bytes)
    ]


def _has_memory(there: int | None, needed: int | None) -> bool:
    return needed is None or (there is not None and there >= needed)


def _sort_near(devices: Sequence[Device], near: Collection[int], count: int) -> list[Device]:
    """Return devices in the order to give them: near the cores, then those with enough beside them, then by number."""
    beside: Mapping[int | None, int] = {
        node: sum(other.numa_node == node for other in devices) for node in {device.numa_node for device in devices}
    }
    return sorted(
        devices,
        key=lambda device: (
            device.numa_node not in near,
            beside[device.numa_node] < count,
            -1 if device.numa_node is None else device.numa_node,
            device.number,
        ),
    )


def _list_profiles(devices: Iterable[Device]) -> list[str]:
    return sorted({part.profile for device in devices for part in device.mig_instances})


def _describe_inventory(inventory: Inventory) -> str:
    described = [
        describe_device(device)
        + (f", failed: {device.fault}" if device.fault else ", cut into parts (MIG)" if device.mig_enabled else "")
        for device in inventory.devices
    ]
    return "; ".join([*described, *([inventory.hidden] if inventory.hidden else [])])
