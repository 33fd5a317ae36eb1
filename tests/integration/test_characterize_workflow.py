"""What services and MPI jobs need, by the command line: how they scale, this machine's other work decides."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scanflow.testing.accelerators import make_gpu
from tests.conftest import Cli
from tests.nvml import StubbedMachine

pytestmark = pytest.mark.slow

APP = """
import scanflow as sf

work = sf.Service(name="work", implementation="work.py:Work")
job = sf.MPIWorkload(name="nothing", mainfile="nothing", n_tasks=1, oversubscribe=True)
app = sf.Application(
    name="shop",
    workflows=[
        sf.Workflow(name="serve", type="online", nodes=[work]),
        sf.Workflow(name="job", type="mpi", nodes=[job]),
    ],
)
"""
WORK = """
import numpy as np

class Work:
    def predict(self, X):
        return np.asarray([sum(range(40_000 + int(X.sum()))) % 7.0])
"""
NOTHING = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }\n"


@pytest.fixture(autouse=True)
def _application(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "work.py").write_text(WORK)


def test_a_service_is_characterized_on_a_copy_that_is_deleted(cli: Cli) -> None:
    done = cli("characterize", "app.py:serve", "--data", "[[1.0, 2.0]]", "--cores", "1", "--rounds", "1", "--json")
    result = json.loads(done.stdout)
    ((run,),) = result["runs"].values()
    assert run["seconds"] > 0
    assert run["peak_bytes"] > 2**20
    assert result["recommendation"]["memory_bytes"] >= run["peak_bytes"]
    assert json.loads(cli("services", "--json").stdout) == []


def test_a_service_with_a_gpu_is_characterized_by_instances_and_batches_on_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    machine.start_mps()
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    resources = ", resources=sf.Resources(gpu=1))"
    (tmp_path / "app.py").write_text(
        APP.replace('implementation="work.py:Work")', f'implementation="work.py:Work"{resources}')
    )
    words = ("--data", "[[1.0, 2.0]]", "--cores", "1,2", "--batches", "1,4", "--rounds", "1")
    done = cli("characterize", "app.py:serve", *words, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for size in ("1 × 1 core, gpu=1, cpu", "2 × 1 core, gpu=0.5, cpu", "1 × 2 cores, gpu=1, cpu, batches of 4"):
        assert size in done.stdout
    assert "On the GPU, more instances " in done.stdout
    assert "On the GPU, larger batches " in done.stdout
    assert "Not measured: limits of its GPU's memory: the driver does not say what it holds" in done.stdout
    assert ", gpu=" in done.stdout.splitlines()[-1]
    assert json.loads(cli("services", "--json").stdout) == []


@pytest.mark.mpi
def test_a_job_is_characterized_by_its_ranks(cli: Cli, tmp_path: Path) -> None:
    compiler = shutil.which("mpicc.openmpi") or shutil.which("mpicc")
    if compiler is None or shutil.which("mpirun") is None:
        pytest.skip("MPI is not installed")
    (tmp_path / "nothing.c").write_text(NOTHING)
    subprocess.run([compiler, "-o", "nothing", "nothing.c"], cwd=tmp_path, check=True, timeout=60)
    printed = cli("characterize", "app.py:job", "--cores", "1,2", "--rounds", "1").stdout
    assert "1 rank" in printed
    assert "2 ranks" in printed
    assert "Request: resources=sf.Resources(" in printed
