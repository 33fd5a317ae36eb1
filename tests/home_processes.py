"""The processes of a home by their kind, as its own records have them, so that a test can kill one of each."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.processes.identity import read_start_time

ATTEMPTS: Mapping[str, str] = {
    "server": "server/daemons/server/attempts/*",
    "MLflow": "server/daemons/tracker/attempts/*",
    "agent": "server/agents/*/*/attempts/*",
    "driver": "server/runs/*/*/attempts/*",
    "operation": "server/operations/*/attempts/*",
    "step": "environments/*/runs/*/steps/*/*",
    "instance": "services/*/instances/*/*",
}
"""Where the folders of each kind's attempts are: see ``scanflow/processes/shim.py``. Each has a shim's id, too."""

MPI_KINDS = ("mpirun", "rank")


class HomeProcess(NamedTuple):
    kind: str
    pid: int
    birth: str
    place: Path
    """The folder that names it."""

    def kill(self) -> bool:
        """Kill it, and return whether it was still this process."""
        if not self.birth or read_start_time(self.pid) != self.birth:
            return False
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def list_processes(home: Path) -> list[HomeProcess]:
    """Return the processes that run, each once."""
    listed = [*_list_recorded(home), *_list_supervisors(home)]
    listed += [process for step in listed if step.kind == "step" for process in _list_mpi(step)]
    return list({process.pid: process for process in listed if read_start_time(process.pid) == process.birth}.values())


def _list_recorded(home: Path) -> Iterator[HomeProcess]:
    for kind, pattern in ATTEMPTS.items():
        for folder in home.glob(pattern):
            if (folder / "exit").exists():
                continue
            try:
                started = json.loads((folder / "started").read_text())
            except (OSError, ValueError):  # it has not started, or is being removed
                continue
            yield HomeProcess(kind, started["pid"], started["birth"], folder)
            yield HomeProcess(f"shim of {kind}", started["shim"], started["shim_birth"], folder)


def _list_supervisors(home: Path) -> Iterator[HomeProcess]:
    services = ServicesHome(home / "services")
    for folder in map(services.service, services.list_names()):
        try:
            pid = int(folder.supervised.read_text())
        except (OSError, ValueError):
            continue
        yield HomeProcess("supervisor", pid, read_start_time(pid), folder.path)


def _list_mpi(step: HomeProcess) -> Iterator[HomeProcess]:
    try:
        children = psutil.Process(step.pid).children(recursive=True)
    except psutil.Error:
        return
    for child in children:
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        kind = "rank" if "rank.sh" in " ".join(words[:2]) else "mpirun" if "mpirun" in Path(words[0]).name else None
        if kind is not None:
            yield HomeProcess(kind, child.pid, read_start_time(child.pid), step.place)
