"""The energy that a service's GPUs take, by the counters of their driver."""

from __future__ import annotations

from collections.abc import Callable

from scanflow.accelerators.accelerator_port import Accelerators
from scanflow.accelerators.nvml import read_accelerators
from scanflow.app.resources import MIN_GPU_SHARE
from scanflow.backends.service_records import ServiceRecord

_ROUNDING = 1e-9


def list_own_devices(record: ServiceRecord) -> set[str]:
    """Return the UUIDs of the GPUs of this machine that the instances of a service have for themselves: whole ones, and
    those of which their shares leave less than anybody else can get."""
    shares: dict[str, float] = {}
    for use in (use for instance in record.instances if instance.place is None for use in instance.devices):
        if use.sharing != "mig":
            shares[use.uuid] = shares.get(use.uuid, 0.0) + use.share
    return {uuid for uuid, share in shares.items() if 1 - share < MIN_GPU_SHARE - _ROUNDING}


class EnergyMeter:
    """Counts the energy of GPUs from now on, of all that is done on them."""

    def __init__(self, uuids: set[str], find: Callable[[], Accelerators] = read_accelerators) -> None:
        self._uuids = uuids
        self._accelerators = find() if uuids else None
        self._began = self._read()

    def read_j(self) -> float | None:
        """Return the joules since the beginning; None: there are no such GPUs, one does not count, or its driver was
        loaded anew."""
        now = self._read()
        return None if now is None or self._began is None or now < self._began else now - self._began

    def _read(self) -> float | None:
        if self._accelerators is None:
            return None
        devices = [device for device in self._accelerators.read().devices if device.uuid in self._uuids]
        counters = [device.energy_j for device in devices if device.energy_j is not None]
        return sum(counters) if len(counters) == len(self._uuids) else None
