"""Many steps and instances on many nodes with GPUs: the real scheduler places each where it has what it asks for."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, get_condition
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.backends.kubernetes.request_body import encode_body
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend, make_store
from tests.cluster.fake_nodes import fake_nodes, make_node
from tests.cluster.online import Place
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]
TEAM: Final = f"t{secrets.token_hex(3)}"
EACH: Final = 8
"""The GPUs of each node."""

SHARES: Final = 4
WHOLE_NODES: Final = 40
SHARED_NODES: Final = 10
CLAIMED_NODES: Final = 8
CLAIMS: Final = "/apis/resource.k8s.io/v1"
DRIVER: Final = "gpu.nvidia.com"
SHARED: Final = {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": str(SHARES)}

APP: Final = """
import scanflow as sf

whole = sf.Executor(name="whole", mainfile="step.py", for_each=list(range({whole})), resources=sf.Resources(gpu=1))
share = sf.Executor(name="share", mainfile="step.py", for_each=list(range({share})), resources=sf.Resources(gpu=0.25))
workflow = sf.Workflow(name="many", nodes=[whole, share])
app = sf.Application(name="gpuscale", team="{team}", workflows=[workflow])
"""


@pytest.fixture(autouse=True)
def kwok(cluster: Cluster) -> None:
    if not cluster.find("Deployment", fields="metadata.name=kwok-controller")[0]:
        pytest.skip("the cluster has no KWOK")


@pytest.fixture
def store(cluster: Cluster) -> Iterator[dict[str, str]]:
    namespace = derive_namespace("gpuscale", TEAM)
    yield make_store(cluster, namespace)
    cluster.delete("Namespace", namespace)


def find_placed(cluster: Cluster, namespace: str, **labels: str) -> list[Manifest]:
    pods, _ = cluster.find("Pod", namespace, labels=build_selector(**labels))
    return [pod for pod in pods if "nodeName" in pod["spec"]]


def measure_placement(pods: list[Manifest]) -> float:
    """Return the seconds from when the first of some pods was made to when the last was placed."""
    created = [datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods]
    placed = [
        datetime.fromisoformat(get_condition(pod["status"], "PodScheduled")["lastTransitionTime"]) for pod in pods
    ]
    return (max(placed) - min(created)).total_seconds()


def test_each_of_many_steps_is_placed_on_a_node_that_offers_its_gpu_until_all_are_full(
    settings: Settings, cluster: Cluster, store: dict[str, str], tmp_path: Path
) -> None:
    whole, share = WHOLE_NODES * EACH, SHARED_NODES * EACH * SHARES
    prefix = f"gpus-{TEAM}"
    nodes = [make_node(f"{prefix}-whole-{number}", {"nvidia.com/gpu": EACH}, {}) for number in range(WHOLE_NODES)]
    nodes += [
        make_node(f"{prefix}-share-{number}", {"nvidia.com/gpu": EACH * SHARES}, SHARED)
        for number in range(SHARED_NODES)
    ]
    (tmp_path / "step.py").write_text("")
    source = tmp_path / "app.py"
    source.write_text(APP.format(whole=whole, share=share, team=TEAM))
    namespace = derive_namespace("gpuscale", TEAM)
    with fake_nodes(cluster, nodes), batch_backend(settings, **store) as backend:
        deployer = EmbeddedDeployer(settings, backend=backend)
        run = deployer.begin(RunRequest(load_application(str(source))[0], source=source))
        try:
            wait_until(
                lambda: len(find_placed(cluster, namespace, run=run.name)) == whole + share,
                "all steps are placed",
                patience_s=300,
            )
            by_step = {step: find_placed(cluster, namespace, run=run.name, step=step) for step in ("whole", "share")}
        finally:
            cluster.delete("Namespace", namespace)
    for step, most in (("whole", EACH), ("share", EACH * SHARES)):
        usage = Counter(pod["spec"]["nodeName"] for pod in by_step[step])
        assert {name.rpartition("-")[0] for name in usage} == {f"{prefix}-{step}"}
        assert set(usage.values()) == {most}, "all nodes are full"
    pods = [pod for step_pods in by_step.values() for pod in step_pods]
    print(f"\n{len(pods)} steps on {len(nodes)} nodes, the last placed {measure_placement(pods):.0f} s after the first")


@pytest.fixture
def claimable(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Nodes whose GPUs are claimed, half of them with little memory; the memory of each, by node."""
    names = [f"claims-{TEAM}-{number}" for number in range(CLAIMED_NODES)]
    memory = {name: "80Gi" if number % 2 else "40Gi" for number, name in enumerate(names)}
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    device_class = {"metadata": {"name": f"{TEAM}.gpu"}, "spec": {"selectors": selectors}}
    create(cluster, "deviceclasses", "DeviceClass", device_class)
    try:
        with fake_nodes(cluster, [make_node(name, {}, {}) for name in names]):
            for name in names:
                create(cluster, "resourceslices", "ResourceSlice", make_slice(name, memory[name]))
            yield memory
    finally:
        for path in (f"deviceclasses/{TEAM}.gpu", *(f"resourceslices/{name}" for name in names)):
            cluster.fetch_json("DELETE", f"{CLAIMS}/{path}")


def create(cluster: Cluster, plural: str, kind: str, fields: Manifest) -> None:
    body = encode_body({"apiVersion": "resource.k8s.io/v1", "kind": kind, **fields})
    cluster.fetch_json("POST", f"{CLAIMS}/{plural}", content=body, headers={"Content-Type": "application/json"})


def make_slice(node: str, memory: str) -> Manifest:
    """Return what NVIDIA's driver publishes of a node's GPUs, in short."""
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{node}-{number}"}},
            "capacity": {"memory": {"value": memory}},
        }
        for number in range(EACH)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": node}, "spec": spec}


def test_each_of_many_instances_claims_a_gpu_with_enough_memory_and_has_it_alone(
    place: Callable[..., Place], cluster: Cluster, claimable: dict[str, str]
) -> None:
    here = place(SCANFLOW_KUBERNETES_GPU_REQUESTS="resource-claims", SCANFLOW_KUBERNETES_GPU_CLASS=f"{TEAM}.gpu")
    large = [name for name, memory in claimable.items() if memory == "80Gi"]
    count = len(large) * EACH
    here.deploy(2, instances=count, resources=sf.Resources(gpu=1, gpu_memory="60Gi"))
    pods = list(here.pods().values())
    claims: list[Manifest] = cluster.fetch_json("GET", f"{CLAIMS}/namespaces/{here.namespace}/resourceclaims")["items"]
    granted: list[Any] = [claim["status"]["allocation"]["devices"]["results"] for claim in claims]
    devices = [(result["pool"], result["device"]) for (result,) in granted]
    assert len(pods) == len(devices) == len(set(devices)) == count
    assert {pool for pool, _ in devices} == {pod["spec"]["nodeName"] for pod in pods} == set(large)
    print(f"\n{count} instances claim a GPU each, the last placed {measure_placement(pods):.0f} s after the first")
    here.deployer.delete(here.name)
