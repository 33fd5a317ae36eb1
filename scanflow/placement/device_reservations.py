"""Which devices are kept for those who wait for one: first come, first served. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.placement.device_grants import (
    ROUNDING,
    DeviceDemand,
    DeviceGrant,
    build_device_grant,
    choose_devices,
    describe_use,
)

IsForeign = Callable[[DeviceProcess], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """What one attempt waits for."""

    who: str
    """For people: ``calm-otter-417/train``."""

    demand: DeviceDemand


def reserve_devices(
    inventory: Inventory,
    requests: Iterable[DeviceRequest],
    held: Sequence[DeviceGrant],
    lasting: Collection[DeviceGrant],
    *,
    is_foreign: IsForeign,
) -> list[DeviceGrant]:
    """Return grants of what is kept for requests, which are in the order in which they came: what is free already of
    what each needs.

    Nothing is kept for a request that has to wait for more than the ends of steps, as for a service or a program of
    others: nobody knows when these end, and who can use what is free goes first.

    Args:
        held: What attempts hold.
        lasting: Those of it that end with a service only.
    """
    reserves: list[DeviceGrant] = []
    for request in requests:
        if isinstance(choose_devices(inventory, request.demand, list(lasting), is_foreign=is_foreign), str):
            continue
        owner = f"{request.who}, which waits for {request.demand}"
        rests = _keep(inventory, request.demand, [*held, *reserves], lasting, is_foreign)
        reserves += [replace(rest, owner=owner, is_kept=True) for rest in rests]
    return reserves


def _keep(
    inventory: Inventory,
    demand: DeviceDemand,
    claims: Sequence[DeviceGrant],
    lasting: Collection[DeviceGrant],
    is_foreign: IsForeign,
) -> list[DeviceGrant]:
    demand = demand.joined
    chosen = choose_devices(inventory, demand, claims, is_foreign=is_foreign)
    if not isinstance(chosen, str):
        return list(chosen)
    if demand.copies > 1:
        reserves: list[DeviceGrant] = []
        for _ in range(demand.copies):
            reserves += _keep(inventory, replace(demand, copies=1), [*claims, *reserves], lasting, is_foreign)
        return reserves
    if demand.profile is not None:
        return []
    suitable = [
        device
        for device in inventory.devices
        if not isinstance(
            choose_devices(
                replace(inventory, devices=(device,)), replace(demand, count=1), list(lasting), is_foreign=is_foreign
            ),
            str,
        )
    ]
    suitable.sort(key=lambda device: _sum_shares(device, claims))  # those that are free, and most of which is free
    return [rest for device in suitable[: demand.count] if (rest := _build_rest(inventory, device, claims, is_foreign))]


def _sum_shares(device: Device, claims: Iterable[DeviceGrant]) -> float:
    return sum(claim.share for claim in claims if claim.device == device.uuid)


def _build_rest(
    inventory: Inventory, device: Device, claims: Sequence[DeviceGrant], is_foreign: IsForeign
) -> DeviceGrant | None:
    """Return a grant of what is free of a device; None: nothing."""
    if not describe_use(device, claims, is_foreign, inventory):
        return build_device_grant(device)
    own = [claim for claim in claims if claim.device == device.uuid]
    share = 1 - _sum_shares(device, claims)
    if not own or share < ROUNDING:
        return None
    memory = None if device.memory_bytes is None else device.memory_bytes - sum(it.memory_bytes or 0 for it in own)
    return build_device_grant(device, sharing=own[0].sharing, share=share, memory_bytes=memory)
