"""A double of a machine's accelerators, and the contract of all implementations.

Subclass the suite and give it the fixture ``machine``: a function that makes the accelerators of an inventory.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

from scanflow.accelerators.accelerator_port import Accelerators, Device, DeviceProcess, Inventory, MigInstance

__all__ = ["AcceleratorsContract", "FakeAccelerators"]

Machine: TypeAlias = Callable[[Inventory], Accelerators]

GIB = 2**30


def make_gpu(number: int = 0, *, memory: int = 80 * GIB, name: str = "NVIDIA H100", **fields: object) -> Device:
    """Return a device; its UUID follows from its number."""
    device = Device(
        number=number,
        uuid=f"GPU-{number:08d}-aaaa-bbbb-cccc-0123456789ab",
        name=name,
        memory_bytes=memory,
        memory_used_bytes=0,
    )
    return replace(device, **fields)  # type: ignore[arg-type]


def make_mig_gpu(number: int, profile: str, count: int, *, memory: int = 10 * GIB) -> Device:
    """Return a device that is cut into ``count`` equal parts."""
    parts = tuple(
        MigInstance(uuid=f"MIG-{number:04d}{part:04d}-aaaa", profile=profile, memory_bytes=memory, memory_used_bytes=0)
        for part in range(count)
    )
    return make_gpu(number, mig_enabled=True, mig_instances=parts)


class FakeAccelerators:
    """See :class:`~scanflow.accelerators.accelerator_port.Accelerators`: what a test says there is, and nothing
    else."""

    def __init__(self, *devices: Device, mps_directory: str | None = None, sees_processes: bool = True) -> None:
        self.inventory = Inventory(
            devices=devices,
            driver="580.0",
            absence="" if devices else "the test has none.",
            mps_directory=mps_directory,
            sees_processes=sees_processes,
        )

    def read(self) -> Inventory:
        """Return the inventory that was handed in."""
        return self.inventory

    def change(self, number: int, **fields: object) -> None:
        """Change a device: ``processes``, ``fault`` or another field."""
        self.inventory = replace(
            self.inventory,
            devices=tuple(
                replace(device, **fields) if device.number == number else device  # type: ignore[arg-type]
                for device in self.inventory.devices
            ),
        )


class AcceleratorsContract:
    """What every implementation holds."""

    def test_no_device_is_explained(self, machine: Machine) -> None:
        read = machine(Inventory(absence="there is none")).read()
        assert read.devices == ()
        assert read.absence

    def test_devices_are_read_as_they_are(self, machine: Machine) -> None:
        devices = (
            make_gpu(0, memory_used_bytes=3 * GIB, processes=(DeviceProcess(pid=1, memory_bytes=2 * GIB),)),
            make_gpu(1),
        )
        read = machine(Inventory(devices=devices, driver="580.0")).read()
        assert (read.driver, read.absence) == ("580.0", "")
        assert [_strip_names(device) for device in read.devices] == list(devices)

    def test_parts_of_a_device_are_read_with_their_profiles(self, machine: Machine) -> None:
        device = make_mig_gpu(0, "1g.10gb", 3)
        (read,) = machine(Inventory(devices=(device,), driver="580.0")).read().devices
        assert read.mig_enabled
        assert read.mig_instances == device.mig_instances

    def test_a_device_that_failed_is_listed_with_its_fault(self, machine: Machine) -> None:
        devices = (make_gpu(0, fault="GPU is lost"), make_gpu(1))
        read = machine(Inventory(devices=devices, driver="580.0")).read().devices
        assert [bool(device.fault) for device in read] == [True, False]
        assert read[0].uuid == devices[0].uuid

    def test_how_busy_a_device_is_and_what_it_takes_is_read_where_it_says(self, machine: Machine) -> None:
        devices = (make_gpu(0, busy_share=0.93, power_w=412.5, energy_j=1.5e6), make_gpu(1))
        read = machine(Inventory(devices=devices, driver="580.0")).read().devices
        assert [(device.busy_share, device.power_w, device.energy_j) for device in read] == [
            (0.93, 412.5, 1.5e6),
            (None, None, None),
        ]

    def test_memory_that_is_unknown_is_none(self, machine: Machine) -> None:
        device = make_gpu(0, memory_bytes=None, memory_used_bytes=None)
        (read,) = machine(Inventory(devices=(device,), driver="580.0")).read().devices
        assert (read.memory_bytes, read.memory_used_bytes) == (None, None)

    def test_a_process_may_not_say_how_much_memory_it_holds(self, machine: Machine) -> None:
        device = make_gpu(0, processes=(DeviceProcess(pid=1),))
        (read,) = machine(Inventory(devices=(device,), driver="580.0")).read().devices
        assert read.processes[0].memory_bytes is None

    def test_several_threads_read_the_same(self, machine: Machine) -> None:
        accelerators = machine(Inventory(devices=(make_gpu(0), make_gpu(1)), driver="580.0"))
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(lambda _: accelerators.read(), range(4)))) == 1


def _strip_names(device: Device) -> Device:
    return replace(device, processes=tuple(replace(process, name="") for process in device.processes))
