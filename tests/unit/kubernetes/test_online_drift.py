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
from tests.unit.kubernetes.served import NAMESPACE, Served


@pytest.fixture
def served(tmp_path: Path) -> Served:
    made = Served(tmp_path)
    made.deploy()
    return made


def test_where_nothing_was_changed_nothing_is_written_and_little_is_asked(served: Served) -> None:
    version = served.cluster.find("Pod")[1]
    assert served.reconcile() == []
    assert served.cluster.find("Pod")[1] == version
    record = served.services.service("serving")
    served.cluster.calls.clear()
    served.services.reconcile(record, observe=lambda _: None)
    assert served.cluster.calls == [], "it was looked at a moment ago"
    served.objects.refreshed_at = None
    served.services.reconcile(record, observe=lambda _: None)
    assert {one.verb for one in served.cluster.calls} == {"find"}, "in lists, whatever there is of it"


def test_a_service_is_held_against_its_objects_again_only_when_one_of_them_changed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    def suspicious(manifest: Manifest, *_: object) -> bool:
        held.append(manifest["kind"])
        return False

    monkeypatch.setattr(object_drift, "is_suspicious", suspicious)
    for expected in ("all", "none"):
        assert served.reconcile() == []
        assert bool(held) is (expected == "all")
        held.clear()
    served.cluster.edit("Service", "serving", NAMESPACE, {"spec": {"sessionAffinity": "ClientIP"}})
    served.reconcile()
    assert held


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap"])
def test_what_somebody_deletes_is_named_and_made_again(served: Served, kind: str) -> None:
    before = served.there(kind)
    gone = [name for name in before if name != "service-serving"]
    for name in gone:
        served.cluster.delete(kind, name, NAMESPACE)
    assert served.reconcile() == [
        f"recreated the {kind} {NAMESPACE}/{name}, which another client deleted" for name in sorted(gone, reverse=True)
    ]
    after = served.there(kind)
    assert {name: one.get("spec", one.get("data")) for name, one in after.items()} == {
        name: one.get("spec", one.get("data")) for name, one in before.items()
    }
    assert served.services.service("serving").state == "ready"
    assert served.reconcile() == []


def test_what_pods_mount_is_made_again_where_it_is_known_once_a_pod_is_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_TOKEN", "secret")
    (tmp_path / "app").mkdir()
    served = Served(tmp_path / "app")
    served.serving, served.code = sf.Serving(auth="env:SERVING_TOKEN"), True
    served.deploy()
    maps = [one["metadata"]["name"] for one in served.cluster.find("ConfigMap", NAMESPACE)[0]]
    (name,) = (one for one in maps if one.startswith("code-"))
    token = served.there("Secret")["service-serving-token"]
    served.cluster.delete("ConfigMap", name, NAMESPACE)
    served.cluster.delete("Secret", "service-serving-token", NAMESPACE)
    assert served.reconcile() == [], "its instances run, and have what they mounted"
    for pod in served.there("Pod"):
        served.cluster.patch("Pod", pod, NAMESPACE, {"status": {"conditions": []}}, subresource="status")
    assert served.reconcile() == [
        f"recreated the ConfigMap {NAMESPACE}/{name}, which another client deleted",
        f"recreated the Secret {NAMESPACE}/service-serving-token, which another client deleted",
    ]
    assert served.there("Secret")["service-serving-token"]["data"] == token["data"]
    (tmp_path / "app" / "multiply.py").write_text("changed = True\n", encoding="utf-8")
    served.cluster.delete("ConfigMap", name, NAMESPACE)
    (told,) = served.reconcile()
    assert f"the ConfigMap {NAMESPACE}/{name}, which pods of 'serving' mount" in told
    assert "scanflow deploy" in told
    assert served.reconcile() == [], "it is told once"


def test_what_somebody_edits_is_named_with_whom_and_put_back(served: Served) -> None:
    patch = {"spec": {"selector": {"scanflow.dev/service": "another"}}}
    served.cluster.edit("Service", "serving", NAMESPACE, patch)
    (text,) = served.reconcile()
    assert text.startswith(f"restored the Service {NAMESPACE}/serving, which another client (kubectl-edit) changed: ")
    assert "another" in text
    assert served.answering() == {"r1"}
    assert served.reconcile() == []


def test_what_somebody_adds_is_left(served: Served) -> None:
    patch = {"metadata": {"annotations": {"team": "x"}}, "spec": {"sessionAffinity": "ClientIP"}}
    served.cluster.edit("Service", "serving", NAMESPACE, patch)
    assert served.reconcile() == []
    assert served.there("Service")["serving"]["spec"]["sessionAffinity"] == "ClientIP"


def test_the_number_of_instances_is_put_back_unless_an_autoscaler_has_it(served: Served) -> None:
    served.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"spec": {"replicas": 0}})
    assert served.reconcile() == [
        f"restored the Deployment {NAMESPACE}/serving-r1, which another client changed: ~ .spec.replicas: 0 -> 1"
    ]
    served.change(scaling=sf.Scaling(metric="cpu", min=1, max=4, target=0.5), cores=1)
    name = next(iter(served.there("Deployment")))
    served.cluster.edit("Deployment", name, NAMESPACE, {"spec": {"replicas": 3}}, manager="autoscaler")
    assert served.reconcile() == []
    served.cluster.delete("HorizontalPodAutoscaler", name, NAMESPACE)
    assert served.reconcile() == [
        f"recreated the HorizontalPodAutoscaler {NAMESPACE}/{name}, which another client deleted"
    ]


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_an_object_that_changes_under_the_hand_that_puts_it_right_is_put_right_at_the_next_look(
    served: Served, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A controller writes an object's status just then, and what is wanted of the object stays wrong."""
    cluster, get, looks = served.cluster, served.cluster.get, count()
    edits = {"Deployment": {"replicas": 0}, "Service": {"selector": {"scanflow.dev/service": "another"}}}
    name, patch = {"Deployment": "serving-r1", "Service": "serving"}[kind], edits[kind]
    cluster.edit(kind, name, NAMESPACE, {"spec": patch})

    def get_then_changed(asked: str, *where: Any) -> Manifest | None:
        found = get(asked, *where)
        if asked == kind:
            cluster.edit(kind, name, NAMESPACE, {"status": {"looks": next(looks)}}, manager="controller")
        return found

    monkeypatch.setattr(cluster, "get", get_then_changed)
    assert served.reconcile() == []
    monkeypatch.undo()
    (told,) = served.reconcile()
    assert "restored" in told


def test_a_repair_reads_the_service_where_it_is(served: Served) -> None:
    served.cluster.delete("Service", "serving", NAMESPACE)
    served.cluster.calls.clear()
    assert len(served.reconcile()) == 1
    lists = [one for one in served.cluster.calls if (one.verb, one.kind, one.namespace) == ("find", "ConfigMap", None)]
    assert len(lists) == 3, "one for the record, and one of all services and one of all objects for all repairs"


def test_a_service_that_was_deployed_with_other_settings_or_is_changed_is_left(served: Served) -> None:
    served.cluster.delete("Service", "serving", NAMESPACE)
    record = served.services.service("serving")
    seen: list[Any] = []
    served.objects.refreshed_at = None
    served.another(serving="kserve").reconcile(record, observe=seen.append)
    served.objects.refreshed_at = None
    store = ServiceStore(served.cluster)
    store.change("serving", lambda now: now and now.model_copy(update={"generation": now.generation + 1}))
    served.services.reconcile(record, observe=seen.append)
    assert seen == []
    assert "serving" not in served.there("Service")


def test_what_pods_miss_is_told_again_once_it_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_TOKEN", "secret")
    served = Served(tmp_path)
    served.serving = sf.Serving(auth="env:SERVING_TOKEN")
    served.deploy()
    monkeypatch.delenv("SERVING_TOKEN")
    for _ in range(2):
        served.cluster.delete("Secret", "service-serving-token", NAMESPACE)
        _readiness(served, [])
        (told,) = served.reconcile()
        assert "its contents are not stored here" in told
        assert served.reconcile() == []
        monkeypatch.setenv("SERVING_TOKEN", "secret")
        served.deploy(3)
        monkeypatch.delenv("SERVING_TOKEN")
        _readiness(served, [{"type": "Ready", "status": "True"}])
        served.reconcile()


def test_what_is_made_again_while_the_service_is_deleted_does_not_stay(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, apply = served.services.service("serving"), served.cluster.apply
    served.cluster.delete("Deployment", "serving-r1", NAMESPACE)

    def deleted_before(manifest: Manifest, **how: Any) -> Manifest:
        if how.get("dry_run"):
            return apply(manifest, **how)
        monkeypatch.undo()
        served.another().delete("serving", observe=lambda _: None)
        return apply(manifest, **how)

    monkeypatch.setattr(served.cluster, "apply", deleted_before)
    served.objects.refreshed_at = None
    told: list[Any] = []
    served.services.reconcile(record, observe=told.append)
    assert (served.there("Deployment"), served.there("Pod"), told) == ({}, {}, [])


def test_a_label_that_somebody_takes_away_is_put_back(served: Served) -> None:
    assert served.reconcile() == []
    patch = {"metadata": {"labels": {"scanflow.dev/revision": None}}}
    served.cluster.edit("Deployment", "serving-r1", NAMESPACE, patch)
    (told,) = served.reconcile()
    assert "scanflow.dev/revision" in told
    assert list(served.there("Deployment")["serving-r1"]["metadata"]["labels"]).count("scanflow.dev/revision") == 1


def _readiness(served: Served, conditions: list[Manifest]) -> None:
    for pod in served.there("Pod"):
        served.cluster.patch("Pod", pod, NAMESPACE, {"status": {"conditions": conditions}}, subresource="status")


def test_two_versions_of_scanflow_leave_each_others_services_as_they_are_until_those_are_changed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one writes pods otherwise: only what it changes itself, or finds gone, it writes so."""
    template = instance_pods.build_pod_template

    def newer_template(*args: Any, **how: Any) -> Manifest:
        made = template(*args, **how)
        annotations = {**made["metadata"]["annotations"], "newer": "yes"}
        return {**made, "metadata": {**made["metadata"], "annotations": annotations}}

    def as_version(newer: bool) -> None:
        monkeypatch.setattr(instance_pods, "build_pod_template", newer_template if newer else template)

    def newer_pods() -> list[bool]:
        return ["newer" in one["metadata"]["annotations"] for one in served.there("Pod").values()]

    before = set(served.there("Pod"))
    for newer in (True, False, True):
        as_version(newer)
        assert served.reconcile() == []
    assert set(served.there("Pod")) == before

    served.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"spec": {"replicas": 0}})
    served.cluster.edit("Service", "serving", NAMESPACE, {"spec": {"selector": {"scanflow.dev/service": "another"}}})
    told = "\n".join(served.reconcile())
    assert ".spec.replicas: 0 -> 1" in told, "what both write alike is held against what they write"
    assert "restored the Service" in told

    served.cluster.delete("Deployment", "serving-r1", NAMESPACE)
    assert served.reconcile() == [f"recreated the Deployment {NAMESPACE}/serving-r1, which another client deleted"]
    assert newer_pods() == [True]
    for _ in range(2):
        as_version(False)
        served.reconcile()
        as_version(True)
        assert served.reconcile() == [], "they do not go on for ever"

    assert served.change(instances=2).state == "ready"
    assert newer_pods() == [True, True]
    as_version(False)
    assert served.reconcile() == []


def test_a_service_of_which_nobody_noted_how_it_was_written_is_left(served: Served) -> None:
    annotations: dict[str, None] = {"scanflow.dev/rendered": None}
    served.cluster.edit("ConfigMap", "service-serving", NAMESPACE, {"metadata": {"annotations": annotations}})
    served.cluster.edit("Service", "serving", NAMESPACE, {"spec": {"selector": {"scanflow.dev/service": "another"}}})
    assert served.reconcile() == []
