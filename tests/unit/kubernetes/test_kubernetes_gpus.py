"""GPUs on a cluster: what pods ask for, and that they are placed only where they get that."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.backends.kubernetes.batch.run_checks import check_definition, plan_steps
from scanflow.backends.kubernetes.gpu_findings import check_node_gpus
from scanflow.backends.kubernetes.gpus import DevicePlugin, GpuRequest, build_gpu_request, check_gpus, explain_lack
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.nodes import list_nodes
from scanflow.backends.kubernetes.online.gpu_notes import describe_second_version
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import UnsupportedError
from scanflow.testing.memory_cluster import MemoryCluster

NVIDIA, AMD = DevicePlugin(), DevicePlugin(vendor="amd")
RENAMED = DevicePlugin(shares="nvidia.com/gpu.shared")
PROFILES = ["1g.10gb", "3g.40gb", "1g.10gb+me"]


def request(plugin: DevicePlugin = NVIDIA, **resources: Any) -> GpuRequest:
    asked = build_gpu_request(sf.Resources(**resources), plugin)
    assert asked is not None
    return asked


def make_node(name: str, allocatable: dict[str, Any], labels: dict[str, str], **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", **{key: str(amount) for key, amount in allocatable.items()}},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@st.composite
def draw_node(draw: st.DrawFn) -> tuple[Manifest, dict[tuple[str, Any], int]]:
    """A node as NVIDIA's device plugin and GPU feature discovery present it, and how many it has of what."""
    gpus, kind = draw(st.integers(1, 8)), draw(st.sampled_from(["plain", "unlabelled", "shared", "single", "mixed"]))
    labels = {"nvidia.com/gpu.count": str(gpus), "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.replicas": "1"}
    if kind == "unlabelled":
        return make_node("n", {"nvidia.com/gpu": gpus}, {}), {("whole", None): gpus}
    if kind == "plain":
        labels |= {"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mig.capable": "true"}
        return make_node("n", {"nvidia.com/gpu": gpus}, labels), {("whole", None): gpus}
    if kind == "shared":
        parts, name = draw(st.integers(2, 8)), draw(st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpu.shared"]))
        strategy = draw(st.sampled_from(["mps", "time-slicing"]))
        labels |= {"nvidia.com/gpu.sharing-strategy": strategy, "nvidia.com/gpu.replicas": str(parts)}
        return make_node("n", {name: gpus * parts}, labels), {(name, parts): gpus * parts}
    profile = draw(st.sampled_from(PROFILES))
    if kind == "single":  # each part is called a GPU
        labels |= {
            "nvidia.com/mig.strategy": "single",
            "nvidia.com/gpu.slices.gi": "1",
            "nvidia.com/gpu.memory": "9856",
        }
        return make_node("n", {"nvidia.com/gpu": 7 * gpus}, labels), {}
    name, shared = f"nvidia.com/mig-{profile.replace('+', '.')}", draw(st.booleans())
    strategy = "time-slicing" if shared else "none"
    labels |= {"nvidia.com/mig.strategy": "mixed", f"{name}.sharing-strategy": strategy, f"{name}.memory": "9856"}
    allocatable, there = {name: 7 * gpus}, {} if shared else {("part", profile): 7 * gpus}
    return make_node("n", allocatable, labels), there


@given(draw_node(), st.one_of(st.integers(1, 8), st.integers(2, 8).map(lambda n: 1 / n), st.sampled_from(PROFILES)))
def test_a_pod_is_placed_where_its_request_is_offered_and_nowhere_else(
    drawn: tuple[Manifest, dict[tuple[str, Any], int]], gpu: Any
) -> None:
    node, there = drawn
    for plugin in (NVIDIA, RENAMED):
        asked = request(plugin, gpu=gpu)
        if isinstance(gpu, int):
            fits = there.get(("whole", None), 0) >= gpu
        else:
            fits = bool(there.get(("part", gpu) if isinstance(gpu, str) else (plugin.shares, round(1 / gpu))))
        assert (explain_lack([node], asked) == "") == fits


def test_memory_is_a_requirement_of_the_node() -> None:
    node = make_node("n", {"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 1}, {"nvidia.com/gpu.memory": "81920"})
    node["metadata"]["labels"]["nvidia.com/mig-1g.10gb.memory"] = "9856"
    assert explain_lack([node], request(gpu=1, gpu_memory="80Gi")) == ""
    assert "nvidia.com/gpu.memory is above 81920" in explain_lack([node], request(gpu=1, gpu_memory=80 * 2**30 + 1))
    assert explain_lack([node], request(gpu="1g.10gb", gpu_memory="9Gi")) == ""
    assert explain_lack([node], request(gpu="1g.10gb", gpu_memory="10Gi"))
    assert explain_lack([make_node("n", {"nvidia.com/gpu": 8}, {})], request(gpu=1, gpu_memory="1Gi"))  # not known


def test_why_no_node_has_what_is_requested() -> None:
    two = make_node("n", {"nvidia.com/gpu": 2}, {})
    shared = make_node("s", {"nvidia.com/gpu": 8}, {"nvidia.com/gpu.sharing-strategy": "mps"})
    assert explain_lack([], request(gpu=1)) == ""  # nodes that nobody may list may have it
    assert explain_lack([two, shared], request(gpu=4)).endswith(", and the node with the most has 2")
    assert explain_lack([shared], request(gpu=1)) == (
        "it asks for 1 of nvidia.com/gpu where nvidia.com/gpu.sharing-strategy is not mps or time-slicing and there is "
        "no nvidia.com/gpu.slices.gi, which no node has; 1 with nvidia.com/gpu are labelled otherwise"
    )
    assert explain_lack([two], request(AMD, gpu=1)) == "it asks for 1 of amd.com/gpu, which no node has"


@pytest.mark.parametrize(
    ("plugin", "resources", "why"),
    [
        (NVIDIA, {"gpu": 0.3}, r"resources.gpu=0.3, a share: a device plugin cuts .* Write gpu=0.3333, .* 3 shares"),
        (NVIDIA, {"gpu": 0.75}, r"resources.gpu=0.75, a share: .* Write gpu=0.5, .* in 2 shares"),
        (NVIDIA, {"gpu": 0.5, "gpu_memory": "8Gi"}, r"resources.gpu_memory='8Gi' of a share: .* Remove gpu_memory"),
        (AMD, {"gpu": 0.5}, r"resources.gpu=0.5, a share: AMD's device plugin grants whole GPUs"),
        (AMD, {"gpu": "1g.10gb"}, r"resources.gpu='1g.10gb', a MIG profile: AMD's"),
        (AMD, {"gpu": 1, "gpu_memory": "8Gi"}, r"resources.gpu_memory='8Gi': AMD's"),
    ],
)
def test_what_no_device_plugin_grants_is_refused_by_name(
    plugin: DevicePlugin, resources: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"Executor 'train': the backend 'kubernetes' does not support {why}"):
        check_step(plugin, MemoryCluster(), **resources)


def check_step(plugin: DevicePlugin, cluster: MemoryCluster, **resources: Any) -> None:
    check = partial(check_gpus, plugin, partial(list_nodes, cluster))
    check_definition(make_definition(**resources), lambda _: False, check)


def make_definition(**resources: Any) -> RunDefinition:
    train = sf.Executor(name="train", mainfile="train.py", image="shop/train:1", resources=sf.Resources(**resources))
    workflow = sf.Workflow(name="nightly", nodes=[train])
    return RunDefinition(sf.Application(name="shop", team="people", workflows=[workflow]), workflow)


def test_a_share_is_refused_where_no_node_offers_it_and_a_whole_gpu_is_not() -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("plain", {"nvidia.com/gpu": 8}, {}))
    check_step(NVIDIA, cluster, gpu=9)  # a larger node may come
    with pytest.raises(UnsupportedError, match=r"no node offers the requested share of a GPU: .* Have shares offered"):
        check_step(NVIDIA, cluster, gpu=0.5)
    labels = {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "2"}
    cluster.create(make_node("shared", {"nvidia.com/gpu.shared": 2}, labels))
    with pytest.raises(UnsupportedError, match=r"SCANFLOW_KUBERNETES_GPU_SHARES=nvidia.com/gpu.shared"):
        check_step(NVIDIA, cluster, gpu=0.5)
    check_step(RENAMED, cluster, gpu=0.5)


def test_a_plan_says_which_step_fits_on_no_node() -> None:
    cluster = MemoryCluster()
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    cluster.create(make_node("small", {}, {}) | {"spec": {"unschedulable": True}})
    cluster.create(make_node("gpus", {"nvidia.com/gpu": 2}, {}, taints=[taint]))
    two, four = (make_definition(gpu=gpus, cpu=8).workflow for gpus in (2, 4))
    assert "fits on no node" not in str(plan_steps(cluster, two, NVIDIA).steps[0].notes)
    (note,) = [note for note in plan_steps(cluster, four, NVIDIA).steps[0].notes if "fits on no node" in note]
    assert note.endswith("and the node with the most has 2")


def test_the_doctor_says_what_nodes_offer_and_what_is_free() -> None:
    cluster = MemoryCluster()
    assert [finding.found for finding in check_node_gpus(cluster)] == ["no node offers any"]
    whole = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
    }
    shares = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    for name in ("a", "b"):
        cluster.create(make_node(name, {"nvidia.com/gpu": 8}, whole))
    cluster.create(make_node("c", {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 0}, whole | shares))
    cluster.create(make_node("d", {"amd.com/gpu": 2}, {}))
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    for number, (node, phase) in enumerate([("a", "Running"), ("b", "Pending"), ("b", "Succeeded"), ("c", "Running")]):
        container = {"name": "step", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}}}
        cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"pod-{number}", "namespace": "other"},
                "spec": {"nodeName": node, "containers": [container, {"name": "wait"}]},
                "status": {"phase": phase},
            }
        )
    card, sliced = "NVIDIA-H100-80GB-HBM3, 79.6Gi, driver 580.95.05", "each a share of 1/4, by time slicing"
    assert [finding.found for finding in check_node_gpus(cluster)] == [
        "2 of amd.com/gpu, 2 free, on d",
        f"16 of nvidia.com/gpu, 12 free, on a, b: {card}",
        f"4 of nvidia.com/gpu, 2 free, on c: {card}, {sliced}: memory is not bounded",
    ]


def test_a_plan_says_whether_there_are_gpus_for_the_pods_of_a_second_version() -> None:
    cluster = MemoryCluster()
    asked = request(gpu=2)
    cluster.create(make_node("plain", {"nvidia.com/gpu": 2}, {}))
    cluster.create(make_node("cut", {"nvidia.com/gpu": 7}, {"nvidia.com/gpu.sharing-strategy": "mps"}))
    enough = describe_second_version(cluster, asked)
    assert enough == (
        "GPUs: a second version (deployment, swap, canary, shadow) has pods of its own, and asks for 2 of "
        "nvidia.com/gpu more. 2 are free."
    )
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    container = {"name": "step", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", "namespace": "other"},
            "spec": {"nodeName": "plain", "containers": [container]},
        }
    )
    full = describe_second_version(cluster, asked)
    assert full.endswith("more. No node has so many free: its pods wait, and the first serves on.")
