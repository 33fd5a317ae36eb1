"""MPI jobs on this machine: real C programs under real ``mpirun`` of Open MPI and of MPICH."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.job_times import compute_job_times
from scanflow.backends.local.mpi.processes import MAX_OUTPUT_BYTES
from scanflow.client import ScanflowClient, ScanflowDeployerClient
from scanflow.errors import StepFailedError
from tests.waiting import patient, wait_until

PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int rank, size, sum;
  const char *mode = argc > 2 ? argv[2] : "";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d, sum %d\n", rank, size, sum);
  fflush(stdout);
  if (rank == 1 && !strcmp(mode, "exit")) { fprintf(stderr, "cannot read input.dat\n"); _exit(3); }
  if (rank == 1 && !strcmp(mode, "crash")) { fprintf(stderr, "about to crash\n"); *(volatile int *)0 = 1; }
  if (rank == 1 && !strcmp(mode, "sleep")) sleep(1000);
  if (rank == 1 && !strcmp(mode, "flood"))
    for (char line[4096];;) { memset(line, 'x', sizeof line); fwrite(line, 1, sizeof line, stdout); }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
"""
pytestmark = pytest.mark.mpi
FLAVORS = {"openmpi": "mpicc.openmpi", "mpich": "mpicc.mpich"}
HERE = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(compiler) is None, reason=f"{name} is not installed"))
    for name, compiler in FLAVORS.items()
]
needs_openmpi = pytest.mark.skipif(shutil.which(FLAVORS["openmpi"]) is None, reason="Open MPI is not installed")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "sum.c").write_text(PROGRAM)
    for flavor, compiler in FLAVORS.items():
        if shutil.which(compiler):
            subprocess.run([compiler, "-o", f"sum-{flavor}", "sum.c"], cwd=folder, check=True, timeout=patient(120))
    return folder


def job(programs: Path, flavor: str = "openmpi", **fields: Any) -> sf.Application:
    options: dict[str, Any] = {
        "name": "sum",
        "mainfile": f"sum-{flavor}",
        "n_tasks": 2,
        "oversubscribe": True,
        **fields,
    }
    workflow = sf.Workflow(name="job", type="mpi", nodes=[sf.MPIWorkload(**options)])
    return sf.Application(name="hpc", app_dir=programs, workflows=[workflow])


@pytest.mark.parametrize("flavor", HERE)
def test_a_job_runs_to_its_end_and_each_rank_is_seen(home: Path, programs: Path, flavor: str) -> None:
    client = sf.Client(progress=False)
    run = client.run(job(programs, flavor, affinity="cpumempin", n_workers=2))
    assert run.state == "succeeded"
    assert client.output("sum")["flavor"] == flavor
    times = compute_job_times(client.show(run.name), now=time.time())
    assert (times.ranks, times.nodes) == (2, ("localhost",))
    assert 0 <= times.waiting_s < (times.response_s or 0.0)
    ranks = {task.task: task for task in client.show(run.name).tasks if task.step == "ranks"}
    assert sorted(ranks) == ["sum.0", "sum.1"]
    assert all(rank.state == "succeeded" and (rank.place or "").startswith("localhost, CPU") for rank in ranks.values())
    assert client.logs("sum.1") == "rank 1 of 2, sum 1\n"
    assert "[1] rank 1 of 2, sum 1" in client.logs("sum")
    assert "rank 1 -> worker 1 on localhost -> CPU" in client.logs("sum")


@needs_openmpi
def test_listing_6_1_runs_as_printed(home: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "hpccdgemm-exp1-baseline.yaml").write_text("program: sum-openmpi\noversubscribe: true\n")
    monkeypatch.chdir(programs)
    client = ScanflowClient()
    deployer = ScanflowDeployerClient(user_type="local", deployer="local", verbose=False)
    mpi = client.ScanflowMPIWorkload(name="hpccdgemm", mainfile="hpccdgemm-exp1-baseline.yaml", nTasks=16, nNodes=4)
    workflow = client.ScanflowWorkflow(type="mpi", name="hpccdgemm0", nodes=[mpi], output_dir="/home")

    async def run_workflow() -> Any:
        return await deployer.run_workflow(app_name="mpi", team_name="dataengineer", workflow=workflow, app_dir=".")

    run = asyncio.run(run_workflow())
    assert run.state == "succeeded"
    assert sum(task.step == "ranks" for task in sf.Client(progress=False).show(run.name).tasks) == 16


@needs_openmpi
@pytest.mark.parametrize(
    ("mode", "fields", "message"),
    [
        ("exit", {}, r"Rank 1 of 'sum' exited with code 3.*cannot read input\.dat"),
        ("crash", {}, r"Rank 1 of 'sum' was killed by SIGSEGV.*about to crash"),
        ("sleep", {"timeout": "20s"}, r"within 20\.0 s: ranks 0-1 still ran\. Rank 1 used less.*lines of rank 1:"),
    ],
)
def test_a_rank_that_fails_ends_the_job_by_name(
    home: Path, programs: Path, mode: str, fields: dict[str, Any], message: str
) -> None:
    client = sf.Client(progress=False)
    with pytest.raises(StepFailedError, match=f"(?s){message}"):
        client.run(job(programs, parameters={"mode": mode}, **fields))
    assert client.show().state == "failed"


@pytest.mark.parametrize("flavor", HERE)
def test_a_rank_that_floods_its_output_ends_the_job_and_leaves_no_more_than_is_allowed(
    home: Path, programs: Path, flavor: str
) -> None:
    client = sf.Client(progress=False)
    with pytest.raises(
        StepFailedError, match=r"The ranks of 'sum' wrote more than 256Mi, rank 1 the most \([\d.]+Mi\)"
    ):
        client.run(job(programs, flavor, parameters={"mode": "flood"}))
    assert sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) < MAX_OUTPUT_BYTES + (64 << 20)


@needs_openmpi
def test_a_stopped_job_leaves_no_rank(home: Path, programs: Path) -> None:
    client = sf.Client(progress=False)
    run = client.run(job(programs, parameters={"mode": "sleep"}), wait=False)
    wait_until(
        lambda: any(task.step == "ranks" for task in run.show().tasks) and "[0] rank 0" in run.logs("sum"), "ranks run"
    )
    run.stop()
    assert run.wait().state == "stopped"
    wait_until(lambda: not _running(programs), "no rank runs any more")


@needs_openmpi
def test_a_stopped_job_leaves_no_rank_that_does_not_use_mpi(home: Path, programs: Path) -> None:
    (programs / "sleeps.sh").write_text("#!/bin/sh\necho up\nsleep 1000\n")
    (programs / "sleeps.sh").chmod(0o755)
    run = sf.Client(progress=False).run(job(programs, mainfile="sleeps.sh", flavor="openmpi"), wait=False)
    wait_until(
        lambda: any(task.step == "ranks" for task in run.show().tasks) and "[1] up" in run.logs("sum"), "ranks run"
    )
    run.stop()
    assert run.wait().state == "stopped"
    wait_until(lambda: not _running(programs), "no rank runs any more")


def _running(programs: Path) -> list[str]:
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(programs) in line]
