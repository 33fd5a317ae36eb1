"""Objects that are looked at again and again are told of by a watch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.list_cache import OFTEN, ListCache
from scanflow.testing.memory_cluster import MemoryCluster
from tests.waiting import wait_until

MINE = "app=mine"


@pytest.fixture
def now() -> Iterator[list[float]]:
    """A clock that stands still, until the test is over and its watches end."""
    clock = [0.0]
    yield clock
    clock[0] = 1e9


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.apply(config("a"))
    return cluster


def config(name: str, label: str = "mine") -> Manifest:
    metadata = {"name": name, "namespace": "default", "labels": {"app": label}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def names(list_cache: ListCache) -> list[str]:
    return sorted(config_map["metadata"]["name"] for config_map in list_cache.find("ConfigMap", MINE))


def count_calls(cluster: MemoryCluster, verb: str = "find") -> int:
    return sum(call.verb == verb for call in cluster.calls)


@pytest.fixture
def list_cache(cluster: MemoryCluster, now: list[float]) -> ListCache:
    return ListCache(lambda: cluster, clock=lambda: now[0])


def test_who_looks_a_few_times_asks_each_time(cluster: MemoryCluster, list_cache: ListCache, now: list[float]) -> None:
    for _ in range(2 * OFTEN):
        assert names(list_cache) == ["a"]
        now[0] += 30.0
    assert (count_calls(cluster), count_calls(cluster, "watch")) == (2 * OFTEN, 0)


def test_who_looks_often_asks_no_more_and_sees_changes(cluster: MemoryCluster, list_cache: ListCache) -> None:
    for _ in range(10 * OFTEN):
        assert names(list_cache) == ["a"]
    assert count_calls(cluster) == OFTEN
    cluster.apply(config("b"))
    cluster.apply(config("c", "another's"))
    wait_until(lambda: names(list_cache) == ["a", "b"], "the new one is seen")
    cluster.delete("ConfigMap", "a", "default")
    wait_until(lambda: names(list_cache) == ["b"], "the deleted one is gone")
    assert (count_calls(cluster), count_calls(cluster, "watch")) == (OFTEN, 1)


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


def test_when_the_watch_has_ended_what_is_there_is_listed_again(cluster: MemoryCluster, list_cache: ListCache) -> None:
    for _ in range(OFTEN):
        names(list_cache)
    wait_until(lambda: count_calls(cluster, "watch") == 1, "a watch has begun")
    cluster.forget()
    cluster.apply(config("b"))
    wait_until(lambda: names(list_cache) == ["a", "b"], "it is asked")


def test_what_is_read_from_an_object_is_read_once_for_each_version_of_it(
    cluster: MemoryCluster, list_cache: ListCache
) -> None:
    read: list[str] = []

    def name(manifest: Manifest) -> str:
        read.append(manifest["metadata"]["name"])
        return read[-1]

    cluster.apply(config("b"))
    for _ in range(2):
        assert sorted(list_cache.read("ConfigMap", MINE, name)) == ["a", "b"]
    cluster.apply({**config("b"), "data": {"changed": "yes"}})
    assert sorted(list_cache.read("ConfigMap", MINE, name)) == ["a", "b"]
    assert sorted(read) == ["a", "b", "b"]
