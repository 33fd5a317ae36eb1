"""Ranks in containers of the real podman, started by this machine's ``mpirun``, from an image of the registry."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import StepFailedError
from tests.cluster.batch import GIVEN
from tests.cluster.test_cluster_mpi_runs import IMAGE, RING
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
    pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed"),
]
PATIENCE_S = 60.0
FAILS = "import os\nassert os.environ['SCANFLOW_MPI_RANK'] != '1', 'cannot read input.dat'\n"
SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    registry = GIVEN.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    own = tmp_path / "containers.conf"  # podman's own limits are more than a user without CAP_SYS_RESOURCE may set
    text = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
    if shutil.which(
        "runc"
    ):  # where both are there podman takes crun, which refuses machines with cgroups of both versions
        text += '[engine]\nruntime = "runc"\n'
    own.write_text(text)
    monkeypatch.setenv("CONTAINERS_CONF", str(own))
    name = f"{registry}/{IMAGE}"
    subprocess.run(["podman", "pull", "-q", "--tls-verify=false", name], check=True, timeout=120, capture_output=True)
    return name


@pytest.fixture
def client(home: Path) -> sf.Client:
    return sf.Client(progress=False)


def application(folder: Path, image: str, text: str) -> sf.Application:
    (folder / "app").mkdir()
    (folder / "app" / "program.py").write_text(text)
    fields: dict[str, Any] = {"n_tasks": 2, "oversubscribe": True, "image": image, "runtime": "podman"}
    workload = sf.MPIWorkload(name="job", mainfile="program.py", flavor="openmpi", **fields)
    workflow = sf.Workflow(name="hpc", type="mpi", nodes=[workload])
    return sf.Application(name="hpc", app_dir=folder / "app", workflows=[workflow])


def containers(image: str) -> list[str]:
    """Return what runs of an image."""
    command = ["podman", "ps", "-q", "--filter", f"ancestor={image}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_ranks_in_containers_are_one_job(client: sf.Client, image: str, tmp_path: Path) -> None:
    check_code = 'print(open("/etc/hostname").read() and __import__("os").path.exists("/opt/ring.py"), flush=True)\n'
    run = client.run(application(tmp_path, image, RING + check_code), "hpc")
    assert run.state == "succeeded"
    assert client.logs("job.1") == "rank 1 sum 1\nTrue\n", "they are not in the image, or not one job"
    assert containers(image) == []


def test_a_rank_that_fails_in_its_container_is_named(client: sf.Client, image: str, tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match=r"AssertionError: cannot read input\.dat"):
        client.run(application(tmp_path, image, FAILS), "hpc")
    wait_until(lambda: containers(image) == [], "no container is left", patience_s=PATIENCE_S)


def test_a_job_that_is_stopped_leaves_no_container(client: sf.Client, image: str, tmp_path: Path) -> None:
    run = client.run(application(tmp_path, image, SLEEPS), "hpc", wait=False)
    wait_until(lambda: len(containers(image)) == 2, "both ranks are up", patience_s=PATIENCE_S)
    run.stop()
    wait_until(lambda: containers(image) == [], "no container is left", patience_s=PATIENCE_S)
