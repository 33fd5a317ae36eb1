"""Runs whose outputs are in an object store, as a machine that does not reach it sees them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.environments import EnsuredEnvironment
from scanflow.backends.findings import Finding
from scanflow.backends.kubernetes.all_runs import KubernetesRuns
from scanflow.backends.kubernetes.batch.preparation import RunPreparation
from scanflow.backends.kubernetes.environment.delete import delete_environment
from scanflow.backends.kubernetes.environment.manifests import build_environment_manifests, build_namespace
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.mpi.result_volume import check_volume
from scanflow.backends.kubernetes.storage_findings import check_outputs_storage
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError
from scanflow.settings import Settings
from scanflow.testing.memory_cluster import MemoryCluster
from tests.unit.kubernetes.test_batch_runs import NAMESPACE, Shop


class StoreShop(Shop):
    """A shop whose steps have their outputs in a store; what its pods print is set."""

    own = KubernetesSettings(pending_s=1e-9, outputs="s3://outputs/runs", outputs_secret="store")

    def __init__(self, settings: Settings, folder: Path) -> None:
        super().__init__(settings, folder)
        self.prints: Any = []
        self.pods: list[Manifest] = []
        make_secret(self.cluster, NAMESPACE)
        self.cluster.play("Pod", self._read)

    def make_another(self, own: KubernetesSettings | None = None) -> KubernetesRuns:
        models: Any = lambda _tracker: None  # noqa: E731  no step asks for one
        preparation = RunPreparation(
            lambda _: EnsuredEnvironment(NAMESPACE, None, uid=self.uid), own or self.own, lambda _: None, models
        )
        return KubernetesRuns(self.settings, self.cluster, own or self.own, preparation)

    def _read(self, cluster: MemoryCluster, pod: Manifest) -> None:
        if pod.get("status", {}).get("phase") == "Succeeded":
            return
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.pods.append(pod)
        cluster.logs[namespace, name] = base64.b64encode(gzip.compress(json.dumps(self.prints).encode()))
        cluster.edit("Pod", name, namespace, {"status": {"phase": "Succeeded"}}, manager="kubelet")


def make_secret(cluster: MemoryCluster, namespace: str) -> None:
    metadata = {"name": "store", "namespace": namespace}
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}})


@pytest.fixture
def shop(settings: Settings, tmp_path: Path) -> StoreShop:
    return StoreShop(settings, tmp_path / "app")


def find_address(shop: StoreShop, run: str) -> str:
    container = shop.workflow(run)["spec"]["templateDefaults"]["container"]
    return str({entry["name"]: entry["value"] for entry in container["env"]}["SCANFLOW_OUTPUTS_STORE"])


def test_pods_have_a_folder_of_their_own_and_the_address_and_secret_of_the_store(shop: StoreShop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Succeeded")
    shop.drive(run)
    spec = shop.workflow(run)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["outputs"] == {"name": "outputs", "emptyDir": {}}
    assert volumes["store"]["secret"]["secretName"] == "store"
    container = spec["templateDefaults"]["container"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert (mounts["outputs"], mounts["store"]) == ("/scanflow/outputs", "/scanflow/store")
    assert find_address(shop, run).startswith(f"s3://outputs/runs/{NAMESPACE}/")
    assert all("store" not in str(source) for source in container["envFrom"])


def test_a_store_needs_no_claim() -> None:
    app = sf.Application(name="shop", team="data")
    kinds = [manifest["kind"] for manifest in build_environment_manifests(app, StoreShop.own)]
    assert "PersistentVolumeClaim" not in kinds


def test_what_remains_in_the_store_is_named_when_an_environment_is_deleted() -> None:
    cluster = MemoryCluster(namespaces=())
    cluster.create(build_namespace(sf.Application(name="shop", team="data"), StoreShop.own))
    deletion = delete_environment(cluster, "shop", "data", StoreShop.own)
    assert (deletion.namespace_removed, deletion.left) == (True, (f"objects below s3://outputs/runs/{NAMESPACE}/",))


def test_a_secret_that_is_missing_is_named_before_the_run_is_there(shop: StoreShop) -> None:
    shop.cluster.delete("Secret", "store", NAMESPACE)
    with pytest.raises(
        NotFoundError, match=r"no Secret 'store' in the namespace .*kubectl -n .* create secret generic"
    ):
        shop.enter()
    assert shop.runs.runs(limit=5) == []


def test_an_environment_created_again_does_not_take_what_an_earlier_one_left(shop: StoreShop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    shop.drive(run)
    before = find_address(shop, run)
    shop.cluster.delete("Namespace", NAMESPACE)
    shop.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    make_secret(shop.cluster, NAMESPACE)
    shop.runs, shop.prints = shop.make_another(), ["a"]
    steps, started = shop.drive_again(run)
    assert (steps, started.gone) == (["a", "b"], ("a",))
    (workflow,) = shop.cluster.find("Workflow", NAMESPACE)[0]
    assert find_address(shop, workflow["metadata"]["name"]) != before


@pytest.mark.parametrize(("remaining", "steps"), [(["a"], ["b"]), ([], ["a", "b"])])
def test_a_resumed_run_runs_again_what_a_user_removed_from_the_store(
    shop: StoreShop, remaining: list[str], steps: list[str]
) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    shop.drive(run)
    shop.prints = remaining
    assert shop.drive_again(run)[0] == steps
    (pod,) = shop.pods
    assert pod["spec"]["containers"][0]["command"][3] == run


def test_outputs_that_are_elsewhere_since_the_settings_changed_are_never_believed(shop: StoreShop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    shop.drive(run)
    for own in (KubernetesSettings(pending_s=1e-9), shop.own.model_copy(update={"outputs": "s3://outputs/other"})):
        shop.runs = shop.make_another(own)
        with pytest.raises(NotFoundError, match=r"were stored in s3://outputs/runs/.*SCANFLOW_KUBERNETES_OUTPUTS was"):
            shop.runs.outputs(run, "a")
    assert shop.drive_again(run)[0] == ["a", "b"]


def test_the_files_of_steps_are_listed_with_their_paths_in_later_steps(shop: StoreShop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    shop.drive(run)
    shop.prints = {"a": [["notes/a.txt", 4]], "b": []}
    (file,) = shop.runs.files(run)
    assert (file.task, file.name, file.size_bytes) == ("a", "notes/a.txt", 4)
    assert file.path == f"/scanflow/outputs/{run}/a/notes/a.txt"
    assert shop.runs.files(run, "a") == [file]
    (pod,) = shop.pods
    assert pod["spec"]["containers"][0]["command"][3:] == [run, "a", "b"]
    assert {"name": "outputs", "emptyDir": {}} in pod["spec"]["volumes"]
    assert shop.cluster.find("Pod", NAMESPACE)[0] == []


@pytest.mark.parametrize(
    ("address", "prefix"),
    [("s3://bucket", "s3://bucket"), ("s3://bucket/a/b/", "s3://bucket/a/b"), ("gs://bucket", None)],
)
def test_outputs_are_in_an_s3_compatible_store(address: str, prefix: str | None) -> None:
    options = {"SCANFLOW_KUBERNETES_OUTPUTS": address}
    if prefix is None:
        with pytest.raises(InvalidError, match=r"s3://bucket or s3://bucket/prefix, not 'gs://bucket'"):
            KubernetesSettings.from_environment(options)
    else:
        assert KubernetesSettings.from_environment(options).outputs == prefix


def test_a_job_where_the_volume_is_the_claim_of_batch_steps_is_refused_where_there_is_none() -> None:
    workload = sf.MPIWorkload(name="solve", mainfile="solve.py", n_tasks=2, volume="scanflow-outputs")
    plan: Any = None  # it is not looked at
    with pytest.raises(
        UnsupportedError, match=r"MPIWorkload 'solve': volume='scanflow-outputs'.*ReadWriteMany, and name"
    ):
        check_volume(MemoryCluster(namespaces=(NAMESPACE,)), NAMESPACE, workload, plan, StoreShop.own)


class TestDoctor:
    def make_nodes(self, count: int) -> MemoryCluster:
        cluster = MemoryCluster(namespaces=(NAMESPACE,))
        for number in range(count):
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            metadata = {"name": f"node{number}"}
            cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status})
        return cluster

    def check(self, cluster: MemoryCluster, *, thorough: bool = False, **own: Any) -> Finding:
        (finding,) = check_outputs_storage(cluster, KubernetesSettings(**own), thorough=thorough)
        return finding

    def test_a_claim_fits_one_node_or_a_class_that_many_nodes_mount(self) -> None:
        assert self.check(self.make_nodes(1)).mark == "✓"
        assert self.check(self.make_nodes(3), storage_mode="ReadWriteMany").mark == "✓"

    def test_several_nodes_that_cannot_share_a_claim_get_a_store_suggested(self) -> None:
        finding = self.check(self.make_nodes(3))
        assert (finding.mark, "share one of 3" in finding.found) == ("–", True)
        assert "SCANFLOW_KUBERNETES_OUTPUTS=s3://bucket/prefix" in finding.advice

    def test_the_secret_of_a_store_is_to_be_in_the_environments(self) -> None:
        own: dict[str, Any] = {"outputs": "s3://outputs", "outputs_secret": "store", "namespace": NAMESPACE}
        cluster = self.make_nodes(3)
        finding = self.check(cluster, **own)
        assert (finding.mark, "no Secret 'store'" in finding.found) == ("✗", True)
        make_secret(cluster, NAMESPACE)
        assert self.check(cluster, **own).mark == "✓"

    @pytest.mark.parametrize(("phase", "mark"), [("Succeeded", "✓"), ("Failed", "✗")])
    def test_a_pod_checks_the_store(self, phase: str, mark: str) -> None:
        cluster = self.make_nodes(3)

        def end(cluster: MemoryCluster, pod: Manifest) -> None:
            if not pod.get("status"):
                cluster.logs[NAMESPACE, pod["metadata"]["name"]] = b"" if mark == "✓" else b"InvalidAccessKeyId"
                status = {"status": {"phase": phase}}
                cluster.edit("Pod", pod["metadata"]["name"], NAMESPACE, status, manager="kubelet")

        cluster.play("Pod", end)
        finding = self.check(cluster, thorough=True, outputs="s3://outputs", namespace=NAMESPACE)
        assert finding.mark == mark
        assert ("InvalidAccessKeyId" in finding.found) == (mark == "✗")
