"""A lease of the cluster: one holder at a time, whoever is slow, gone or edited."""

from __future__ import annotations

import pytest

from scanflow.backends.kubernetes.lease import LEADER, KubernetesLease
from scanflow.errors import UnavailableError
from scanflow.testing.memory_cluster import MemoryCluster


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(namespaces=("default", "scanflow"))
    for name in ("a", "b"):
        metadata = {"name": name, "namespace": "scanflow", "labels": {"app": "scanflow"}}
        cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    return cluster


def lease(cluster: MemoryCluster, holder: str, clock: Clock) -> KubernetesLease:
    return KubernetesLease(cluster, "scanflow", "server", holder, duration_s=15.0, clock=clock)


def leaders(cluster: MemoryCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.find("Pod", "scanflow", labels=f"{LEADER}=true")[0]]


def test_one_of_two_has_it_and_is_labelled_and_the_other_once_it_was_not_kept_for_its_duration(
    cluster: MemoryCluster,
) -> None:
    clock = Clock()
    first, second = lease(cluster, "a", clock), lease(cluster, "b", clock)
    assert (first.take(), second.take(), leaders(cluster)) == (True, False, ["a"])
    for _ in range(5):
        clock.now += 10.0
        assert (first.take(), second.take()) == (True, False)
    clock.now += 14.9
    assert not second.take()
    clock.now += 0.1
    assert second.take()
    assert not first.take()
    assert leaders(cluster) == ["b"]
    manifest = cluster.get("Lease", "server", "scanflow")
    assert manifest is not None
    assert manifest["spec"]["leaseTransitions"] == 1


def test_a_new_process_counts_from_when_it_first_saw_the_lease_whatever_the_clocks_of_machines_say(
    cluster: MemoryCluster,
) -> None:
    clock = Clock()
    assert lease(cluster, "a", clock).take()
    cluster.edit("Lease", "server", "scanflow", {"spec": {"renewTime": "1999-01-01T00:00:00.000000Z"}})
    clock.now = 1000.0
    second = lease(cluster, "b", clock)
    assert not second.take()
    clock.now += 15.0
    assert second.take()


def test_one_that_is_released_is_another_s_at_once(cluster: MemoryCluster) -> None:
    clock = Clock()
    first, second = lease(cluster, "a", clock), lease(cluster, "b", clock)
    assert (first.take(), second.take()) == (True, False)
    first.release()
    assert (second.take(), leaders(cluster)) == (True, ["b"])
    first.release()
    assert second.take(), "what is another's stays so"


def test_of_two_that_take_it_at_the_same_instant_one_has_it(cluster: MemoryCluster) -> None:
    clock = Clock()
    first, second = lease(cluster, "a", clock), lease(cluster, "b", clock)
    assert first.take()
    first.release()
    between: list[bool] = []

    def other_is_quicker(verb: str, kind: str, _found: object) -> None:
        if (verb, kind, between) == ("patch", "Lease", []):
            between.append(True)
            between[0] = second.take()

    cluster.refuse(other_is_quicker)
    assert (first.take(), between) == (False, [True])


def test_whoever_is_no_pod_has_it_as_well_and_a_silent_api_server_is_an_error(cluster: MemoryCluster) -> None:
    own = lease(cluster, "a-laptop", Clock())
    assert own.take()
    cluster.down = True
    with pytest.raises(UnavailableError):
        own.take()
