"""What services and MPI jobs need, by the command line: how they scale, this machine's other work decides."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Cli

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
