"""What code may rely on of a cluster, held by the double and, with KUBECONFIG, by a real one."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from scanflow.backends.kubernetes.api_errors import ConflictError, ExpiredError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import MANAGED_SELECTOR, build_labels
from scanflow.errors import (
    AccessDeniedError,
    InvalidError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from scanflow.testing.memory_cluster import MemoryCluster
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.cluster)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "memory":
        yield MemoryCluster()
        return
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster")
    cluster = Cluster(KubernetesSettings.from_environment())
    yield cluster
    cluster.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"scanflow-contract-{uuid.uuid4().hex[:8]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    cluster.delete("Namespace", name)


def config_map(namespace: str, name: str = "some", **data: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": build_labels("shop", "data")}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(namespace: str, image: str = "localhost/base:lab", **more: Any) -> Manifest:
    container = {"name": "main", "image": image, "command": ["sleep", "60"], "imagePullPolicy": "IfNotPresent"}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": namespace}, "spec": spec}


def edit_config_map(cluster: Cluster, name: str, namespace: str, **data: str) -> None:
    """Change a ConfigMap as a person does."""
    if isinstance(cluster, MemoryCluster):
        cluster.edit("ConfigMap", name, namespace, {"data": data})
    else:  # what this writes is by another manager too: one that wrote, not applied
        cluster.patch("ConfigMap", name, namespace, {"data": data})


def test_what_is_applied_again_changes_nothing(cluster: Cluster, namespace: str) -> None:
    first = cluster.apply(config_map(namespace, a="1"))
    again = cluster.apply(config_map(namespace, a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert again["data"] == {"a": "1"}


def test_every_character_of_unicode_is_kept(cluster: Cluster, namespace: str) -> None:
    text = "🚀 \U0001d6fc é \u2028 \x85 \x7f \ufeff \U0010ffff"
    assert cluster.apply(config_map(namespace, a=text))["data"] == {"a": text}
    assert cluster.create(config_map(namespace, "other", a=text))["data"] == {"a": text}
    assert cluster.patch("ConfigMap", "other", namespace, {"data": {"b": text}})["data"] == {"a": text, "b": text}


def test_a_text_that_is_not_unicode_is_refused_with_the_object_and_the_field(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(InvalidError, match=r"'some'.*data\.a"):
        cluster.apply(config_map(namespace, a="caf\udce9"))


def test_what_is_no_longer_applied_is_removed(cluster: Cluster, namespace: str) -> None:
    cluster.apply(config_map(namespace, a="1", b="2"))
    edit_config_map(cluster, "some", namespace, c="3")
    assert cluster.apply(config_map(namespace, b="2"))["data"] == {"b": "2", "c": "3"}


def test_a_field_that_another_one_changed_is_a_conflict_until_it_is_forced(cluster: Cluster, namespace: str) -> None:
    cluster.apply(config_map(namespace, a="1"))
    edit_config_map(cluster, "some", namespace, a="2")
    with pytest.raises(ConflictError, match=r"1 conflict.*\.data\.a"):
        cluster.apply(config_map(namespace, a="1"))
    assert cluster.apply(config_map(namespace, a="2"))["data"] == {"a": "2"}  # the same value is owned by both
    assert cluster.apply(config_map(namespace, a="3"), force=True)["data"] == {"a": "3"}
    assert cluster.apply(config_map(namespace, a="4"))["data"] == {"a": "4"}


def test_containers_are_merged_by_their_name(cluster: Cluster, namespace: str) -> None:
    def deployment(**container: Any) -> Manifest:
        labels = {"app": "one"}
        main = {"name": "main", "image": "localhost/base:lab", **container}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "one", "namespace": namespace},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [main]}},
            },
        }

    cluster.apply(deployment(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]))
    after = cluster.apply(deployment(env=[{"name": "B", "value": "3"}]))
    (container,) = after["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "B", "value": "3"}]
    assert container["image"] == "localhost/base:lab"


def test_a_dry_run_changes_nothing(cluster: Cluster, namespace: str) -> None:
    assert cluster.apply(config_map(namespace, a="1"), dry_run=True)["data"] == {"a": "1"}
    assert cluster.get("ConfigMap", "some", namespace) is None
    cluster.create(config_map(namespace, a="1"), dry_run=True)
    cluster.create(config_map(namespace, a="1"))
    assert cluster.patch("ConfigMap", "some", namespace, {"data": {"a": "2"}}, dry_run=True)["data"] == {"a": "2"}
    manifest = cluster.get("ConfigMap", "some", namespace)
    assert manifest is not None
    assert manifest["data"] == {"a": "1"}


def test_an_object_is_created_once(cluster: Cluster, namespace: str) -> None:
    cluster.create(config_map(namespace))
    with pytest.raises(ConflictError, match='"some" already exists'):
        cluster.create(config_map(namespace))


def test_the_cluster_makes_a_name_where_only_its_beginning_is_given(cluster: Cluster, namespace: str) -> None:
    manifest = config_map(namespace)
    manifest["metadata"] = {"generateName": "run-", "namespace": namespace}
    names = {cluster.create(manifest)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("run-") for name in names)


def test_a_version_that_was_overtaken_is_a_conflict(cluster: Cluster, namespace: str) -> None:
    version = cluster.create(config_map(namespace, a="1"))["metadata"]["resourceVersion"]
    seen = {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}
    cluster.patch("ConfigMap", "some", namespace, seen)
    with pytest.raises(ConflictError, match="has been modified"):
        cluster.patch("ConfigMap", "some", namespace, seen)


def test_a_version_that_was_overtaken_is_not_applied_by_force_either(cluster: Cluster, namespace: str) -> None:
    created = cluster.create(config_map(namespace, a="1"))
    seen = config_map(namespace, a="2")
    seen["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"]
    assert cluster.apply(seen, force=True)["data"] == {"a": "2"}
    with pytest.raises(ConflictError):
        cluster.apply({**seen, "data": {"a": "3"}}, force=True)
    cluster.delete("ConfigMap", "some", namespace)
    assert cluster.apply(seen, force=True)["data"] == {"a": "2"}, "one that was deleted is made anew"
    with pytest.raises(ConflictError):
        cluster.apply(seen, force=True)


def test_an_object_may_be_read_without_its_content(cluster: Cluster, namespace: str) -> None:
    whole = cluster.create(config_map(namespace, a="1"))
    (listed,), version = cluster.find("ConfigMap", namespace, labels=MANAGED_SELECTOR, metadata_only=True)
    read = cluster.get("ConfigMap", "some", namespace, metadata_only=True)
    assert read is not None
    for manifest in (listed, read):
        assert "data" not in manifest
        for name in ("name", "namespace", "uid", "resourceVersion", "labels"):
            assert manifest["metadata"][name] == whole["metadata"][name]
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMap", "v1")
    assert version
    assert cluster.get("ConfigMap", "none", namespace, metadata_only=True) is None
    assert cluster.find("ConfigMap", namespace, labels="of=nobody", metadata_only=True)[0] == []


def test_none_in_a_patch_removes_a_field(cluster: Cluster, namespace: str) -> None:
    cluster.apply(config_map(namespace, a="1", b="2"))
    assert cluster.patch("ConfigMap", "some", namespace, {"data": {"a": None}})["data"] == {"b": "2"}


def test_what_is_not_there_is_said(cluster: Cluster, namespace: str) -> None:
    assert cluster.get("ConfigMap", "none", namespace) is None
    assert not cluster.delete("ConfigMap", "none", namespace)
    with pytest.raises(NotFoundError, match='configmaps "none" not found'):
        cluster.patch("ConfigMap", "none", namespace, {})
    with pytest.raises(NotFoundError, match='namespaces "scanflow-nowhere" not found'):
        cluster.apply(config_map("scanflow-nowhere"))


def test_objects_are_found_by_labels_and_fields(cluster: Cluster, namespace: str) -> None:
    for name in ("a", "b", "c"):
        manifest = config_map(namespace, name)
        manifest["metadata"]["labels"]["kind"] = name
        cluster.create(manifest)

    def list_names(labels: str = "", fields: str = "") -> list[str]:
        return [
            config_map["metadata"]["name"]
            for config_map in cluster.find("ConfigMap", namespace, labels=labels, fields=fields)[0]
        ]

    assert list_names(MANAGED_SELECTOR) == ["a", "b", "c"]
    assert list_names(f"{MANAGED_SELECTOR},kind!=b") == ["a", "c"]
    assert list_names("kind in (b, c),kind notin (c)") == ["b"]
    assert list_names("kind,!other") == ["a", "b", "c"]
    assert list_names(MANAGED_SELECTOR, "metadata.name=b") == ["b"]
    assert cluster.has_any("ConfigMap", labels=f"{MANAGED_SELECTOR},kind=a")
    assert not cluster.has_any("ConfigMap", labels=f"{MANAGED_SELECTOR},kind=no-such")
    (manifest_,) = cluster.find("ConfigMap", namespace, labels="kind=a")[0]
    assert (manifest_["apiVersion"], manifest_["kind"]) == ("v1", "ConfigMap")


def test_a_watch_sees_what_happens_after_a_list(cluster: Cluster, namespace: str) -> None:
    cluster.create(config_map(namespace, "before"))
    _, version = cluster.find("ConfigMap", namespace, labels=MANAGED_SELECTOR)
    seen: list[tuple[str, str]] = []
    ended = threading.Event()

    def look() -> None:
        for event in cluster.watch("ConfigMap", namespace, labels=MANAGED_SELECTOR, since=version, within_s=PATIENCE_S):
            seen.append((event.type, event.object["metadata"]["name"]))
            if event.type == "DELETED":
                break
        ended.set()

    threading.Thread(target=look, daemon=True).start()
    cluster.create(config_map(namespace, "after"))
    other = config_map(namespace, "other")
    other["metadata"]["labels"] = {}
    cluster.create(other)
    cluster.patch("ConfigMap", "after", namespace, {"data": {"a": "1"}})
    cluster.delete("ConfigMap", "after", namespace)
    assert ended.wait(PATIENCE_S)
    assert seen == [("ADDED", "after"), ("MODIFIED", "after"), ("DELETED", "after")]


def test_a_watch_ends_by_itself(cluster: Cluster, namespace: str) -> None:
    _, version = cluster.find("ConfigMap", namespace)
    assert not list(cluster.watch("ConfigMap", namespace, labels=MANAGED_SELECTOR, since=version, within_s=1))


def test_a_watch_from_too_long_ago_is_refused() -> None:
    cluster = MemoryCluster()
    cluster.create(config_map("default"))
    cluster.forget()
    with pytest.raises(ExpiredError):
        list(cluster.watch("ConfigMap", since="1", within_s=1))


def test_an_object_with_a_finalizer_stays_until_it_is_taken_away(cluster: Cluster, namespace: str) -> None:
    manifest = config_map(namespace)
    manifest["metadata"]["finalizers"] = ["scanflow.dev/test"]
    cluster.create(manifest)
    assert cluster.delete("ConfigMap", "some", namespace)
    current = cluster.get("ConfigMap", "some", namespace)
    assert current is not None
    assert "deletionTimestamp" in current["metadata"]
    cluster.patch("ConfigMap", "some", namespace, {"metadata": {"finalizers": None}})
    assert cluster.get("ConfigMap", "some", namespace) is None


def test_a_namespace_takes_its_objects_with_it(cluster: Cluster) -> None:
    name = f"scanflow-contract-{uuid.uuid4().hex[:8]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.create(config_map(name))
    cluster.delete("Namespace", name)
    wait_until(lambda: cluster.get("Namespace", name) is None, "the namespace is gone")
    assert cluster.find("ConfigMap", name)[0] == []


def test_a_namespace_waits_for_the_finalizers_in_it(cluster: Cluster) -> None:
    name = f"scanflow-contract-{uuid.uuid4().hex[:8]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    manifest = config_map(name)
    manifest["metadata"]["finalizers"] = ["scanflow.dev/test"]
    cluster.create(manifest)
    cluster.delete("Namespace", name)
    namespace = cluster.get("Namespace", name)
    assert namespace is not None
    assert "deletionTimestamp" in namespace["metadata"]
    with pytest.raises(AccessDeniedError, match="is being terminated"):
        cluster.create(config_map(name, "other"))
    cluster.patch("ConfigMap", "some", name, {"metadata": {"finalizers": None}})
    wait_until(lambda: cluster.get("Namespace", name) is None, "the namespace is gone")


def test_an_object_takes_what_it_owns_with_it(cluster: Cluster, namespace: str) -> None:
    owner = cluster.create(config_map(namespace, "owner"))
    owned = config_map(namespace, "owned")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned["metadata"]["ownerReferences"] = [reference]
    cluster.create(owned)
    cluster.delete("ConfigMap", "owner", namespace)
    wait_until(lambda: cluster.get("ConfigMap", "owned", namespace) is None, "what is owned is gone")


def test_a_review_says_what_is_allowed(cluster: Cluster) -> None:
    asked = {"verb": "create", "resource": "pods", "namespace": "default"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": asked},
    }
    assert cluster.create(review)["status"]["allowed"] is True


def test_the_version_is_read(cluster: Cluster) -> None:
    assert '"gitVersion"' in cluster.fetch_text("/version")
    with pytest.raises(NotFoundError):
        cluster.fetch_text("/no-such-document")


def test_a_pod_tells_what_it_wrote_and_runs_commands(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod(namespace))
    if isinstance(cluster, MemoryCluster):
        cluster.logs[namespace, "one"] = b"hello\n"
        cluster.executed[namespace, "one"] = lambda command: " ".join(command[1:]) + "\n"
    else:
        cluster.delete("Pod", "one", namespace, grace_s=0)
        wait_until(lambda: cluster.get("Pod", "one", namespace) is None, "the pod is gone")
        speaking = pod(namespace)
        speaking["spec"]["containers"][0]["command"] = ["sh", "-c", "echo hello; sleep 60"]
        cluster.apply(speaking)
        wait_until(lambda: (cluster.get("Pod", "one", namespace) or {})["status"]["phase"] == "Running", "the pod runs")
        wait_until(lambda: b"".join(cluster.log("one", namespace)) != b"", "the pod writes")
    assert b"".join(cluster.log("one", namespace)) == b"hello\n"
    assert cluster.exec("one", namespace, ["echo", "well", "done"]) == "well done\n"


class TestWhatATestPlays:
    def test_a_missing_engine_is_named(self) -> None:
        cluster = MemoryCluster(unknown=("Workflow",))
        with pytest.raises(UnsupportedError, match="needs Argo Workflows"):
            cluster.find("Workflow", "default")

    def test_a_refusal_is_raised_and_nothing_is_kept(self) -> None:
        cluster = MemoryCluster()
        cluster.refuse(lambda verb, kind, _: UsageError("exceeded quota") if kind == "Pod" else None)
        with pytest.raises(UsageError, match="exceeded quota"):
            cluster.create(pod("default"))
        assert cluster.create(config_map("default"))

    def test_a_server_that_is_gone_answers_nothing(self) -> None:
        cluster = MemoryCluster()
        cluster.down = True
        with pytest.raises(UnavailableError, match="does not answer"):
            cluster.get("Pod", "one", "default")

    def test_a_controller_is_played(self) -> None:
        cluster = MemoryCluster()
        cluster.play(
            "Pod",
            lambda api, pod: api.edit("Pod", pod["metadata"]["name"], "default", {"status": {"phase": "Running"}}),
        )
        cluster.create(pod("default"))
        manifest = cluster.get("Pod", "one", "default")
        assert manifest is not None
        assert manifest["status"] == {"phase": "Running"}

    def test_who_edits_is_named(self) -> None:
        cluster = MemoryCluster()
        cluster.apply(config_map("default", a="1"))
        cluster.edit("ConfigMap", "some", "default", {"data": {"a": "2"}}, manager="argocd")
        with pytest.raises(ConflictError, match='"argocd"'):
            cluster.apply(config_map("default", a="1"))

    def test_an_object_says_where_it_is(self) -> None:
        manifest = config_map("default")
        del manifest["metadata"]["namespace"]
        with pytest.raises(InvalidError, match="names no namespace"):
            MemoryCluster().apply(manifest)
