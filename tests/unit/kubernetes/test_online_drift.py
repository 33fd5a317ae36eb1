"""What others do to a service's objects, and what becomes of it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.online import instance_pods, object_drift
from scanflow.backends.kubernetes.online.service_store import ServiceStore
from tests.unit.kubernetes.kubernetes_services import NAMESPACE, Served


@pytest.fixture
def served_service(tmp_path: Path) -> Served:
    served = Served(tmp_path)
    served.deploy()
    return served


def test_where_nothing_was_changed_nothing_is_written_and_little_is_read(served_service: Served) -> None:
    version = served_service.cluster.find("Pod")[1]
    assert served_service.reconcile() == []
    assert served_service.cluster.find("Pod")[1] == version
    record = served_service.services.service("serving")
    served_service.cluster.calls.clear()
    served_service.services.reconcile(record, observe=lambda _: None)
    assert served_service.cluster.calls == [], "it was looked at a moment ago"
    served_service.objects.refreshed_at = None
    served_service.services.reconcile(record, observe=lambda _: None)
    assert {call.verb for call in served_service.cluster.calls} == {"find"}, "in lists, whatever there is of it"


def test_a_service_is_compared_with_its_objects_again_only_when_one_of_them_changed(
    served_service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    def suspicious(manifest: Manifest, *_: object) -> bool:
        held.append(manifest["kind"])
        return False

    monkeypatch.setattr(object_drift, "is_suspicious", suspicious)
    for expected in ("all", "none"):
        assert served_service.reconcile() == []
        assert bool(held) is (expected == "all")
        held.clear()
    served_service.cluster.edit("Service", "serving", NAMESPACE, {"spec": {"sessionAffinity": "ClientIP"}})
    served_service.reconcile()
    assert held


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap"])
def test_what_a_user_deletes_is_named_and_made_again(served_service: Served, kind: str) -> None:
    before = served_service.get_objects(kind)
    gone = [name for name in before if name != "service-serving"]
    for name in gone:
        served_service.cluster.delete(kind, name, NAMESPACE)
    assert served_service.reconcile() == [
        f"recreated the {kind} {NAMESPACE}/{name}, which another client deleted" for name in sorted(gone, reverse=True)
    ]
    after = served_service.get_objects(kind)
    assert {name: manifest.get("spec", manifest.get("data")) for name, manifest in after.items()} == {
        name: manifest.get("spec", manifest.get("data")) for name, manifest in before.items()
    }
    assert served_service.services.service("serving").state == "ready"
    assert served_service.reconcile() == []


def test_what_pods_mount_is_made_again_where_it_is_known_once_a_pod_is_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_TOKEN", "secret")
    (tmp_path / "app").mkdir()
    served = Served(tmp_path / "app")
    served.serving, served.code = sf.Serving(auth="env:SERVING_TOKEN"), True
    served.deploy()
    maps = [config_map["metadata"]["name"] for config_map in served.cluster.find("ConfigMap", NAMESPACE)[0]]
    (name,) = (map_name for map_name in maps if map_name.startswith("code-"))
    token = served.get_objects("Secret")["service-serving-token"]
    served.cluster.delete("ConfigMap", name, NAMESPACE)
    served.cluster.delete("Secret", "service-serving-token", NAMESPACE)
    assert served.reconcile() == [], "its instances run, and have what they mounted"
    for pod in served.get_objects("Pod"):
        served.cluster.patch("Pod", pod, NAMESPACE, {"status": {"conditions": []}}, subresource="status")
    assert served.reconcile() == [
        f"recreated the ConfigMap {NAMESPACE}/{name}, which another client deleted",
        f"recreated the Secret {NAMESPACE}/service-serving-token, which another client deleted",
    ]
    assert served.get_objects("Secret")["service-serving-token"]["data"] == token["data"]
    (tmp_path / "app" / "multiply.py").write_text("changed = True\n", encoding="utf-8")
    served.cluster.delete("ConfigMap", name, NAMESPACE)
    (line,) = served.reconcile()
    assert f"the ConfigMap {NAMESPACE}/{name}, which pods of 'serving' mount" in line
    assert "scanflow deploy" in line
    assert served.reconcile() == [], "it is told once"


def test_what_a_user_edits_is_named_with_whom_and_put_back(served_service: Served) -> None:
    patch = {"spec": {"selector": {"scanflow.dev/service": "another"}}}
    served_service.cluster.edit("Service", "serving", NAMESPACE, patch)
    (text,) = served_service.reconcile()
    assert text.startswith(f"restored the Service {NAMESPACE}/serving, which another client (kubectl-edit) changed: ")
    assert "another" in text
    assert served_service.answering() == {"r1"}
    assert served_service.reconcile() == []


def test_what_a_user_adds_is_left(served_service: Served) -> None:
    patch = {"metadata": {"annotations": {"team": "x"}}, "spec": {"sessionAffinity": "ClientIP"}}
    served_service.cluster.edit("Service", "serving", NAMESPACE, patch)
    assert served_service.reconcile() == []
    assert served_service.get_objects("Service")["serving"]["spec"]["sessionAffinity"] == "ClientIP"


def test_the_number_of_instances_is_put_back_unless_an_autoscaler_has_it(served_service: Served) -> None:
    served_service.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"spec": {"replicas": 0}})
    assert served_service.reconcile() == [
        f"restored the Deployment {NAMESPACE}/serving-r1, which another client changed: ~ .spec.replicas: 0 -> 1"
    ]
    served_service.change(scaling=sf.Scaling(metric="cpu", min=1, max=4, target=0.5), cores=1)
    name = next(iter(served_service.get_objects("Deployment")))
    served_service.cluster.edit("Deployment", name, NAMESPACE, {"spec": {"replicas": 3}}, manager="autoscaler")
    assert served_service.reconcile() == []
    served_service.cluster.delete("HorizontalPodAutoscaler", name, NAMESPACE)
    assert served_service.reconcile() == [
        f"recreated the HorizontalPodAutoscaler {NAMESPACE}/{name}, which another client deleted"
    ]


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_an_object_that_changes_under_the_hand_that_puts_it_right_is_put_right_at_the_next_look(
    served_service: Served, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A controller writes an object's status just then, and what is wanted of the object stays wrong."""
    cluster, get, looks = served_service.cluster, served_service.cluster.get, count()
    edits = {"Deployment": {"replicas": 0}, "Service": {"selector": {"scanflow.dev/service": "another"}}}
    name, patch = {"Deployment": "serving-r1", "Service": "serving"}[kind], edits[kind]
    cluster.edit(kind, name, NAMESPACE, {"spec": patch})

    def get_then_changed(asked: str, *where: Any) -> Manifest | None:
        manifest = get(asked, *where)
        if asked == kind:
            cluster.edit(kind, name, NAMESPACE, {"status": {"looks": next(looks)}}, manager="controller")
        return manifest

    monkeypatch.setattr(cluster, "get", get_then_changed)
    assert served_service.reconcile() == []
    monkeypatch.undo()
    (line,) = served_service.reconcile()
    assert "restored" in line


def test_a_repair_reads_the_service_where_it_is(served_service: Served) -> None:
    served_service.cluster.delete("Service", "serving", NAMESPACE)
    served_service.cluster.calls.clear()
    assert len(served_service.reconcile()) == 1
    lists = [
        call
        for call in served_service.cluster.calls
        if (call.verb, call.kind, call.namespace) == ("find", "ConfigMap", None)
    ]
    assert len(lists) == 3, "one for the record, and one of all services and one of all objects for all repairs"


def test_a_service_that_was_deployed_with_other_settings_or_is_changed_is_left(served_service: Served) -> None:
    served_service.cluster.delete("Service", "serving", NAMESPACE)
    record = served_service.services.service("serving")
    seen: list[Any] = []
    served_service.objects.refreshed_at = None
    served_service.make_another(serving="kserve").reconcile(record, observe=seen.append)
    served_service.objects.refreshed_at = None
    store = ServiceStore(served_service.cluster)
    store.change("serving", lambda now: now and now.model_copy(update={"generation": now.generation + 1}))
    served_service.services.reconcile(record, observe=seen.append)
    assert seen == []
    assert "serving" not in served_service.get_objects("Service")


def test_what_pods_miss_is_reported_again_once_it_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_TOKEN", "secret")
    served = Served(tmp_path)
    served.serving = sf.Serving(auth="env:SERVING_TOKEN")
    served.deploy()
    monkeypatch.delenv("SERVING_TOKEN")
    for _ in range(2):
        served.cluster.delete("Secret", "service-serving-token", NAMESPACE)
        _readiness(served, [])
        (line,) = served.reconcile()
        assert "its contents are not stored here" in line
        assert served.reconcile() == []
        monkeypatch.setenv("SERVING_TOKEN", "secret")
        served.deploy(3)
        monkeypatch.delenv("SERVING_TOKEN")
        _readiness(served, [{"type": "Ready", "status": "True"}])
        served.reconcile()


def test_what_is_made_again_while_the_service_is_deleted_does_not_stay(
    served_service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, apply = served_service.services.service("serving"), served_service.cluster.apply
    served_service.cluster.delete("Deployment", "serving-r1", NAMESPACE)

    def delete_first(manifest: Manifest, **how: Any) -> Manifest:
        if how.get("dry_run"):
            return apply(manifest, **how)
        monkeypatch.undo()
        served_service.make_another().delete("serving", observe=lambda _: None)
        return apply(manifest, **how)

    monkeypatch.setattr(served_service.cluster, "apply", delete_first)
    served_service.objects.refreshed_at = None
    messages: list[Any] = []
    served_service.services.reconcile(record, observe=messages.append)
    assert (served_service.get_objects("Deployment"), served_service.get_objects("Pod"), messages) == ({}, {}, [])


def test_a_label_that_a_user_takes_away_is_put_back(served_service: Served) -> None:
    assert served_service.reconcile() == []
    patch = {"metadata": {"labels": {"scanflow.dev/revision": None}}}
    served_service.cluster.edit("Deployment", "serving-r1", NAMESPACE, patch)
    (line,) = served_service.reconcile()
    assert "scanflow.dev/revision" in line
    assert (
        list(served_service.get_objects("Deployment")["serving-r1"]["metadata"]["labels"]).count(
            "scanflow.dev/revision"
        )
        == 1
    )


def _readiness(served: Served, conditions: list[Manifest]) -> None:
    for pod in served.get_objects("Pod"):
        served.cluster.patch("Pod", pod, NAMESPACE, {"status": {"conditions": conditions}}, subresource="status")


def test_two_versions_of_scanflow_leave_each_others_services_as_they_are_until_those_are_changed(
    served_service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one writes pods otherwise: only what it changes itself, or finds gone, it writes so."""
    template = instance_pods.build_pod_template

    def newer_template(*args: Any, **how: Any) -> Manifest:
        pod_template = template(*args, **how)
        annotations = {**pod_template["metadata"]["annotations"], "newer": "yes"}
        return {**pod_template, "metadata": {**pod_template["metadata"], "annotations": annotations}}

    def as_version(newer: bool) -> None:
        monkeypatch.setattr(instance_pods, "build_pod_template", newer_template if newer else template)

    def newer_pods() -> list[bool]:
        return ["newer" in pod["metadata"]["annotations"] for pod in served_service.get_objects("Pod").values()]

    before = set(served_service.get_objects("Pod"))
    for newer in (True, False, True):
        as_version(newer)
        assert served_service.reconcile() == []
    assert set(served_service.get_objects("Pod")) == before

    served_service.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"spec": {"replicas": 0}})
    served_service.cluster.edit(
        "Service", "serving", NAMESPACE, {"spec": {"selector": {"scanflow.dev/service": "another"}}}
    )
    message = "\n".join(served_service.reconcile())
    assert ".spec.replicas: 0 -> 1" in message, "what both write alike is held against what they write"
    assert "restored the Service" in message

    served_service.cluster.delete("Deployment", "serving-r1", NAMESPACE)
    assert served_service.reconcile() == [
        f"recreated the Deployment {NAMESPACE}/serving-r1, which another client deleted"
    ]
    assert newer_pods() == [True]
    for _ in range(2):
        as_version(False)
        served_service.reconcile()
        as_version(True)
        assert served_service.reconcile() == [], "they do not go on for ever"

    assert served_service.change(instances=2).state == "ready"
    assert newer_pods() == [True, True]
    as_version(False)
    assert served_service.reconcile() == []


def test_a_service_of_which_nobody_noted_how_it_was_written_is_left(served_service: Served) -> None:
    annotations: dict[str, None] = {"scanflow.dev/rendered": None}
    served_service.cluster.edit("ConfigMap", "service-serving", NAMESPACE, {"metadata": {"annotations": annotations}})
    served_service.cluster.edit(
        "Service", "serving", NAMESPACE, {"spec": {"selector": {"scanflow.dev/service": "another"}}}
    )
    assert served_service.reconcile() == []
