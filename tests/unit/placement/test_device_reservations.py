"""What is kept of GPUs for those who wait, and what is not, as nobody knows when it would be of use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.placement.device_grants import DeviceDemand, DeviceGrant, choose_devices
from scanflow.placement.device_reservations import DeviceRequest, reserve_devices
from scanflow.testing.accelerators import GIB, make_gpu, make_mig_gpu

PART = "1g.10gb"


def hold(number: int, share: float = 1.0, **fields: object) -> DeviceGrant:
    uuid = make_gpu(number).uuid
    sharing = "exclusive" if share == 1 else "time slicing"
    memory = int(80 * GIB * share)
    grant = DeviceGrant(uuid=uuid, device=uuid, number=number, share=share, memory_bytes=memory, owner="run/a")
    return replace(grant, sharing=sharing, **fields)  # type: ignore[arg-type]


def keep(
    demand: DeviceDemand, held: list[DeviceGrant], *devices: Device, lasting: list[DeviceGrant] | None = None
) -> tuple[list[tuple[int, float]], Inventory, list[DeviceGrant]]:
    """Return the numbers and shares that are kept for one who waits, and all that one who comes later has beside it."""
    inventory = Inventory(devices=devices or (make_gpu(0), make_gpu(1)))
    request = DeviceRequest(who="run/b", demand=demand)
    lasting = lasting or []
    reserves = reserve_devices(inventory, [request], [*held, *lasting], lasting, is_foreign=lambda _: True)
    return [(grant.number, grant.share) for grant in reserves], inventory, [*held, *lasting, *reserves]


@pytest.mark.parametrize(
    ("demand", "held", "reserves"),
    [
        (DeviceDemand(count=2), [hold(0)], [(1, 1.0)]),
        (DeviceDemand(count=2), [hold(0), hold(1)], []),
        (DeviceDemand(copies=2), [hold(0)], [(1, 1.0)]),
        (DeviceDemand(), [hold(0), hold(1, 0.25)], [(1, 0.75)]),
        (DeviceDemand(share=0.75), [hold(0, 0.5), hold(1)], [(0, 0.5)]),
        (DeviceDemand(share=0.5, copies=3), [hold(0, 0.5), hold(1, 0.5)], [(0, 0.5), (1, 0.5)]),
    ],
)
def test_what_is_free_of_what_it_needs_is_kept_and_nothing_else(
    demand: DeviceDemand, held: list[DeviceGrant], reserves: list[tuple[int, float]]
) -> None:
    shares, inventory, beside = keep(demand, held)
    assert shares == reserves
    assert isinstance(choose_devices(inventory, DeviceDemand(share=0.25), beside), str), "a later one gets nothing"


def test_one_that_comes_later_reads_for_whom_a_device_is_kept() -> None:
    _, inventory, beside = keep(DeviceDemand(count=2), [hold(0)])
    why = "GPU 0 is granted to run/a; GPU 1 is kept for run/b, which waits for gpu=2"
    assert choose_devices(inventory, DeviceDemand(), beside) == why


def test_a_part_is_kept_and_no_whole_device_for_it() -> None:
    devices = make_gpu(0), make_mig_gpu(1, PART, 2)
    taken = replace(hold(1), uuid=devices[1].mig_instances[0].uuid, sharing="mig")
    assert keep(DeviceDemand(profile=PART), [taken], *devices)[0] == [(1, 1.0)]
    other = replace(taken, uuid=devices[1].mig_instances[1].uuid)
    shares, inventory, beside = keep(DeviceDemand(profile=PART), [taken, other], *devices)
    assert shares == []
    assert not isinstance(choose_devices(inventory, DeviceDemand(), beside), str)


@pytest.mark.parametrize("demand", [DeviceDemand(count=2), DeviceDemand(share=0.5, copies=4)])
def test_nothing_is_kept_for_one_that_waits_for_a_service_or_a_program_of_others(demand: DeviceDemand) -> None:
    assert keep(demand, [], lasting=[hold(0)])[0] == []
    program = DeviceProcess(pid=1, name="notebook")
    assert keep(demand, [], make_gpu(0, processes=(program,)), make_gpu(1))[0] == []
    assert keep(demand, [], make_gpu(0, fault="GPU is lost"), make_gpu(1))[0] == []


def test_a_device_that_a_service_has_a_share_of_is_not_kept_for_a_whole_one() -> None:
    assert keep(DeviceDemand(), [hold(1)], lasting=[hold(0, 0.5)])[0] == []
    assert keep(DeviceDemand(share=0.5), [hold(1)], lasting=[hold(0, 0.5)])[0] == [(0, 0.5)]
