"""Affinity, granularity and over-subscription of HPC Challenge (thesis chapter 3)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scanflow.app.application import Application
from scanflow.app.mpi import MPIWorkload
from scanflow.app.workflow import Workflow
from scanflow.characterization.characterization_study import rotate
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import StepFailedError
from scanflow.settings import Settings
from scanflow_research.experiment import Experiment, MeasureRound, Observe, find_core_problem
from scanflow_research.figure import Round

SIZE = 1800
"""The size of HPCC's matrix."""

TIMEOUT_S = 300.0

_INPUT = (
    "one\ntwo\nthree\n6 output\n1 sizes\n{size}\n1 blocks\n80\n0 mapping\n1 grids\n{rows}\n{columns}\n16.0\n"
    + "\n".join("1 2 1 4 1 2 1 1 1 1 1 0 2 64 0 0 1 8 separator 0 0 0 0".split())
)
METRICS: Mapping[str, str] = {
    "dgemm": "StarDGEMM_Gflops",
    "stream": "StarSTREAM_Triad",
    "fft": "MPIFFT_Gflops",
    "ptrans": "PTRANS_GBs",
    "random_access": "MPIRandomAccess_GUPs",
    "ring": "RandomlyOrderedRingBandwidth_GBytes",
    "pingpong": "AvgPingPongBandwidth_GBytes",
}
"""Keys in ``hpccoutf.txt`` by metric name."""

_PROGRAM = """#!/bin/sh
cd "{folder}" && exec {counter}{hpcc}
"""
_COUNTER = 'perf stat -x, -o "counts.$$" -e context-switches,cpu-migrations -- '


def find_problem() -> str | None:
    for program, package in (("mpirun", "openmpi-bin"), ("hpcc", "hpcc")):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install {package}"
    return find_core_problem()


def define_arms(cores: int) -> dict[str, dict[str, Any]]:
    """Return the workload of each arm: exactly subscribed (E) and over-subscribed (O) with twice as many ranks as
    cores, in one container or in one for each core, and the affinity (Fig. 3.30)."""
    arms: dict[str, dict[str, Any]] = {}
    for letter, tasks in (("E", cores), ("O", 2 * cores)):
        arms[f"{letter}1 ANY"] = {"n_tasks": tasks, "n_workers": 1, "affinity": "any"}
        if letter == "E":
            arms["E1 CPUMEM"] = {"n_tasks": tasks, "n_workers": 1, "affinity": "cpumem"}
        arms[f"{letter}2 CPUMEM"] = {"n_tasks": tasks, "n_workers": cores, "affinity": "cpumem"}
        arms[f"{letter}2 CPUMEMPIN"] = {"n_tasks": tasks, "n_workers": cores, "affinity": "cpumempin"}
    return arms


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    from scanflow.placement.sysfs import read_topology

    cores = read_topology().effective_count
    arms = define_arms(cores)
    with TemporaryDirectory(prefix="scanflow-reproduce-") as place:
        deployer = EmbeddedDeployer(Settings(home=Path(place) / "home", backend="local"))

        def measure_arm(name: str, turn: int) -> dict[str, float]:
            folder = Path(place) / f"{name.replace(' ', '-').lower()}-{turn}"
            if name in arms:
                return run_workload(deployer, folder, arms[name])
            return run_bare(folder, 2 * cores, yields=name == "yields")

        def measure_round(number: int) -> Round:
            measured = {}
            for name in rotate([*arms, "yields", "does not yield"], number):
                observe(name)
                measured[name] = measure_arm(name, number)
            return Round(arms={name: measured[name] for name in (*arms, "yields", "does not yield")})

        yield measure_round


def write_input(folder: Path, tasks: int) -> None:
    """Write HPCC's input file: the size, and a grid of all ranks."""
    folder.mkdir(parents=True)
    rows = max(part for part in range(1, int(tasks**0.5) + 1) if tasks % part == 0)
    text = _INPUT.format(size=SIZE, rows=rows, columns=tasks // rows)
    (folder / "hpccinf.txt").write_text(text + "\n", encoding="ascii")


def run_workload(deployer: EmbeddedDeployer, folder: Path, fields: Mapping[str, Any]) -> dict[str, float]:
    """Run HPCC as an MPI job of scanflow, and return its metrics, context switches and migrations."""
    write_input(folder, fields["n_tasks"])
    program = folder / "program" / "hpcc-here"
    program.parent.mkdir()
    counter = _COUNTER if shutil.which("perf") else ""
    program.write_text(_PROGRAM.format(folder=folder, counter=counter, hpcc=shutil.which("hpcc")), encoding="utf-8")
    program.chmod(0o755)
    workload = MPIWorkload(
        name="hpcc", mainfile="hpcc-here", oversubscribe=True, flavor="openmpi", timeout=TIMEOUT_S, **fields
    )
    app = Application(
        name="reproduce", app_dir=program.parent, workflows=[Workflow(name="hpcc", type="mpi", nodes=[workload])]
    )
    record = deployer.run(RunRequest(app, "hpcc"))
    if record.state != "succeeded":
        raise StepFailedError(f"HPCC failed as {dict(fields)}: {record.error}")
    return read_output(folder)


def run_bare(folder: Path, tasks: int, *, yields: bool) -> dict[str, float]:
    """Run HPCC by ``mpirun`` alone, its idle ranks in degraded mode (they yield) or in aggressive mode."""
    write_input(folder, tasks)
    command = ["mpirun", "--host", f"localhost:{tasks}", "-np", str(tasks), "--bind-to", "none"]
    command += ["--mca", "mpi_yield_when_idle", str(int(yields)), str(shutil.which("hpcc"))]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **allowed}, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise StepFailedError(f"mpirun ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    return read_output(folder)


def read_output(folder: Path) -> dict[str, float]:
    """Return the metrics that HPCC wrote, and the counters of ``perf``."""
    text = (folder / "hpccoutf.txt").read_text(encoding="utf-8", errors="replace")
    metrics: dict[str, float] = {}
    for name, key in METRICS.items():
        match = re.search(rf"^{key}=(.+)$", text, re.MULTILINE)
        if match:
            metrics[name] = float(match[1])
    for file in folder.glob("counts.*"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            cells = line.split(",")
            if len(cells) > 2 and cells[0].isdecimal():
                name = "switches" if cells[2].startswith("context") else "migrations"
                metrics[name] = metrics.get(name, 0.0) + float(cells[0])
    return metrics


EXPERIMENT = Experiment(
    name="hpc",
    method=(
        f"Debian's HPC Challenge with a matrix of {SIZE}×{SIZE}, as our MPI jobs: as many ranks as cores (E) and "
        "twice as many (O), in one worker (E1, O1) or in one for each core (E2, O2); a worker is a group of processes "
        "with CPUs of its own that share memory, as under Singularity. By mpirun alone, over-subscribed, with ranks "
        "that yield while they wait and that do not. Context switches and migrations by perf, of all ranks of the "
        "whole run, as HPCC cannot run a single section."
    ),
    rounds=4,
    round_s=100.0,
    find_problem=find_problem,
    open=open_rounds,
)
