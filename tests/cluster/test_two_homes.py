"""Runs of a real cluster, begun in one home and seen, stopped and resumed in another, as on two machines."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.conftest import COMMAND
from tests.waiting import patient, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TEAM = f"t{secrets.token_hex(3)}"
NAMESPACE = derive_namespace("homes", TEAM)
MPI_IMAGE = os.environ.get("SCANFLOW_TEST_MPI_IMAGE", "lab/mpi:1")
WITHIN_S = 180.0

FIRST = 'import scanflow as sf\nprint("first is up", flush=True)\nsf.output("half", 21)\n'
SLOW = """
import argparse, os, time
import scanflow as sf

parser = argparse.ArgumentParser()
parser.add_argument("--half", type=int)
print("slow is up", flush=True)
time.sleep(0 if os.environ.get("QUICK") else 600)
sf.output("whole", 2 * parser.parse_args().half)
"""
RANK = '#!/bin/sh\necho rank $OMPI_COMM_WORLD_RANK is up\n[ -n "$QUICK" ] || sleep 600\n'


@pytest.fixture(autouse=True)
def namespace(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.delete("Namespace", NAMESPACE)
    wait_until(lambda: cluster.get("Namespace", NAMESPACE) is None, "the namespace is gone")


@pytest.fixture
def homes(settings: Settings, tmp_path: Path) -> Iterator[tuple[EmbeddedDeployer, EmbeddedDeployer]]:
    """Two deployers of one cluster, with a home each."""
    there = settings.model_copy(update={"home": tmp_path / "other-home"})
    with ExitStack() as stack:
        backends = [
            stack.enter_context(batch_backend(own, SCANFLOW_KUBERNETES_MPI_IMAGE=MPI_IMAGE))
            for own in (settings, there)
        ]
        yield EmbeddedDeployer(settings, backend=backends[0]), EmbeddedDeployer(there, backend=backends[1])


def hasten(cluster: Cluster) -> None:
    """Have the programs that start from now on end at once."""
    metadata = {"name": "scanflow-env", "namespace": NAMESPACE}
    cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"QUICK": "1"}})


def resume(home: Path, run: str) -> None:
    """Resume a run by the command line, in a process that knows nothing of it."""
    variables = {**os.environ, "SCANFLOW_HOME": str(home), "SCANFLOW_BACKEND": "kubernetes"}
    ended = subprocess.run([*COMMAND, "resume", run], env=variables, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"


def read(deployer: EmbeddedDeployer, run: str, task: str) -> str:
    return b"".join(part.data for part in deployer.logs(TaskLog(run, task))).decode()


def test_a_batch_run_is_gone_on_with_from_another_home(
    homes: tuple[EmbeddedDeployer, EmbeddedDeployer], cluster: Cluster, tmp_path: Path
) -> None:
    here, there = homes
    folder = tmp_path / "app"
    folder.mkdir()
    for name, text in {"first.py": FIRST, "slow.py": SLOW}.items():
        (folder / name).write_text(text)
    first = sf.Executor(name="first", mainfile="first.py")
    slow = sf.Executor(name="slow", mainfile="slow.py", parameters={"half": first["half"]})
    workflow = sf.Workflow(name="double", nodes=[first, slow])
    app = sf.Application(name="homes", team=TEAM, app_dir=folder, workflows=[workflow])
    run = here.begin(RunRequest(app, "double")).name

    def list_states() -> dict[str, str]:
        return {str(task.task): task.state for task in there.show(run).tasks}

    wait_until(lambda: list_states() == {"first": "succeeded", "slow": "running"}, "the second step runs")
    assert there.runs(limit=1, team=TEAM)[0].name == run
    assert there.outputs(run, "first") == {"half": 21}
    folder.rename(tmp_path / "elsewhere")
    there.stop(run)
    assert here.wait(run, timeout_s=patient(WITHIN_S)).state == "stopped"
    wait_until(lambda: there.show(run).state == "stopped", "the other home has its end")
    hasten(cluster)
    resume(tmp_path / "other-home", run)
    assert there.show(run).state == "succeeded"
    assert there.outputs(run, "slow") == {"whole": 42}
    assert read(there, run, "slow") == "slow is up\n"
    shown = here.show(run)
    assert (shown.state, [task.attempts for task in shown.tasks]) == ("succeeded", [1, 2])
    assert here.outputs(run, "slow") == {"whole": 42}
    assert read(here, run, "slow") == "slow is up\n"


def test_an_mpi_job_is_gone_on_with_from_another_home(
    homes: tuple[EmbeddedDeployer, EmbeddedDeployer], cluster: Cluster, tmp_path: Path
) -> None:
    here, there = homes
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "rank").write_text(RANK)
    (folder / "rank").chmod(0o755)
    workload = sf.MPIWorkload(name="ring", mainfile="rank", n_tasks=2, resources_per_task=sf.Resources(cpu=0.1))
    workflow = sf.Workflow(name="job", type="mpi", nodes=[workload])
    app = sf.Application(name="homes", team=TEAM, app_dir=folder, workflows=[workflow])
    run = here.begin(RunRequest(app, "job")).name
    wait_until(lambda: there.show(run).tasks[-1].state == "running", "the job runs")
    wait_until(lambda: "rank 1 is up" in read(there, run, "ring.1"), "the other home reads its log")
    folder.rename(tmp_path / "elsewhere")
    there.stop(run)
    assert here.wait(run, timeout_s=patient(WITHIN_S)).state == "stopped"
    wait_until(lambda: there.show(run).state == "stopped", "the other home has its end")
    hasten(cluster)
    resume(tmp_path / "other-home", run)
    assert there.show(run).state == "succeeded"
    shown = here.show(run)
    assert (shown.state, shown.tasks[-1].attempts) == ("succeeded", 2)
    assert here.outputs(run, "ring") == there.outputs(run, "ring")
    assert read(here, run, "ring.0") == read(there, run, "ring.0") == "rank 0 is up\n"
