"""The port for accelerators: an inventory of a machine's GPUs, as it is now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that computes on a device."""

    pid: int
    memory_bytes: int | None = None
    """The device's memory that it holds; None: the driver does not say."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A part that a device was cut into, with memory and processors of its own (NVIDIA's Multi-Instance GPU)."""

    uuid: str
    profile: str
    """As ``1g.10gb``: sevenths of the processors, and gigabytes."""

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU."""

    number: int
    """Its number in the driver's list, as in ``nvidia-smi``."""

    uuid: str
    name: str = ""
    memory_bytes: int | None = None
    """None: unknown, as where it shares the machine's memory."""

    memory_used_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    """Those that compute on it; of a device that is cut, those of its parts are theirs."""

    mig_enabled: bool = False
    """Whether it is cut into parts, so that it cannot be used as a whole."""

    mig_instances: tuple[MigInstance, ...] = ()
    numa_node: int | None = None
    """The NUMA node of the cores that are near it; None: unknown, or the machine has one."""

    busy_share: float | None = None
    """The share of the last moment in which it computed, 0 to 1; None: it does not say, as one that is cut."""

    power_w: float | None = None
    energy_j: float | None = None
    """What it took since its driver was loaded, which only grows."""

    fault: str = ""
    """Why it cannot be used, in the driver's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A machine's GPUs that this process may use."""

    devices: tuple[Device, ...] = ()
    driver: str = ""
    absence: str = ""
    """Why none can be read, and what to do; empty if there are some."""

    hidden: str = ""
    """Which others this process may not use, and why."""

    mps_directory: str | None = None
    """The pipe directory of the running control daemon of NVIDIA's Multi-Process Service; None: none runs."""

    sees_processes: bool = True
    """Whether the process ids of devices are those of this machine; in a container with its own, they are not."""


class Accelerators(Protocol):
    """The accelerators of this machine. Safe to call from several threads."""

    def read(self) -> Inventory:
        """Return what there is now. A device that fails is listed with its fault; it raises nothing."""
        ...


class NoAccelerators:
    """See :class:`Accelerators`: there are none."""

    def __init__(self, absence: str) -> None:
        self._inventory = Inventory(absence=absence)

    def read(self) -> Inventory:
        return self._inventory
