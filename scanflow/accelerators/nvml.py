"""NVIDIA's GPUs, through its management library: the one door to ``pynvml``."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from scanflow.accelerators.accelerator_port import (
    Accelerators,
    Device,
    DeviceProcess,
    Inventory,
    MigInstance,
    NoAccelerators,
)
from scanflow.accelerators.bounded_calls import BoundedCalls, HangingError
from scanflow.accelerators.mps import find_mps_directory
from scanflow.accelerators.visible import LIBRARY, restrict_to_visible
from scanflow.installation import explain_install

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
PROC: Final = Path("/proc")
_INITIAL_PIDS: Final = "pid:[4026531836]"
"""The process ids of the machine itself: PROC_PID_INIT_INO of the kernel."""

_CALLS: Final = BoundedCalls[Inventory](first_s=10.0, later_s=3.0)
"""Those of this process: a driver that hangs does so for whoever asks. The first call may have to wake the devices; the
later bound is shorter than the silence after which a service's supervisor takes an instance for dead."""

_PROFILE = re.compile(r"MIG ([0-9]+g\.[0-9]+gb\S*)\s*$", re.IGNORECASE)
_T = TypeVar("_T")


def read_accelerators(environ: Mapping[str, str] | None = None) -> Accelerators:
    """Return this machine's accelerators; without a driver that takes no longer than looking for its library."""
    import ctypes
    from importlib.util import find_spec

    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return NoAccelerators(
            f"NVIDIA's driver is not installed: {LIBRARY} is not found. A container needs to be started with GPUs "
            "(--gpus all)."
        )
    if find_spec("pynvml") is None:
        return NoAccelerators(
            f"the package nvidia-ml-py, which reads which GPUs there are, is not installed. {explain_install('gpu')}"
        )
    return NvmlAccelerators(os.environ if environ is None else environ)


class NvmlAccelerators:
    """See :class:`~scanflow.accelerators.accelerator_port.Accelerators`. It holds the library open, as opening it takes
    long."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        pci_devices: Path = PCI_DEVICES,
        proc: Path = PROC,
        calls: BoundedCalls[Inventory] = _CALLS,
    ) -> None:
        self._environ, self._pci_devices, self._proc, self._calls = environ, pci_devices, proc, calls
        self._opened = False

    def read(self) -> Inventory:
        import pynvml

        try:
            inventory = self._calls.call(partial(self._read, pynvml))
        except HangingError as error:
            return Inventory(absence=_explain_hanging(error))
        except pynvml.NVMLError as error:
            return Inventory(absence=_explain_failure(error))
        return restrict_to_visible(inventory, self._environ) if inventory.devices else inventory

    def _read(self, nvml: Any) -> Inventory:
        if not self._opened:
            nvml.nvmlInit()
            self._opened = True
        driver = str(nvml.nvmlSystemGetDriverVersion())
        devices = tuple(self._read_device(nvml, number) for number in range(nvml.nvmlDeviceGetCount()))
        return Inventory(
            devices=devices,
            driver=driver,
            absence="" if devices else f"NVIDIA's driver {driver} finds no GPU.",
            mps_directory=find_mps_directory(self._environ),
            sees_processes=_read_pid_namespace(self._proc) == _INITIAL_PIDS,
        )

    def _read_device(self, nvml: Any, number: int) -> Device:
        uuid = name = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            name = str(nvml.nvmlDeviceGetName(handle))
            memory = _read_memory(nvml, handle)
            mode = _try(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
            return Device(
                number=number,
                uuid=uuid,
                name=name,
                memory_bytes=memory[0],
                memory_used_bytes=memory[1],
                processes=self._read_processes(nvml, handle),
                mig_enabled=bool(mode),
                mig_instances=self._read_mig_instances(nvml, handle) if mode else (),
                numa_node=self._read_numa_node(nvml, handle),
                busy_share=_read_scaled(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu, 100),
                power_w=_read_scaled(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1000),
                energy_j=_read_scaled(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle), 1000),
            )
        except nvml.NVMLError as error:
            return Device(number=number, uuid=uuid, name=name, fault=str(error))

    def _read_mig_instances(self, nvml: Any, handle: Any) -> tuple[MigInstance, ...]:
        instances = []
        for number in range(_try(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            part = _try(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
            if part is None:  # a place that no part takes
                continue
            profile = _PROFILE.search(str(nvml.nvmlDeviceGetName(part)))
            memory = _read_memory(nvml, part)
            instances.append(
                MigInstance(
                    uuid=str(nvml.nvmlDeviceGetUUID(part)),
                    profile=profile[1].lower() if profile else "",
                    memory_bytes=memory[0],
                    memory_used_bytes=memory[1],
                    processes=self._read_processes(nvml, part),
                )
            )
        return tuple(instances)

    def _read_processes(self, nvml: Any, handle: Any) -> tuple[DeviceProcess, ...]:
        running = _try(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        return tuple(
            DeviceProcess(pid=process.pid, memory_bytes=process.usedGpuMemory, name=self._read_name(process.pid))
            for process in running
        )

    def _read_name(self, pid: int) -> str:
        try:
            return (self._proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def _read_numa_node(self, nvml: Any, handle: Any) -> int | None:
        bus = _try(nvml, lambda: str(nvml.nvmlDeviceGetPciInfo(handle).busId).lower())
        if bus is None:
            return None
        try:
            node = int((self._pci_devices / bus[-12:] / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


def _read_memory(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    memory = _try(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return (None, None) if memory is None else (int(memory.total), int(memory.used))


def _read_scaled(nvml: Any, read: Callable[[], int], parts: int) -> float | None:
    """Return a number of which NVML gives ``parts`` to one: percents, milliwatts, millijoules."""
    number = _try(nvml, read)
    return None if number is None else number / parts


def _try(nvml: Any, read: Callable[[], _T]) -> _T | None:
    """Return a fact, or None where the driver or device does not have it; faults are raised."""
    missing = (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
    try:
        return read()
    except nvml.NVMLError as error:
        if getattr(error, "value", None) in missing:
            return None
        raise


def _explain_failure(error: Exception) -> str:
    advice = {
        "NVMLError_LibRmVersionMismatch": " The driver was updated since the machine started: restart it.",
        "NVMLError_DriverNotLoaded": " Load its kernel module, or restart the machine.",
        "NVMLError_NoPermission": " Ask for access to /dev/nvidia*.",
    }.get(type(error).__name__, "")
    return f"NVIDIA's driver does not answer: {str(error).rstrip('.')}.{advice}"


def _explain_hanging(error: HangingError) -> str:
    return (
        f"NVIDIA's driver does not answer for {error.waited_s:g} s. If nvidia-smi hangs as well, see what the kernel "
        "says (dmesg | grep -i nvrm), and reset the GPU (nvidia-smi --gpu-reset) or restart the machine."
    )


def _read_pid_namespace(proc: Path) -> str:
    with contextlib.suppress(OSError):
        return str((proc / "self" / "ns" / "pid").readlink())
    return ""
