"""What goes wrong with services on a real cluster, and what is said and done about it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.kinds import build_object_path
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import NotFoundError, ScanflowError
from tests.cluster.drains import cordon_node
from tests.cluster.online import Place, doubles
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
SMALL = sf.Resources(cpu="150m", memory="256Mi")


def get_node(here: Place, pod: str) -> str:
    node_name: str = here.pods()[pod]["spec"]["nodeName"]
    return node_name


def ready(here: Place) -> ServiceRecord | None:
    record = here.deployer.service(here.name)
    return record if record.state == "ready" else None


def test_pods_that_are_deleted_evicted_or_drained_are_replaced_and_no_request_fails(
    place: Callable[..., Place],
) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    here.change(instances=2)
    with here.load() as failed:
        for end in ("delete", "evict", "drain"):
            before = sorted(here.pods())
            if end == "drain":
                with cordon_node(here.cluster, node := get_node(here, before[0])):
                    for name in [name for name in before if get_node(here, name) == node]:
                        here.evict(name)
                        wait_until(lambda: len(here.pods()) == 2 and ready(here), "it is replaced", patience_s=60)
                    assert {get_node(here, name) for name in here.pods()} != {node}
                    assert node not in {get_node(here, name) for name in set(here.pods()) - set(before)}
            elif end == "delete":
                here.cluster.delete("Pod", before[0], here.namespace)
            else:
                here.evict(before[0])
            wait_until(partial(_is_replaced, here, before[0]), f"after {end} it is ready")
            assert len(here.pods()) == 2
    assert (failed, here.asked > 100) == ([], True)
    print(f"\n0 of {here.asked} failed")
    record = here.deployer.service(here.name)
    assert (record.generation, record.settled, record.error) == (2, 2, None)


def test_an_instance_that_takes_too_much_memory_is_named_and_comes_back(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    with pytest.raises(ScanflowError):
        here.answer(2 * 10**9)

    def find_killed() -> str | None:
        (instance,) = here.deployer.service(here.name).instances
        return instance.error if instance.restarts else None

    wait_until(find_killed, "the restart is seen", patience_s=30)
    assert "OOMKilled" in (find_killed() or "")
    assert "sf.Resources(memory=" in (find_killed() or "")
    wait_until(lambda: ready(here) and doubles(here.answer), "it answers again", patience_s=60)


def test_what_a_person_does_to_a_service_is_named_and_put_right(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    name = f"{here.name}-r1"
    with here.run_controller() as messages:
        here.cluster.delete("Service", here.name, here.namespace)
        service = f"recreated the Service {here.namespace}/{here.name}, which another client deleted"
        wait_until(lambda: any(service in message for message in messages), "it is told")
        wait_until(lambda: doubles(here.answer), "it answers again")
        _edit(here, "Deployment", name, {"spec": {"replicas": 0}})
        wait_until(lambda: any(".spec.replicas: 0 -> 1" in message for message in messages), "the number is told")
        containers = [{"name": "instance", "image": "nowhere/none:1"}]
        _edit(here, "Deployment", name, {"spec": {"template": {"spec": {"containers": containers}}}})
        wait_until(
            lambda: any("(kubectl-edit)" in message and "nowhere/none:1" in message for message in messages),
            "so is this",
        )
        here.cluster.delete("Deployment", name, here.namespace)
        deployment = f"recreated the Deployment {here.namespace}/{name}, which another client deleted"
        wait_until(lambda: any(deployment in message for message in messages), "and this")
        wait_until(lambda: ready(here) and doubles(here.answer), "it answers again", patience_s=90)
    assert here.deployer.service(here.name).generation == 1, "nothing else was asked for"


@pytest.mark.cluster_slow
def test_a_service_with_a_deleted_object_is_adopted_by_the_next_deployment(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    here.deploy(3, resources=SMALL)
    here.cluster.delete("ConfigMap", f"service-{here.name}", here.namespace)
    with pytest.raises(NotFoundError, match=here.name):
        here.deployer.service(here.name)
    record = here.deploy(4, resources=SMALL)
    assert (record.state, here.answer()) == ("ready", [4])
    deployments, _ = here.cluster.find("Deployment", here.namespace, labels=f"scanflow.dev/service={here.name}")
    assert [deployment["metadata"]["name"] for deployment in deployments] == [f"{here.name}-{record.current.id}"]


def test_two_servers_make_each_change_once_while_it_serves(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    other = here.copy_for_another_server()
    with here.load() as failed, here.run_controller() as messages, other.run_controller() as told_too:
        both = threading.Barrier(2)

        def grow(place: Place) -> int:
            both.wait()
            record: ServiceRecord = place.deployer.change(place.name, ServiceChange(instances=2), key="grow")
            return record.generation

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(grow, (here, other))) == [2, 2]

        def swap(place: Place) -> int:
            both.wait()
            record: ServiceRecord = place.deploy(3 if place is here else 4, resources=SMALL)
            return record.generation

        with ThreadPoolExecutor(2) as pool:
            asked = list(pool.map(swap, (here, other)))
    record = here.deployer.service(here.name)
    assert (record.state, record.generation, record.settled) == ("ready", 4, 4)
    assert max(asked) == 4
    assert (failed, messages, told_too) == ([], [], [])
    assert here.answer() in ([3], [4])
    print(f"\n0 of {here.asked} failed")


def _is_replaced(here: Place, pod: str) -> bool:
    return pod not in here.pods() and ready(here) is not None


def _edit(here: Place, kind: str, name: str, document: dict[str, object]) -> None:
    """Change an object as ``kubectl edit`` does."""
    path = build_object_path(kind, name, namespace=here.namespace)
    here.cluster.fetch_json(
        "PATCH",
        path,
        params={"fieldManager": "kubectl-edit"},
        headers={"Content-Type": "application/strategic-merge-patch+json"},
        content=json.dumps(document),
    )
