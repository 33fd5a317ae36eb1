"""Objects that are looked at again and again are told of by a watch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.list_cache import OFTEN, ListCache
from scanflow.testing.memory_cluster import MemoryCluster
from tests.waiting import until

MINE = "app=mine"


@pytest.fixture
def now() -> Iterator[list[float]]:
    """A clock that stands still, until the test is over and its watches end."""
    found = [0.0]
    yield found
    found[0] = 1e9


@pytest.fixture
def cluster() -> MemoryCluster:
    found = MemoryCluster()
    found.apply(config("a"))
    return found


def config(name: str, label: str = "mine") -> Manifest:
    metadata = {"name": name, "namespace": "default", "labels": {"app": label}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def names(list_cache: ListCache) -> list[str]:
    return sorted(one["metadata"]["name"] for one in list_cache.find("ConfigMap", MINE))


def asked(cluster: MemoryCluster, verb: str = "find") -> int:
    return sum(call.verb == verb for call in cluster.calls)


@pytest.fixture
def list_cache(cluster: MemoryCluster, now: list[float]) -> ListCache:
    return ListCache(lambda: cluster, clock=lambda: now[0])


def test_who_looks_a_few_times_asks_each_time(cluster: MemoryCluster, list_cache: ListCache, now: list[float]) -> None:
    for _ in range(2 * OFTEN):
        assert names(list_cache) == ["a"]
        now[0] += 30.0
    assert (asked(cluster), asked(cluster, "watch")) == (2 * OFTEN, 0)


def test_who_looks_often_asks_no_more_and_is_told_of_changes(cluster: MemoryCluster, list_cache: ListCache) -> None:
    for _ in range(10 * OFTEN):
        assert names(list_cache) == ["a"]
    assert asked(cluster) == OFTEN
    cluster.apply(config("b"))
    cluster.apply(config("c", "another's"))
    until(lambda: names(list_cache) == ["a", "b"], "the new one is seen")
    cluster.delete("ConfigMap", "a", "default")
    until(lambda: names(list_cache) == ["b"], "the deleted one is gone")
    assert (asked(cluster), asked(cluster, "watch")) == (OFTEN, 1)


def test_what_was_written_here_is_seen_at_once_and_stays_seen(cluster: MemoryCluster, list_cache: ListCache) -> None:
    for _ in range(2 * OFTEN):
        names(list_cache)
    for number in range(20):  # a watch that is a moment behind tells of what was before
        cluster.apply(config("b"))
        list_cache.renew("ConfigMap", MINE)
        assert names(list_cache) == ["a", "b"], number
        cluster.delete("ConfigMap", "b", "default")
        list_cache.renew("ConfigMap", MINE)
        assert [names(list_cache) for _ in range(3)] == [["a"]] * 3, number


def test_when_the_watch_has_ended_what_is_there_is_asked_again(cluster: MemoryCluster, list_cache: ListCache) -> None:
    for _ in range(OFTEN):
        names(list_cache)
    until(lambda: asked(cluster, "watch") == 1, "a watch has begun")
    cluster.forget()
    cluster.apply(config("b"))
    until(lambda: names(list_cache) == ["a", "b"], "it is asked")


def test_what_is_read_from_an_object_is_read_once_for_each_version_of_it(
    cluster: MemoryCluster, list_cache: ListCache
) -> None:
    read: list[str] = []

    def name(one: Manifest) -> str:
        read.append(one["metadata"]["name"])
        return read[-1]

    cluster.apply(config("b"))
    for _ in range(2):
        assert sorted(list_cache.read("ConfigMap", MINE, name)) == ["a", "b"]
    cluster.apply({**config("b"), "data": {"changed": "yes"}})
    assert sorted(list_cache.read("ConfigMap", MINE, name)) == ["a", "b"]
    assert sorted(read) == ["a", "b", "b"]
