"""A machine with GPUs for tests: a stub of NVIDIA's library, which the real ``nvidia-ml-py`` loads in a process."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory, MigInstance
from tests.waiting import PATIENCE_S

SOURCE = Path(__file__).with_name("nvml_stub.c")
GPU_IS_LOST = 15
READ = """
import os, pickle, sys
from pathlib import Path
from scanflow.accelerators.bounded_calls import BoundedCalls
from scanflow.accelerators.nvml import NvmlAccelerators, read_accelerators
accelerators = read_accelerators()
if bound := os.environ.get("TEST_BOUND_S"):
    accelerators = NvmlAccelerators(os.environ, calls=BoundedCalls(first_s=float(bound), later_s=float(bound)))
if root := os.environ.get("TEST_ROOT"):
    folders = Path(root, "sys/bus/pci/devices"), Path(root, "proc")
    accelerators = NvmlAccelerators(os.environ, pci_devices=folders[0], proc=folders[1])
for _ in sys.stdin:
    pickle.dump(accelerators.read(), sys.stdout.buffer)
    sys.stdout.buffer.flush()
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
        self._file, self._hanging, self._driver = folder / "nvml.txt", folder / "hanging", driver
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

    def hang(self) -> None:
        """Let every call of the library hang, until the devices are set again and :meth:`answer` lets them return."""
        unfinished = self._file.with_suffix(".part")
        os.mkfifo(unfinished)
        os.link(unfinished, self._hanging)
        unfinished.replace(self._file)

    def answer(self) -> None:
        """Let the calls return that hang: they fail."""
        os.close(os.open(self._hanging, os.O_WRONLY))
        self._hanging.unlink()

    def start_mps(self) -> None:
        """Leave what a running control daemon of the Multi-Process Service leaves; its process is this one."""
        folder = Path(self.variables["CUDA_MPS_PIPE_DIRECTORY"])
        folder.mkdir()
        (folder / "control").touch()
        (folder / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))

    def read(self, **environ: str) -> Inventory:
        """Read the inventory as a process of its own does."""
        with self.open_reader(**environ) as read:
            return read()

    @contextmanager
    def open_reader(self, **environ: str) -> Iterator[Callable[[], Inventory]]:
        """Start a process, and give what reads the inventory in it; it has to end by itself in time."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        variables = {**inherited, **self.variables, **environ}
        with subprocess.Popen(
            [sys.executable, "-c", READ], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            requests, answers = process.stdin, process.stdout
            assert requests is not None
            assert answers is not None

            def read() -> Inventory:
                requests.write(b"\n")
                requests.flush()
                inventory: Inventory = pickle.load(answers)
                return inventory

            try:
                yield read
                requests.close()
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()


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
