"""MPI jobs run as a user runs them, on a real cluster: by ``client.run``, the command line and listing 6.1."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.backends.run_records import RunRecord
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.errors import NotFoundError
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.cluster.drains import all_nodes_schedulable
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
IMAGE = os.environ.get("SCANFLOW_TEST_MPI_IMAGE", "lab/mpi:1")
TEAM = f"t{secrets.token_hex(3)}"
WITHIN_S = 90.0
RING = """\
from mpi4py import MPI

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
print("rank", rank, "sum", MPI.COMM_WORLD.allreduce(rank), flush=True)
"""
FAILS = """\
#!/bin/sh
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then echo "cannot read input.dat" >&2; exit 7; fi
sleep 600
"""
VARIABLES = """\
import hashlib, os
from mpi4py import MPI

told = [os.environ.get(name) for name in ("COLOUR", "SCANFLOW_TEAM")]
print(*told, hashlib.sha256(os.environ.get("KEY", "").encode()).hexdigest()[:8], flush=True)
"""
LEAVES = """\
import os
from mpi4py import MPI

rank = MPI.COMM_WORLD.Get_rank()
with open(os.path.join(os.environ["SCANFLOW_OUTPUT_DIR"], f"part-{rank}.txt"), "w") as file:
    file.write(f"of rank {rank}\\n")
"""
SLEEPS = "#!/bin/sh\necho rank $OMPI_COMM_WORLD_RANK is up\nsleep 600\n"

LISTING = f"""\
import asyncio
from scanflow.client import ScanflowClient
from scanflow.client import ScanflowDeployerClient
client = ScanflowClient()
deployerClient = ScanflowDeployerClient(user_type="local",
                                        deployer="volcano",
                                        scanflow_autoconfig_server_uri =
                                        "http://127.0.0.1:49119/sensors",)
# define MPI job
def newWorkflow(i, benchmark, expstr, nTasks, nNodes):
    #mpi workloads
    mpi = client.ScanflowMPIWorkload(name=f"{{benchmark}}",
                                    mainfile=f"{{benchmark}}-{{expstr}}.yaml",
                                    nTasks=nTasks,
                                    nNodes=nNodes,)
    #workflow
    workflow = client.ScanflowWorkflow(type='mpi',
                                      name=f"{{benchmark}}{{i}}",
                                      nodes=[mpi],
                                      output_dir = "/home")
    return workflow
#submit Job to Scanflow
async def runWorkflow(i, workflow):
    return await deployerClient.run_workflow(app_name='mpiruns',
                                            team_name='{TEAM}',
                                            workflow = workflow)
asyncio.run(runWorkflow(0, newWorkflow(1, "hpccdgemm", "exp1", 4, 2)))
"""


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    scripts = {"ring.py": RING, "variables.py": VARIABLES, "leaves.py": LEAVES, "fails.sh": FAILS, "sleeps.sh": SLEEPS}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "hpccdgemm-exp1.yaml").write_text(
        "program: ring.py\nprofile: memory\noversubscribe: true\nresources_per_task: {cpu: 0.05, memory: 64Mi}\n"
    )
    return tmp_path


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = derive_namespace("mpiruns", TEAM)
    yield name
    cluster.delete("Namespace", name)
    wait_until(lambda: cluster.get("Namespace", name) is None, f"the namespace {name} is gone", patience_s=WITHIN_S)


def request(app_dir: Path, mainfile: str, **fields: Any) -> RunRequest:
    small = sf.Resources(cpu=0.05, memory="64Mi")
    options: dict[str, Any] = {
        "n_tasks": 2,
        "n_nodes": 2,
        "profile": "memory",
        "resources_per_task": small,
        "oversubscribe": True,
    }
    workload = sf.MPIWorkload(name="job", mainfile=mainfile, **{**options, **fields})
    workflow = sf.Workflow(name="hpc", type="mpi", nodes=[workload])
    return RunRequest(app=sf.Application(name="mpiruns", team=TEAM, app_dir=app_dir, workflows=[workflow]))


def make_deployer(settings: Settings, backend: Kubernetes) -> EmbeddedDeployer:
    return EmbeddedDeployer(settings, backend=backend)


def log(deployer: EmbeddedDeployer, run: RunRecord, task: str) -> str:
    return b"".join(part.data for part in deployer.logs(TaskLog(run.name, task, "both"))).decode()


def wait_for(holds: Callable[[], Any], what: str) -> None:
    wait_until(holds, what, patience_s=WITHIN_S)


def test_listing_6_1_runs_as_printed_on_volcano(
    cluster: Cluster, namespace: str, app_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "BACKEND": "kubernetes",
        "KUBERNETES_MPI_IMAGE": IMAGE,
        "KUBERNETES_STORAGE_SIZE": "1Gi",
    }.items():
        monkeypatch.setenv(f"SCANFLOW_{name}", value)
    (app_dir / "listing.py").write_text(LISTING)
    with all_nodes_schedulable():
        output = ran(app_dir, "listing.py")
    assert "where it is submitted" in output
    runs = json.loads(ran(app_dir, "-m", "scanflow_client", "runs", "--json"))
    run = next(run for run in runs if run["workflow"] == "hpccdgemm1")  # other tests' may be newer
    assert run["state"] == "succeeded"
    jobs, _ = cluster.find("Job", namespace, labels=build_selector(run=run["name"]))
    cluster.delete("Job", jobs[0]["metadata"]["name"], namespace)
    wait_for(lambda: not cluster.find("Pod", namespace, labels=build_selector(run=run["name"]))[0], "its pods are gone")
    shown = json.loads(ran(app_dir, "-m", "scanflow_client", "show", run["name"], "--json"))
    ranks = [task for task in shown["tasks"] if task["step"] == "ranks"]
    assert [rank["task"] for rank in ranks] == [f"hpccdgemm.{rank}" for rank in range(4)]
    assert len({rank["place"] for rank in ranks}) == 2  # on two nodes
    assert "rank 3 sum 6" in ran(app_dir, "-m", "scanflow_client", "mpi", "logs", run["name"], "--rank", "3")


def ran(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout if arguments[-1] == "--json" else done.stdout + done.stderr


def test_a_dead_rank_ends_the_job_with_its_last_lines(settings: Settings, namespace: str, app_dir: Path) -> None:
    with batch_backend(settings, SCANFLOW_KUBERNETES_MPI_IMAGE=IMAGE) as backend:
        run = make_deployer(settings, backend).run(request(app_dir, "fails.sh"))
        failed = run.tasks[-1].failure
        assert run.state == "failed"
        assert failed is not None
        assert failed.cause.startswith(
            "Rank 1 of 'job' exited with code 7, so mpirun stopped the others. Its last lines"
        )
        assert failed.cause.endswith("cannot read input.dat")


def test_a_job_that_sleeps_is_timed_out_and_one_can_be_stopped(
    settings: Settings, cluster: Cluster, namespace: str, app_dir: Path
) -> None:
    with batch_backend(settings, SCANFLOW_KUBERNETES_MPI_IMAGE=IMAGE) as backend:
        deployer = make_deployer(settings, backend)
        slow = deployer.run(request(app_dir, "sleeps.sh", timeout="8s", n_nodes=1))
        assert slow.tasks[-1].failure is not None
        assert "'job' did not finish within 8.00 s: ranks 0-1 still ran" in slow.tasks[-1].failure.cause
        begun = deployer.begin(request(app_dir, "sleeps.sh"))
        wait_for(lambda: "up" in log_or_nothing(deployer, begun), "rank 1 is up")
        deployer.stop(begun.name)
        ended = deployer.wait(begun.name, timeout_s=WITHIN_S)
        assert (ended.state, ended.error) == ("stopped", None)
        assert "rank 1 is up" in log(deployer, ended, "job.1")
        alive = [
            pod["metadata"]["name"]
            for pod in cluster.find("Pod", namespace, labels=build_selector(run=ended.name))[0]
            if pod["status"]["phase"] in {"Pending", "Running"} and not pod["metadata"].get("deletionTimestamp")
        ]
        assert alive == []


def test_the_mpi_operator_runs_the_same_job(settings: Settings, namespace: str, app_dir: Path) -> None:
    options = {"SCANFLOW_KUBERNETES_MPI_IMAGE": IMAGE, "SCANFLOW_KUBERNETES_MPI": "mpi-operator"}
    with batch_backend(settings, **options) as backend:
        deployer = make_deployer(settings, backend)
        run = deployer.run(request(app_dir, "ring.py", n_tasks=4))
        assert run.state == "succeeded", run.tasks[-1].failure
        assert log(deployer, run, "job.3") == "rank 3 sum 6\n"
        assert "[3] rank 3 sum 6" in log(deployer, run, "job")


@pytest.mark.parametrize("engine", ["volcano", "mpi-operator"])
def test_ranks_on_all_nodes_have_the_variables_that_people_gave(
    settings: Settings, cluster: Cluster, namespace: str, app_dir: Path, engine: str
) -> None:
    key = 'it\'s\n"quoted" $HOME'
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    metadata = {"name": "scanflow-env", "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"COLOUR": "dark red"}})
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"KEY": key}})
    with batch_backend(settings, SCANFLOW_KUBERNETES_MPI_IMAGE=IMAGE, SCANFLOW_KUBERNETES_MPI=engine) as backend:
        deployer = make_deployer(settings, backend)
        with all_nodes_schedulable():
            run = deployer.run(request(app_dir, "variables.py"))
        assert run.state == "succeeded", run.tasks[-1].failure
        assert len({task.place for task in run.tasks if task.step == "ranks"}) == 2
        content = f"dark red {TEAM} {hashlib.sha256(key.encode()).hexdigest()[:8]}\n"
        assert [log(deployer, run, f"job.{rank}") for rank in range(2)] == [content, content]
    kinds = ("Job", "MPIJob", "ConfigMap", "Pod")
    manifests = [
        manifest for kind in kinds for manifest in cluster.find(kind, namespace, labels=build_selector(run=run.name))[0]
    ]
    assert manifests
    assert "quoted" not in json.dumps(manifests)


def test_ranks_on_all_nodes_leave_files_on_the_volume_that_the_job_names(
    settings: Settings, cluster: Cluster, namespace: str, app_dir: Path
) -> None:
    name, folder = f"results-{secrets.token_hex(3)}", app_dir / "volume"  # all nodes are this machine
    folder.mkdir()
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    disk = {**shared, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    claim = {**shared, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
    kubectl("apply", {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": disk})
    try:
        with batch_backend(settings, SCANFLOW_KUBERNETES_MPI_IMAGE=IMAGE) as backend, all_nodes_schedulable():
            run = make_deployer(settings, backend).run(request(app_dir, "leaves.py", volume=name))
        assert run.state == "succeeded", run.tasks[-1].failure
        assert len({task.place for task in run.tasks if task.step == "ranks"}) == 2
        contents = {file.name: file.read_text() for file in (folder / run.name / "job").iterdir()}
        assert contents == {f"part-{rank}.txt": f"of rank {rank}\n" for rank in range(2)}
    finally:
        cluster.delete("Namespace", namespace)
        kubectl("delete", {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}})


def kubectl(verb: str, manifest: Manifest) -> None:
    """Make or remove what scanflow itself never does: a volume of the whole cluster."""
    command = ["kubectl", verb, "-f", "-", *(["--wait=false"] if verb == "delete" else [])]
    subprocess.run(command, input=json.dumps(manifest), text=True, check=True, timeout=30)


def log_or_nothing(deployer: EmbeddedDeployer, run: RunRecord) -> str:
    try:
        return log(deployer, run, "job.1")
    except NotFoundError:
        return ""
