"""What a list of many services asks of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanflow.app.scaling import Scaling
from scanflow.backends.kubernetes.online.service_store import ServiceStore, build_state_map
from tests.unit.kubernetes.served import NAMESPACE, Served

EACH = 3


@pytest.fixture
def many(tmp_path: Path) -> Served:
    """Fifty services that are ready, each with a Deployment that says so."""
    served = Served(tmp_path)
    served.deploy()
    served.change(instances=EACH)
    state = ServiceStore(served.cluster).get("serving").state
    (made,) = served.there("Deployment").values()
    spec = {**made["spec"], "replicas": 0}  # no pods of theirs are played
    for number in range(50):
        name = f"serving-{number}"
        definition = state.definition.model_copy(update={"workflow": name})
        served.cluster.create(build_state_map(state.model_copy(update={"name": name, "definition": definition})))
        labels = {**made["metadata"]["labels"], "scanflow.dev/service": name}
        metadata = {"name": f"{name}-r1", "namespace": NAMESPACE, "labels": labels}
        served.cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        _say(served, f"{name}-r1", replicas=EACH, readyReplicas=EACH)
    _say(served, "serving-r1", replicas=EACH, readyReplicas=EACH)
    served.cluster.calls.clear()
    return served


def _say(served: Served, name: str, **status: Any) -> None:
    served.cluster.patch("Deployment", name, NAMESPACE, {"status": {"observedGeneration": 99, **status}})


def _pods_asked(served: Served) -> list[str | None]:
    return [one.namespace for one in served.cluster.calls if one.kind == "Pod"]


def test_a_list_of_services_that_are_ready_asks_for_no_pods(many: Served) -> None:
    found = many.services.services(instances=False)
    assert {(one.state, one.ready, one.shape.instances, len(one.instances)) for one in found} == {("ready", 3, 3, 0)}
    assert [one.name for one in found] == sorted(one.name for one in found)
    assert (len(found), _pods_asked(many), len(many.cluster.calls)) == (51, [], 3), "one list of each of three kinds"


def test_services_are_listed_in_the_only_namespace_that_is_used(many: Served) -> None:
    many.cluster.calls.clear()
    store = ServiceStore(many.cluster, namespace=NAMESPACE)
    assert len(store.list_services()) == 51
    assert store.find("serving") is not None
    assert {call.namespace for call in many.cluster.calls} == {NAMESPACE}
    assert ServiceStore(many.cluster, namespace="default").list_services() == []


@pytest.mark.parametrize(
    "status", [{"replicas": 3, "readyReplicas": 2}, {"replicas": 2, "readyReplicas": 2}, {"observedGeneration": 0}, {}]
)
def test_the_pods_of_one_that_is_not_ready_are_asked_for_alone(many: Served, status: dict[str, Any]) -> None:
    many.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"status": None})
    many.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"status": status})
    broken, *_ = many.there("Pod")
    waits = {"name": "instance", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    many.cluster.edit(
        "Pod", broken, NAMESPACE, {"status": {"phase": "Pending", "conditions": [], "containerStatuses": [waits]}}
    )
    many.cluster.calls.clear()
    found = {one.name: one for one in many.services.services(instances=False)}
    assert (found["serving"].state, found["serving"].ready, len(found["serving"].instances)) == ("degraded", 2, 3)
    assert "no such image" in (found["serving"].error or "")
    assert {one.state for name, one in found.items() if name != "serving"} == {"ready"}
    assert _pods_asked(many) == [NAMESPACE]


def test_where_many_are_not_ready_all_pods_are_asked_for_at_once(many: Served) -> None:
    for number in range(20):
        _say(many, f"serving-{number}-r1", readyReplicas=0)
    many.cluster.calls.clear()
    found = many.services.services(instances=False)
    assert sum(one.state == "degraded" for one in found) == 20
    assert _pods_asked(many) == [None]


def test_a_service_has_as_many_instances_as_its_autoscaler_gave_it(many: Served) -> None:
    store = ServiceStore(many.cluster)
    scaling = Scaling(metric="cpu", target=0.5, min=0, max=9)
    for name, count in (("serving-1", 7), ("serving-2", 0)):
        store.change(
            name,
            lambda now: (
                None
                if now is None
                else now.model_copy(update={"definition": now.definition.model_copy(update={"scaling": scaling})})
            ),
        )
        _say(many, f"{name}-r1", replicas=count, readyReplicas=count)
    many.cluster.calls.clear()
    found = {one.name: one for one in many.services.services(instances=False)}
    assert (found["serving-1"].state, found["serving-1"].shape.instances, found["serving-1"].ready) == ("ready", 7, 7)
    assert (found["serving-2"].state, found["serving-2"].shape.instances) == ("idle", 0)
    assert _pods_asked(many) == []


def test_a_list_with_instances_has_each(many: Served) -> None:
    for number in range(50):
        many.cluster.delete("Deployment", f"serving-{number}-r1", NAMESPACE)
    assert [len(one.instances) for one in many.services.services() if one.name == "serving"] == [EACH]
    assert _pods_asked(many) == [None]


def test_where_there_are_few_instances_they_are_asked_as_always(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.deploy()
    assert served.services.services(instances=False) == served.services.services()
