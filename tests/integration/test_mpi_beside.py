"""A real MPI job beside a real service and another job: each has cores of its own, and says why."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.local.mpi.claims import list_neighbours
from scanflow.placement.sysfs import read_topology
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("mpicc.openmpi") is None, reason="Open MPI is not installed"),
    pytest.mark.skipif(read_topology().effective_count < 2, reason="it takes two cores"),
]
KERNELS = Path(__file__).parents[2] / "tutorials" / "mpi" / "kernels.c"
APP = """
class Echo:
    def predict(self, inputs):
        return inputs
"""


def application(folder: Path) -> sf.Application:
    (folder / "echo.py").write_text(APP)
    (folder / "sleep.sh").write_text("#!/bin/sh\nexec sleep 100000\n")
    (folder / "sleep.sh").chmod(0o755)
    command = ["mpicc.openmpi", "-O2", "-o", "kernels", str(KERNELS), "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=patient(120))
    serve = sf.Service(name="echo", implementation="echo.py:Echo", resources=sf.Resources(cpu=1), affinity="cpu")
    dgemm = sf.MPIWorkload(
        name="dgemm", mainfile="kernels", parameters={"kernel": "dgemm", "rounds": 5}, n_tasks=1, profile="cpu"
    )
    idle = sf.MPIWorkload(name="idle", mainfile="sleep.sh", n_tasks=1, profile="cpu")
    return sf.Application(
        name="both",
        app_dir=folder,
        workflows=[
            sf.Workflow(name="serve", type="online", nodes=[serve]),
            sf.Workflow(name="job", type="mpi", nodes=[dgemm]),
            sf.Workflow(name="long", type="mpi", nodes=[idle]),
        ],
    )


def read_rank_cpu(client: sf.Client, run: str) -> str:
    (rank,) = [task for task in client.show(run).tasks if task.step == "ranks"]
    return str(rank.place)


def test_a_job_runs_on_a_core_that_no_service_has(home: Path, tmp_path: Path) -> None:
    app, client = application(tmp_path), sf.Client(progress=False)
    client.deploy(app, "serve")
    (service,) = list_neighbours(home)
    assert (service.name, len(service.cpus), service.service) == ("serve", 1, True)
    (free, *_) = [cpu for cpu in read_topology().effective_cpus if cpu not in service.cpus]
    notes = " ".join(client.plan(app, "job").steps[0].notes)
    assert f"rank 0 -> worker 0 on localhost -> CPU {free}" in notes
    assert "CPU-bound: packed onto the free cores of memory node 0" in notes
    run = client.run(app, "job")
    assert read_rank_cpu(client, run.name) == f"localhost, CPU {free}"
    assert "packed onto the free cores" in client.logs("dgemm")
    assert list_neighbours(home) == [service], "what has ended holds nothing"


def test_two_jobs_have_a_core_each_and_one_that_was_killed_has_none(home: Path, tmp_path: Path) -> None:
    app, client = application(tmp_path), sf.Client(progress=False)
    long = client.run(app, "long", wait=False)
    wait_until(lambda: list_neighbours(home), "the first job runs")
    (first,) = list_neighbours(home)
    assert (first.name, first.service, first.profile) == ("idle", False, "cpu")
    second = client.run(app, "job")
    assert read_rank_cpu(client, second.name) != read_rank_cpu(client, long.name)
    long.stop()
    assert long.wait(timeout_s=patient(60)).state == "stopped"
    wait_until(lambda: not list_neighbours(home), "its core is free")
