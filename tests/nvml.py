"""A machine with GPUs for tests: a stub of NVIDIA's library, which the real ``nvidia-ml-py`` loads in a process."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory, MigInstance
from tests.waiting import PATIENCE_S

SOURCE = Path(__file__).with_name("nvml_stub.c")
GPU_IS_LOST = 15
READ = """
import os, pickle, sys
from pathlib import Path
from scanflow.accelerators.nvml import NvmlAccelerators, read_accelerators
accelerators = read_accelerators()
if root := os.environ.get("TEST_ROOT"):
    folders = Path(root, "sys/bus/pci/devices"), Path(root, "proc")
    accelerators = NvmlAccelerators(os.environ, pci_devices=folders[0], proc=folders[1])
sys.stdout.buffer.write(pickle.dumps(accelerators.read()))
"""


@functools.cache
def build_stub() -> Path:
    """Compile the stub, once; return its folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    folder = Path(tempfile.mkdtemp(prefix="scanflow-nvml-"))
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return folder


class StubbedMachine:
    """GPUs that programs see which are started with its variables."""

    def __init__(self, folder: Path, *devices: Device, driver: str = "580.0") -> None:
        self._file, self._driver = folder / "nvml.txt", driver
        self.variables = {
            "LD_LIBRARY_PATH": str(build_stub()),
            "NVML_STUB": str(self._file),
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"),
        }
        self.set_devices(*devices)

    def set_devices(self, *devices: Device) -> None:
        lines = [f"driver {self._driver}", *(line for device in devices for line in _format_device(device))]
        unfinished = self._file.with_suffix(".part")
        unfinished.write_text("\n".join(lines) + "\n")
        unfinished.replace(self._file)

    def start_mps(self) -> None:
        """Leave what a running control daemon of the Multi-Process Service leaves; its process is this one."""
        folder = Path(self.variables["CUDA_MPS_PIPE_DIRECTORY"])
        folder.mkdir()
        (folder / "control").touch()
        (folder / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))

    def read(self, **environ: str) -> Inventory:
        """Read the inventory as a process of its own does."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        variables = {**inherited, **self.variables, **environ}
        process = subprocess.run(
            [sys.executable, "-c", READ], env=variables, check=True, capture_output=True, timeout=PATIENCE_S
        )
        inventory: Inventory = pickle.loads(process.stdout)
        return inventory


def _format_device(device: Device) -> list[str]:
    bus, fault = f"00000000:{device.number + 1:02x}:00.0", GPU_IS_LOST if device.fault else 0
    memory = f"{device.memory_bytes or 0} {device.memory_used_bytes or 0}"
    return [
        f"gpu {device.uuid} {memory} {bus} {int(device.mig_enabled)} {fault} {device.name}",
        *([] if device.busy_share is None else [_format_load(device)]),
        *map(_format_process, device.processes),
        *(line for part in device.mig_instances for line in _format_part(device, part)),
    ]


def _format_load(device: Device) -> str:
    numbers = 100 * (device.busy_share or 0), 1000 * (device.power_w or 0), 1000 * (device.energy_j or 0)
    return f"load {' '.join(str(round(number)) for number in numbers)}"


def _format_part(device: Device, part: MigInstance) -> list[str]:
    line = f"part {part.uuid} {part.memory_bytes} {part.memory_used_bytes} {device.name} MIG {part.profile}"
    return [line, *map(_format_process, part.processes)]


def _format_process(process: DeviceProcess) -> str:
    return f"process {process.pid} {-1 if process.memory_bytes is None else process.memory_bytes}"
