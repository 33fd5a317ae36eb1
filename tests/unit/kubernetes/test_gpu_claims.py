"""GPUs that pods claim (dynamic resource allocation): what they claim, and where that is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.batch.run_checks import check_step_gpus, plan_steps
from scanflow.backends.kubernetes.gpu_claims import build_claim_templates
from scanflow.backends.kubernetes.gpu_findings import check_device_classes
from scanflow.backends.kubernetes.gpus import DevicePlugin, GpuRequest, build_gpu_request
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.mpi.mpi_objects import build_worker_claims
from scanflow.backends.kubernetes.mpi.operator import build_mpi_job
from scanflow.backends.kubernetes.mpi.rank_program import build_pod_program
from scanflow.backends.kubernetes.online.instance_pods import build_instance_claims
from scanflow.backends.kubernetes.online.service_checks import check_workflow
from scanflow.backends.shapes import compute_shape
from scanflow.errors import UnsupportedError
from scanflow.testing.memory_cluster import MemoryCluster
from tests.golden.batch_shapes import make_manifest, step
from tests.manifests import assert_manifests
from tests.unit.kubernetes.kubernetes_services import NAMESPACE, Served
from tests.unit.kubernetes.test_mpi_manifests import job
from tests.unit.kubernetes.test_online_manifests import definition, make_manifests

CLAIMS = DevicePlugin(mechanism="resource-claims")
AMD = KubernetesSettings(gpu_requests="resource-claims", gpu_vendor="amd").device_plugin
PLACE = {"app": "shop", "team": "data", "namespace": "scanflow-shop-data"}


def claim(plugin: DevicePlugin = CLAIMS, **resources: Any) -> GpuRequest:
    asked = build_gpu_request(sf.Resources(**resources), plugin)
    assert asked is not None
    return asked


def make_class(name: str, resource: str | None = None) -> Manifest:
    spec = {} if resource is None else {"extendedResourceName": resource}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def make_cluster(*classes: str, argo: str | None = None) -> MemoryCluster:
    cluster = MemoryCluster()
    for name in classes:
        cluster.create(make_class(name))
    if argo is not None:
        pod = {"spec": {"containers": [{"name": "main", "image": f"quay.io/argoproj/workflow-controller:{argo}"}]}}
        metadata = {"name": "workflow-controller", "namespace": "default"}
        cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": pod}})
    return cluster


def check(cluster: MemoryCluster, plugin: DevicePlugin = CLAIMS, **resources: Any) -> None:
    check_step_gpus(cluster, plugin, sf.Resources(**resources), "Executor 'train'")


def test_a_service_claims_its_gpu_by_deployments_and_by_kserve() -> None:
    plain = definition()
    spec = plain.with_changes(
        shape=plain.shape.model_copy(update={"gpu": "1g.10gb", "gpu_memory_bytes": 8 * 2**30}),
        details={**plain.details, "device_plugin": {"mechanism": "resource-claims"}},
    )
    for engine in ("deployment", "kserve"):
        manifests = make_manifests(engine, spec, plugin=CLAIMS)
        assert_manifests(f"service-gpu-claim-{engine}", *build_instance_claims(spec), manifests[1])


def test_each_worker_of_an_mpi_job_claims_the_gpus_of_its_ranks() -> None:
    asking = job(profile="cpu", resources_per_task=sf.Resources(cpu=1, gpu=2))
    claiming = replace(asking, device_plugin=CLAIMS)
    assert_manifests("mpijob-gpu-claim", *build_worker_claims(claiming), build_mpi_job(claiming))


def test_steps_claim_by_a_patch_of_their_pods() -> None:
    own_cores = sf.Resources(cpu=2, memory="1Gi", gpu=2, gpu_memory="40Gi")
    train = step("train", resources=own_cores, affinity="cpumem")
    steps = [train, step("again", resources=own_cores), step("score", resources=sf.Resources(gpu="1g.10gb"))]
    templates = build_claim_templates([each.resources for each in steps], CLAIMS, **PLACE)
    assert len(templates) == 2, "equal claims have one"
    assert_manifests("batch-gpu-claims", *templates, make_manifest(steps, plugin=CLAIMS))


@given(
    st.one_of(st.integers(1, 8), st.sampled_from(["1g.10gb", "3g.40gb", "1g.10gb+me"])),
    st.none() | st.integers(2**20, 2**40),
)
def test_a_claim_is_what_is_requested_and_names_its_template(gpu: Any, memory: int | None) -> None:
    asked = claim(gpu=gpu, gpu_memory=memory)
    assert (asked.limits, asked.labels, asked.share) == ({}, (), 1)
    (template,) = build_claim_templates([sf.Resources(gpu=gpu, gpu_memory=memory)], CLAIMS, **PLACE)
    (wanted,) = template["spec"]["spec"]["devices"]["requests"]
    exactly = wanted["exactly"]
    is_part = isinstance(gpu, str)
    assert exactly["deviceClassName"] == ("mig.nvidia.com" if is_part else "gpu.nvidia.com")
    assert exactly["count"] == (1 if is_part else gpu)
    conditions = " ".join(selector["cel"]["expression"] for selector in exactly.get("selectors", []))
    assert (f".profile == '{gpu}'" in conditions, f"quantity('{memory}')" in conditions) == (is_part, bool(memory))
    assert asked.pod_claims == [{"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in asked.tolerations
    other = claim(gpu=2 if gpu == 1 else 1, gpu_memory=memory)
    assert other.pod_claims != asked.pod_claims


@pytest.mark.parametrize(
    ("plugin", "resources", "why"),
    [
        (CLAIMS, {"gpu": 0.5}, "resources.gpu=0.5, a share: a claim grants whole GPUs, .*REQUESTS=device-plugin"),
        (AMD, {"gpu": "1g.10gb"}, "resources.gpu='1g.10gb', a MIG profile: of AMD's GPUs whole ones are claimed"),
        (AMD, {"gpu": 1, "gpu_memory": "8Gi"}, "resources.gpu_memory='8Gi': of AMD's"),
    ],
)
def test_what_no_claim_grants_is_refused_by_name(plugin: DevicePlugin, resources: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"Executor 'train': .*{why}"):
        check(make_cluster("gpu.nvidia.com"), plugin, **resources)


def test_a_claim_is_refused_where_the_cluster_has_no_such_device_class() -> None:
    check(make_cluster("gpu.nvidia.com"), gpu=1)
    check(make_cluster("gpu.amd.com"), AMD, gpu=1)
    check(make_cluster())
    check(make_cluster(), DevicePlugin(), gpu=1)
    with pytest.raises(UnsupportedError, match=r"no device class 'mig.nvidia.com' .*but gpu.*GPU_PART_CLASS=NAME"):
        check(make_cluster("gpu.nvidia.com"), gpu="1g.10gb")
    with pytest.raises(UnsupportedError, match=r"no device class 'gpu.nvidia.com' .*but none.*GPU_CLASS=NAME"):
        check(make_cluster(), gpu=1)
    with pytest.raises(UnsupportedError, match=r"no DeviceClass \(resource.k8s.io/v1\): it needs Kubernetes 1.34"):
        check(MemoryCluster(unknown=("DeviceClass",)), gpu=1)


@pytest.mark.parametrize(("version", "is_lost"), [("v3.6.2", True), ("v3.7.0", False), ("v4.0.8", False), ("", False)])
def test_steps_claim_nothing_where_argo_would_lose_it(version: str, *, is_lost: bool) -> None:
    cluster = make_cluster("gpu.nvidia.com", argo=version)
    check(cluster)
    if is_lost:
        with pytest.raises(UnsupportedError, match=r"Executor 'train': Argo Workflows v3.6.2 .*Upgrade it to 3.7"):
            check(cluster, gpu=1)
    else:
        check(cluster, gpu=1)


def test_engines_that_lose_claims_are_refused_by_name_with_one_that_does_not(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("class M: pass\n")
    (tmp_path / "ring.py").write_text("")
    service = sf.Service(name="m", implementation="m.py:M", resources=sf.Resources(gpu=1))
    online = sf.Workflow(name="serve", type="online", nodes=[service])
    ranks = sf.MPIWorkload(name="ring", mainfile="ring.py", n_tasks=2, resources_per_task=sf.Resources(gpu=1))
    hpc = sf.Workflow(name="hpc", type="mpi", nodes=[ranks])
    app = sf.Application(name="shop", app_dir=tmp_path, workflows=[online, hpc])

    def settings(**fields: Any) -> KubernetesSettings:
        return KubernetesSettings.model_validate(
            {"gpu_requests": "resource-claims", "mpi_image": "lab/mpi:1", **fields}
        )

    check_workflow(app, online, compute_shape(online), settings(serving="kserve"))
    check_workflow(app, online, compute_shape(online), settings(serving="seldon", gpu_requests="device-plugin"))
    with pytest.raises(
        UnsupportedError, match=r"Workflow 'serve': Seldon Core .*without their claims .*SERVING=deployment"
    ):
        check_workflow(app, online, compute_shape(online), settings(serving="seldon"))
    build_pod_program(app, hpc, settings(mpi="mpi-operator"))
    with pytest.raises(
        UnsupportedError, match=r"MPIWorkload 'ring': Volcano .*without their claims .*MPI=mpi-operator"
    ):
        build_pod_program(app, hpc, settings(mpi="volcano"))


def test_a_template_that_was_deleted_is_made_again_for_a_pod_that_starts(tmp_path: Path) -> None:
    served = Served(tmp_path, gpu_requests="resource-claims")
    served.cluster.create(make_class("gpu.nvidia.com"))
    served.deploy(resources=sf.Resources(gpu=1))
    (template,) = served.cluster.find("ResourceClaimTemplate")[0]
    (deployment,) = served.cluster.find("Deployment")[0]
    (named,) = deployment["spec"]["template"]["spec"]["resourceClaims"]
    assert named["resourceClaimTemplateName"] == template["metadata"]["name"]
    served.cluster.delete("ResourceClaimTemplate", template["metadata"]["name"], template["metadata"]["namespace"])
    for pod in served.get_objects("Pod"):  # one is to start
        served.cluster.patch("Pod", pod, NAMESPACE, {"status": {"conditions": []}}, subresource="status")
    (message,) = served.reconcile()
    assert "recreated the ResourceClaimTemplate" in message
    assert served.cluster.find("ResourceClaimTemplate")[0][0]["spec"] == template["spec"]


def test_a_resource_that_a_device_class_grants_is_not_missed_on_nodes() -> None:
    cluster = make_cluster()
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {}, "status": {}})
    workflow = Workflow(name="wf", nodes=[step("train", image="shop/train:1", resources=sf.Resources(gpu=1))])
    assert "fits on no node" in str(plan_steps(cluster, workflow, DevicePlugin()).steps[0].notes)
    cluster.create(make_class("gpu.nvidia.com", "nvidia.com/gpu"))
    assert "fits on no node" not in str(plan_steps(cluster, workflow, DevicePlugin()).steps[0].notes)


def test_the_doctor_says_what_gpus_are_claimed_of() -> None:
    plain, claiming = KubernetesSettings(), KubernetesSettings(gpu_requests="resource-claims")
    old = MemoryCluster(unknown=("DeviceClass",))
    assert list(check_device_classes(old, plain)) == list(check_device_classes(make_cluster("a.com"), plain)) == []
    assert [finding.mark for finding in check_device_classes(old, claiming)] == ["✗"]
    (finding,) = check_device_classes(make_cluster("gpu.nvidia.com", "mig.nvidia.com"), claiming)
    assert (finding.mark, finding.found) == ("✓", "the device classes are gpu.nvidia.com, mig.nvidia.com")
    (finding,) = check_device_classes(make_cluster("mig.nvidia.com"), claiming)
    assert (finding.mark, "GPU_CLASS" in finding.advice) == ("✗", True)
    cluster = make_cluster()
    cluster.create(make_class("gpu.nvidia.com", "nvidia.com/gpu"))
    (finding,) = check_device_classes(cluster, plain)
    assert finding.found == "the device class gpu.nvidia.com grants nvidia.com/gpu, which no node counts"


def test_the_patch_of_a_step_is_what_argo_reads() -> None:
    manifest = make_manifest([step("train", resources=sf.Resources(gpu=1))], plugin=CLAIMS)
    (template,) = [entry for entry in manifest["spec"]["templates"] if entry["name"] == "step-train"]
    patch = template["podSpecPatch"]
    assert yaml.safe_load(patch) == json.loads(patch) == {"resourceClaims": claim(gpu=1).pod_claims}
    assert template["container"]["resources"] == {"claims": [{"name": "gpu"}]}
