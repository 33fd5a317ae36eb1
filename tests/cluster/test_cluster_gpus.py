"""GPUs on a real cluster: a device plugin offers some to the real kubelet, and steps, instances and ranks get them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpu_findings import check_node_gpus
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.backends.run_records import Event, RunRecord, Waiting
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend, make_store
from tests.cluster.device_plugins import AdvertisedDevices, advertise_devices, labelled_node
from tests.cluster.kubelets import MINE
from tests.cluster.online import Place
from tests.cluster.test_cluster_mpi import IMAGE as MPI_IMAGE
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), MINE]
TEAM: Final = f"t{secrets.token_hex(3)}"
GPUS: Final = tuple(f"GPU-{secrets.token_hex(4)}-0000-4000-8000-00000000000{number}" for number in range(2))
PARTS: Final = tuple(f"MIG-{secrets.token_hex(4)}-0000-4000-8000-00000000000{number}" for number in range(2))
WHOLE: Final = {
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/cuda.driver-version.full": "580.95.05",
}
"""As GPU feature discovery labels a node with two whole GPUs."""

SHARED: Final = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}

STEPS: Final = """
import os
import scanflow as sf


def show() -> str:
    return os.environ["NVIDIA_VISIBLE_DEVICES"]


@sf.step(resources=sf.Resources(gpu=1))
def train() -> str:
    return show()


@sf.step(resources=sf.Resources(gpu=2))
def both() -> str:
    return show()


@sf.step(resources=sf.Resources(gpu=3))
def more() -> str:
    return show()


@sf.step(resources=sf.Resources(gpu=0.25))
def share() -> str:
    return show()


@sf.step(resources=sf.Resources(gpu="1g.10gb"))
def part() -> str:
    return show()


@sf.step
def count() -> str:
    return show()
"""


@pytest.fixture(scope="module")
def offer(cluster: Cluster) -> Iterator[AdvertisedDevices]:
    with advertise_devices(cluster, "nvidia.com/gpu", GPUS, WHOLE) as offer:
        yield offer


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The settings of the store, in the namespace of the application, which is removed at the end."""
    namespace = derive_namespace("gpus", TEAM)
    yield make_store(cluster, namespace)
    cluster.delete("Namespace", namespace)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    workflows = {name: f"{name}.bind()" for name in ("both", "more", "share", "part")}
    workflows["train"] = "train.bind(), count.bind()"
    listed = ", ".join(f"sf.Workflow(name={name!r}, nodes=[{nodes}])" for name, nodes in workflows.items())
    path = tmp_path / "app" / "gpus_app.py"
    path.parent.mkdir()
    path.write_text(f"{STEPS}\napp = sf.Application(name='gpus', team={TEAM!r}, workflows=[{listed}])\n")
    return path


@pytest.fixture
def deployer(settings: Settings, store: dict[str, str]) -> Iterator[EmbeddedDeployer]:
    with batch_backend(settings, **store, SCANFLOW_KUBERNETES_GPU_SHARES="nvidia.com/gpu.shared") as backend:
        yield EmbeddedDeployer(settings, backend=backend)


def make_request(source: Path, workflow: str) -> RunRequest:
    return RunRequest(load_application(str(source))[0], workflow, source=source)


def get_devices(record: RunRecord, task: str) -> set[str]:
    """Return what a task read back in its pod of the GPUs that it was granted."""
    assert record.state == "succeeded", [task.failure for task in record.tasks]
    return {use.uuid for each in record.tasks if each.task == task for use in each.devices}


def test_a_step_has_its_gpu_and_one_that_asks_for_none_sees_none(
    deployer: EmbeddedDeployer, source: Path, offer: AdvertisedDevices
) -> None:
    offer.grants.clear()
    record = deployer.run(make_request(source, "train"))
    (granted,) = offer.grants
    assert get_devices(record, "train") == granted
    assert deployer.outputs(record.name, "train") == {"result": ",".join(granted)}
    assert (get_devices(record, "count"), deployer.outputs(record.name, "count")) == (set(), {"result": "void"})


def test_a_step_waits_for_a_gpu_that_another_pod_has_and_the_run_says_so(
    deployer: EmbeddedDeployer, source: Path, cluster: Cluster, base_image: str, offer: AdvertisedDevices
) -> None:
    limits = {"limits": {offer.resource: "1"}}
    container = {"name": "main", "image": base_image, "command": ["sleep", "900"], "resources": limits}
    metadata = {"name": f"holder-{TEAM}", "namespace": "default"}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        wait_until(lambda: cluster.find("Pod", "default", fields="status.phase=Running")[0], "another pod has one")
        waits = list[str]()

        def free(event: Event) -> None:
            if isinstance(event, Waiting) and offer.resource in event.why:
                waits.append(event.why)
                cluster.delete("Pod", metadata["name"], "default", grace_s=0)

        record = deployer.run(make_request(source, "both"), observe=free)
    finally:
        cluster.delete("Pod", metadata["name"], "default", grace_s=0)
    assert get_devices(record, "both") == set(GPUS)
    assert waits


def test_more_gpus_than_a_node_has_are_named_in_the_plan_and_the_doctor_says_what_there_is(
    deployer: EmbeddedDeployer, source: Path, cluster: Cluster, offer: AdvertisedDevices
) -> None:
    (step,) = deployer.plan(make_request(source, "more")).steps
    assert [note for note in step.notes if "3 of nvidia.com/gpu" in note and "the most has 2" in note], step.notes
    (step,) = deployer.plan(make_request(source, "both")).steps
    assert not [note for note in step.notes if "fits on no node" in note]
    wait_until(
        lambda: "2 of nvidia.com/gpu, 2 free" in str([entry.found for entry in check_node_gpus(cluster)]), "all is free"
    )
    (finding,) = [entry.found for entry in check_node_gpus(cluster) if offer.node in entry.found]
    assert finding.endswith(f"on {offer.node}: NVIDIA-H100-80GB-HBM3, 79.6Gi, driver 580.95.05")


@pytest.mark.parametrize(
    ("workflow", "resource", "labels"),
    [("share", "nvidia.com/gpu.shared", SHARED), ("part", "nvidia.com/mig-1g.10gb", {})],
)
def test_a_step_has_its_share_or_part_once_a_node_offers_it(
    deployer: EmbeddedDeployer,
    source: Path,
    cluster: Cluster,
    offer: AdvertisedDevices,
    workflow: str,
    resource: str,
    labels: dict[str, str],
) -> None:
    devices = [f"{gpu}::{share}" for gpu in GPUS for share in range(4)] if workflow == "share" else PARTS
    if workflow == "share":
        with pytest.raises(UnsupportedError, match="no node offers the requested share of a GPU"):
            deployer.run(make_request(source, workflow))
    with advertise_devices(cluster, resource, devices, labels) as other, labelled_node(cluster, offer.node, labels):
        assert other.node == offer.node
        record = deployer.run(make_request(source, workflow))
        assert get_devices(record, workflow) == other.grants[0]
        (use,) = record.tasks[0].devices
        assert (use.sharing, use.share) == (("time slicing", 0.25) if labels else ("mig", 1))
        if labels:
            whole = deployer.plan(make_request(source, "both")).steps[0]
            assert "labelled otherwise" in str(whole.notes), "its GPUs are shares now"


@pytest.mark.parametrize("engine", ["deployment", "seldon", "kserve"])
def test_an_instance_of_a_service_has_its_gpu(
    place: Callable[..., Place], engine: str, offer: AdvertisedDevices
) -> None:
    here = place(engine)
    offer.grants.clear()
    here.deploy(2, resources=sf.Resources(gpu=1))

    def read_devices() -> list[set[str]]:
        return [{use.uuid for use in instance.devices} for instance in here.deployer.service(here.name).instances]

    wait_until(
        lambda: read_devices() == [set(granted) for granted in offer.grants], "it reads back what it was granted"
    )
    assert (len(offer.grants), here.answer()) == (1, [2])
    here.deployer.delete(here.name)


@pytest.mark.parametrize("engine", ["volcano", "mpi-operator"])
def test_each_rank_of_an_mpi_job_has_its_own_gpu(
    settings: Settings, cluster: Cluster, tmp_path: Path, offer: AdvertisedDevices, engine: str
) -> None:
    (tmp_path / "ranks.py").write_text(
        "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['NVIDIA_VISIBLE_DEVICES'], flush=True)\n"
    )
    fields: dict[str, Any] = {"n_tasks": 2, "n_nodes": 1, "profile": "memory", "oversubscribe": True}
    resources = sf.Resources(cpu=0.05, memory="64Mi", gpu=1)
    job = sf.MPIWorkload(name="job", mainfile="ranks.py", resources_per_task=resources, **fields)
    workflow = sf.Workflow(name="hpc", type="mpi", nodes=[job])
    app = sf.Application(name=f"ranks-{engine}", team=TEAM, app_dir=tmp_path, workflows=[workflow])
    offer.grants.clear()
    options = {"SCANFLOW_KUBERNETES_MPI_IMAGE": MPI_IMAGE, "SCANFLOW_KUBERNETES_MPI": engine}
    try:
        with batch_backend(settings, **options) as backend:
            deployer = EmbeddedDeployer(settings, backend=backend)
            record = deployer.run(RunRequest(app))
            assert record.state == "succeeded", record.tasks[-1].failure
            logs = [deployer.logs(TaskLog(record.name, f"job.{rank}", "both")) for rank in range(2)]
            output = [b"".join(part.data for part in log).decode() for log in logs]
    finally:
        cluster.delete("Namespace", derive_namespace(app.name, TEAM))
    assert offer.grants == [frozenset(GPUS)]
    assert output == [f"{rank} {','.join(sorted(GPUS))}\n" for rank in range(2)]
