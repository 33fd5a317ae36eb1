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
from tests.cluster.drains import cordoned
from tests.cluster.online import Place, doubles
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
SMALL = sf.Resources(cpu="150m", memory="256Mi")


def node_of(here: Place, pod: str) -> str:
    found: str = here.pods()[pod]["spec"]["nodeName"]
    return found


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
                with cordoned(here.cluster, node := node_of(here, before[0])):
                    for name in [name for name in before if node_of(here, name) == node]:
                        here.evict(name)
                        until(lambda: len(here.pods()) == 2 and ready(here), "it is replaced", patience_s=60)
                    assert {node_of(here, name) for name in here.pods()} != {node}
                    assert node not in {node_of(here, name) for name in set(here.pods()) - set(before)}
            elif end == "delete":
                here.cluster.delete("Pod", before[0], here.namespace)
            else:
                here.evict(before[0])
            until(partial(_replaced, here, before[0]), f"after {end} it is ready")
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

    def killed() -> str | None:
        (instance,) = here.deployer.service(here.name).instances
        return instance.error if instance.restarts else None

    until(killed, "the restart is seen", patience_s=30)
    assert "OOMKilled" in (killed() or "")
    assert "sf.Resources(memory=" in (killed() or "")
    until(lambda: ready(here) and doubles(here.answer), "it answers again", patience_s=60)


def test_what_a_person_does_to_a_service_is_named_and_put_right(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    name = f"{here.name}-r1"
    with here.looked_after() as told:
        here.cluster.delete("Service", here.name, here.namespace)
        service = f"recreated the Service {here.namespace}/{here.name}, which another client deleted"
        until(lambda: any(service in one for one in told), "it is told")
        until(lambda: doubles(here.answer), "it answers again")
        _edit(here, "Deployment", name, {"spec": {"replicas": 0}})
        until(lambda: any(".spec.replicas: 0 -> 1" in one for one in told), "the number is told")
        containers = [{"name": "instance", "image": "nowhere/none:1"}]
        _edit(here, "Deployment", name, {"spec": {"template": {"spec": {"containers": containers}}}})
        until(lambda: any("(kubectl-edit)" in one and "nowhere/none:1" in one for one in told), "so is this")
        here.cluster.delete("Deployment", name, here.namespace)
        deployment = f"recreated the Deployment {here.namespace}/{name}, which another client deleted"
        until(lambda: any(deployment in one for one in told), "and this")
        until(lambda: ready(here) and doubles(here.answer), "it answers again", patience_s=90)
    assert here.deployer.service(here.name).generation == 1, "nothing else was asked for"


@pytest.mark.cluster_slow
def test_a_service_whose_own_object_was_deleted_is_adopted_by_the_next_deployment(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    here.deploy(3, resources=SMALL)
    here.cluster.delete("ConfigMap", f"service-{here.name}", here.namespace)
    with pytest.raises(NotFoundError, match=here.name):
        here.deployer.service(here.name)
    record = here.deploy(4, resources=SMALL)
    assert (record.state, here.answer()) == ("ready", [4])
    found, _ = here.cluster.find("Deployment", here.namespace, labels=f"scanflow.dev/service={here.name}")
    assert [one["metadata"]["name"] for one in found] == [f"{here.name}-{record.current.id}"]


def test_two_servers_make_each_change_once_while_it_is_asked(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2, resources=SMALL)
    other = here.another()
    with here.load() as failed, here.looked_after() as told, other.looked_after() as told_too:
        both = threading.Barrier(2)

        def grow(one: Place) -> int:
            both.wait()
            record: ServiceRecord = one.deployer.change(one.name, ServiceChange(instances=2), key="grow")
            return record.generation

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(grow, (here, other))) == [2, 2]

        def swap(one: Place) -> int:
            both.wait()
            record: ServiceRecord = one.deploy(3 if one is here else 4, resources=SMALL)
            return record.generation

        with ThreadPoolExecutor(2) as pool:
            asked = list(pool.map(swap, (here, other)))
    record = here.deployer.service(here.name)
    assert (record.state, record.generation, record.settled) == ("ready", 4, 4)
    assert max(asked) == 4
    assert (failed, told, told_too) == ([], [], [])
    assert here.answer() in ([3], [4])
    print(f"\n0 of {here.asked} failed")


def _replaced(here: Place, pod: str) -> bool:
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
