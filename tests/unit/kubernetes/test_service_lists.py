"""What a list of many services asks of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanflow.app.scaling import Scaling
from scanflow.backends.kubernetes.online.service_store import ServiceStore, build_state_map
from tests.unit.kubernetes.kubernetes_services import NAMESPACE, Served

EACH = 3


@pytest.fixture
def many(tmp_path: Path) -> Served:
    """Fifty services that are ready, each with a Deployment that says so."""
    served = Served(tmp_path)
    served.deploy()
    served.change(instances=EACH)
    state = ServiceStore(served.cluster).get("serving").state
    (deployment,) = served.get_objects("Deployment").values()
    spec = {**deployment["spec"], "replicas": 0}  # no pods of theirs are played
    for number in range(50):
        name = f"serving-{number}"
        definition = state.definition.model_copy(update={"workflow": name})
        served.cluster.create(build_state_map(state.model_copy(update={"name": name, "definition": definition})))
        labels = {**deployment["metadata"]["labels"], "scanflow.dev/service": name}
        metadata = {"name": f"{name}-r1", "namespace": NAMESPACE, "labels": labels}
        served.cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        _say(served, f"{name}-r1", replicas=EACH, readyReplicas=EACH)
    _say(served, "serving-r1", replicas=EACH, readyReplicas=EACH)
    served.cluster.calls.clear()
    return served


def _say(served: Served, name: str, **status: Any) -> None:
    served.cluster.patch("Deployment", name, NAMESPACE, {"status": {"observedGeneration": 99, **status}})


def _list_pod_reads(served: Served) -> list[str | None]:
    return [call.namespace for call in served.cluster.calls if call.kind == "Pod"]


def test_a_list_of_services_that_are_ready_asks_for_no_pods(many: Served) -> None:
    services = many.services.services(instances=False)
    assert {
        (service.state, service.ready, service.shape.instances, len(service.instances)) for service in services
    } == {("ready", 3, 3, 0)}
    assert [service.name for service in services] == sorted(service.name for service in services)
    assert (len(services), _list_pod_reads(many), len(many.cluster.calls)) == (51, [], 3), (
        "one list of each of three kinds"
    )


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
def test_the_pods_of_one_that_is_not_ready_are_requested_alone(many: Served, status: dict[str, Any]) -> None:
    many.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"status": None})
    many.cluster.edit("Deployment", "serving-r1", NAMESPACE, {"status": status})
    broken, *_ = many.get_objects("Pod")
    waits = {"name": "instance", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    many.cluster.edit(
        "Pod", broken, NAMESPACE, {"status": {"phase": "Pending", "conditions": [], "containerStatuses": [waits]}}
    )
    many.cluster.calls.clear()
    by_name = {service.name: service for service in many.services.services(instances=False)}
    assert (by_name["serving"].state, by_name["serving"].ready, len(by_name["serving"].instances)) == ("degraded", 2, 3)
    assert "no such image" in (by_name["serving"].error or "")
    assert {service.state for name, service in by_name.items() if name != "serving"} == {"ready"}
    assert _list_pod_reads(many) == [NAMESPACE]


def test_where_many_are_not_ready_all_pods_are_requested_at_once(many: Served) -> None:
    for number in range(20):
        _say(many, f"serving-{number}-r1", readyReplicas=0)
    many.cluster.calls.clear()
    services = many.services.services(instances=False)
    assert sum(service.state == "degraded" for service in services) == 20
    assert _list_pod_reads(many) == [None]


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
    by_name = {service.name: service for service in many.services.services(instances=False)}
    assert (by_name["serving-1"].state, by_name["serving-1"].shape.instances, by_name["serving-1"].ready) == (
        "ready",
        7,
        7,
    )
    assert (by_name["serving-2"].state, by_name["serving-2"].shape.instances) == ("idle", 0)
    assert _list_pod_reads(many) == []


def test_a_list_with_instances_has_each(many: Served) -> None:
    for number in range(50):
        many.cluster.delete("Deployment", f"serving-{number}-r1", NAMESPACE)
    assert [len(service.instances) for service in many.services.services() if service.name == "serving"] == [EACH]
    assert _list_pod_reads(many) == [None]


def test_where_there_are_few_instances_they_are_read_as_always(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.deploy()
    assert served.services.services(instances=False) == served.services.services()
