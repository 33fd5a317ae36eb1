"""The tutorials of MPI jobs on a real cluster, as readers run them; their tasks ask for less, so that few cores do."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow_research.simulation.twenty_jobs import generate_thesis_jobs
from tests.cluster.test_cluster_mpi_runs import IMAGE
from tests.server import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("mpicc.openmpi") is None, reason="Open MPI is not installed")
TUTORIALS = Path(__file__).parents[2] / "tutorials"


@pytest.fixture
def tutorials(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("mpi", "scheduler"):
        shutil.copytree(TUTORIALS / name, tmp_path / name)
    command = ["mpicc.openmpi", "-O2", "-o", "kernels", "kernels.c", "-lm"]
    subprocess.run(command, cwd=tmp_path / "mpi", check=True, timeout=120)
    monkeypatch.setenv("SCANFLOW_KUBERNETES_MPI_IMAGE", IMAGE)
    monkeypatch.setenv("SCANFLOW_KUBERNETES_STORAGE_SIZE", "1Gi")
    return tmp_path


@pytest.fixture
def team(cluster: Cluster) -> Iterator[str]:
    """A team that no other test has; what it ran is removed."""
    name = f"t{secrets.token_hex(3)}"
    yield name
    for app in ("mpi", "scheduler"):
        namespace = derive_namespace(app, name)
        cluster.delete("Namespace", namespace)
        wait_until(partial(is_gone, cluster, namespace), f"{namespace} is gone", patience_s=90)


def is_gone(cluster: Cluster, namespace: str) -> bool:
    return cluster.get("Namespace", namespace) is None


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_listing_6_1_submits_sixteen_tasks_to_volcano(tutorials: Path, team: str) -> None:
    folder = tutorials / "mpi"
    change(folder / "submit.py", '"dataengineer"', f'"{team}"')
    with (folder / "hpccdgemm-exp1-baseline.yaml").open("a") as file:
        file.write("resources_per_task: {cpu: 0.05, memory: 32Mi}\n")
    done = subprocess.run(
        [sys.executable, "submit.py", "volcano"], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert re.search(r"^[a-z]+-[a-z]+-\d+: succeeded$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.cluster_slow
@pytest.mark.timeout(900)
def test_the_twenty_jobs_wait_in_volcanos_queue_run_and_end(
    tutorials: Path, team: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tutorials / "scheduler" / "twenty.py"
    change(script, 'team="hpc"', f'team="{team}"')
    change(script, "n_tasks=2,", 'n_tasks=2, resources_per_task=sf.Resources(cpu=0.2, memory="32Mi"),')
    home.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(home, environ={"SCANFLOW_BACKEND": "kubernetes"})
    monkeypatch.setenv("SCANFLOW_URL", server.url)
    try:
        server.start()
        done = subprocess.run(
            [sys.executable, "twenty.py", "200"],
            cwd=script.parent,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        server.close()
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    lines = done.stdout.splitlines()
    jobs = [line.split() for line in lines if line.endswith("succeeded")]
    assert [job[0] for job in jobs] == [job.name for job in generate_thesis_jobs()]
    for _, waiting, running, response, _ in jobs:
        assert float(waiting) + float(running) == pytest.approx(float(response), abs=0.02)
    assert re.fullmatch(r"makespan [\d.]+ s", lines[-1])
