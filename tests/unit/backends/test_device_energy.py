"""The energy of a service's GPUs: of its own, and only where the driver counts it."""

from __future__ import annotations

import pytest

from scanflow.backends.device_energy import EnergyMeter, list_own_devices
from scanflow.backends.run_records import DeviceUse
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, Shape
from scanflow.testing.accelerators import FakeAccelerators, make_gpu

FIRST, SECOND = make_gpu(0, energy_j=1000.0), make_gpu(1, energy_j=5.0)


def make_instance(name: str, *devices: DeviceUse, place: str | None = None) -> InstanceRecord:
    record = InstanceRecord(instance=name, state="ready", place=place)
    return record.with_details(devices=[device.model_dump() for device in devices])


def test_only_gpus_of_this_machine_that_a_service_has_for_itself_are_counted() -> None:
    own, shared, part = (
        DeviceUse(number=number, uuid=f"GPU-{number}", sharing=sharing, share=share)
        for number, (sharing, share) in enumerate((("exclusive", 1.0), ("mps", 0.98), ("mig", 1.0)))
    )
    instances = (make_instance("a", own, shared, part), make_instance("b", own, place="node1"), make_instance("c"))
    shape = Shape(instances=3)
    record = ServiceRecord(
        name="digits", url="", app="a", team="t", state="ready", generation=1, shape=shape, instances=instances
    )
    assert list_own_devices(record) == {"GPU-0"}
    assert list_own_devices(record.model_copy(update={"instances": instances[1:]})) == set()


@pytest.mark.parametrize(("count", "share", "own"), [(4, 0.25, True), (3, 0.333333, True), (3, 0.33, False)])
def test_a_gpu_that_instances_share_so_that_no_other_can_is_their_own(count: int, share: float, own: bool) -> None:
    use = DeviceUse(number=0, uuid="GPU-0", sharing="mps", share=share)
    instances = tuple(make_instance(str(number), use) for number in range(count))
    record = ServiceRecord(
        name="digits",
        url="",
        app="a",
        team="t",
        state="ready",
        generation=1,
        shape=Shape(instances=count),
        instances=instances,
    )
    assert list_own_devices(record) == ({"GPU-0"} if own else set())


def test_what_gpus_take_is_the_growth_of_their_counters() -> None:
    gpus = FakeAccelerators(FIRST, SECOND, make_gpu(2, energy_j=1.0))
    meter = EnergyMeter({FIRST.uuid, SECOND.uuid}, lambda: gpus)
    assert meter.read_j() == 0.0
    for number, energy in enumerate((1200.0, 55.0, 9e9)):
        gpus.change(number, energy_j=energy)
    assert meter.read_j() == pytest.approx(250.0)


def test_what_does_not_count_is_unknown_and_not_nothing() -> None:
    gpus = FakeAccelerators(FIRST, make_gpu(1))
    assert EnergyMeter({FIRST.uuid, SECOND.uuid}, lambda: gpus).read_j() is None
    assert EnergyMeter({"GPU-gone"}, lambda: gpus).read_j() is None
    meter = EnergyMeter({FIRST.uuid}, lambda: gpus)
    gpus.change(0, energy_j=None)
    assert meter.read_j() is None
    gpus.change(0, energy_j=10.0)  # the driver was loaded anew
    assert meter.read_j() is None


def test_nothing_is_read_where_there_are_none() -> None:
    def fail() -> FakeAccelerators:
        raise AssertionError

    assert EnergyMeter(set(), fail).read_j() is None
