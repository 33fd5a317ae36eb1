"""Why a GPU that was granted cannot be used any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.backends.device_faults import end_readings, find_fault
from scanflow.backends.run_records import DeviceUse
from scanflow.placement.device_grants import DeviceGrant
from scanflow.testing.accelerators import make_gpu, make_mig_gpu

WHOLE, CUT = make_gpu(0), make_mig_gpu(1, "1g.10gb", 2)
GRANT = DeviceGrant(uuid=WHOLE.uuid, device=WHOLE.uuid, number=0)
PART = DeviceGrant(uuid=CUT.mig_instances[1].uuid, device=CUT.uuid, number=1, sharing="mig")


@pytest.mark.parametrize(
    ("inventory", "grant", "fault"),
    [
        (Inventory(devices=(WHOLE, CUT)), GRANT, None),
        (Inventory(devices=(WHOLE, CUT)), PART, None),
        (Inventory(devices=(replace(WHOLE, fault="GPU is lost"), CUT)), GRANT, "GPU is lost"),
        (Inventory(devices=(replace(WHOLE, fault="GPU is lost"), CUT)), PART, None),
        (Inventory(devices=(WHOLE, replace(CUT, fault="GPU is lost", mig_instances=()))), PART, "GPU is lost"),
        (Inventory(devices=(CUT,)), GRANT, "the driver does not list it any more"),
        (Inventory(devices=(replace(CUT, mig_instances=CUT.mig_instances[:1]),)), PART, "the GPU is not cut into this"),
        (Inventory(absence="The driver hangs. Restart it."), GRANT, "The driver hangs"),
    ],
)
def test_a_fault_is_that_of_the_device_or_of_the_driver(
    inventory: Inventory, grant: DeviceGrant, fault: str | None
) -> None:
    why = find_fault(inventory, grant)
    assert (why is None) is (fault is None)
    assert (why or "").startswith(fault or "")
    assert ". " not in (why or "")  # it is told on a line with others


def test_nothing_is_read_of_a_device_that_failed() -> None:
    use = DeviceUse(
        number=0, uuid=WHOLE.uuid, sharing="exclusive", used_bytes=1, busy_share=0.5, power_w=90, peak_bytes=2
    )
    assert end_readings(use, {WHOLE.uuid: "GPU is lost"}).model_dump(exclude_defaults=True) == {
        "number": 0,
        "uuid": WHOLE.uuid,
        "sharing": "exclusive",
        "peak_bytes": 2,
        "fault": "GPU is lost",
    }
