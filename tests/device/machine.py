"""A home on this machine's real GPUs, whose steps are scripts with PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.accelerators.accelerator_port import Inventory
from scanflow.accelerators.mps import find_mps_directory
from scanflow.accelerators.nvml import read_accelerators
from scanflow.backends.local.batch.backend import LocalBackend
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Event, RunRecord
from scanflow.settings import Settings
from tests.waiting import PATIENCE_S, wait_until

MPS_CONTROL = "nvidia-cuda-mps-control"


def read_inventory() -> Inventory:
    return read_accelerators().read()


class DeviceMachine:
    """Runs batch workflows, whose scripts lie in ``folder``, and keeps what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, list[Event]()
        self.backend = LocalBackend(Settings(home=folder / "home", slots=16))

    def run(self, *steps: sf.Executor, observe: Callable[[Event], None] = lambda _: None) -> RunRecord:
        def note(event: Event) -> None:
            self.events.append(event)
            observe(event)

        workflow = sf.Workflow(name="w", nodes=steps)
        app = sf.Application(name="device", workflows=[workflow], app_dir=str(self.folder))
        entered = self.backend.enter(RunDefinition(app, workflow))
        return self.backend.drive(entered.name, environment=lambda _: {}, observe=note)

    def read_output(self, record: RunRecord, step: str) -> str:
        """Return what the first attempt of a task printed."""
        return (Path(record.folder) / "steps" / step / "1" / "stdout.log").read_text(encoding="utf-8")


def make_step(name: str, file: str, **resources: Any) -> sf.Executor:
    return sf.Executor(name=name, mainfile=file, resources=sf.Resources(**resources))


@contextmanager
def start_mps(folder: Path) -> Iterator[None]:
    """Run the control daemon of NVIDIA's Multi-Process Service inside the context, in a folder of its own."""
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "mps-log")}
    before = {name: os.environ.get(name) for name in variables}
    for path in variables.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    os.environ.update(variables)
    try:
        subprocess.run([MPS_CONTROL, "-d"], check=True, timeout=PATIENCE_S)
        wait_until(lambda: find_mps_directory(os.environ), "the Multi-Process Service runs")
        yield
    finally:
        subprocess.run([MPS_CONTROL], input="quit\n", text=True, check=False, timeout=PATIENCE_S)
        wait_until(lambda: find_mps_directory(os.environ) is None, "the Multi-Process Service has ended")
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def has_mps() -> bool:
    return shutil.which(MPS_CONTROL) is not None
