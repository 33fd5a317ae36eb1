"""A Secret of a random value: one for all who create it at once."""

from __future__ import annotations

import base64

import pytest

from scanflow.backends.kubernetes.batch.pod_functions import NamespaceKeys
from scanflow.backends.kubernetes.batch.pod_layout import KEY_SECRET
from scanflow.backends.kubernetes.expiring_set import ExpiringSet
from scanflow.backends.kubernetes.random_secret import ensure_random_secret
from scanflow.errors import InvalidError
from scanflow.testing.memory_cluster import MemoryCluster


def ensure(cluster: MemoryCluster, make: bytes = b"first") -> bytes:
    return ensure_random_secret(cluster, "scanflow-shop", "key", key="value", make=lambda: make, app="shop", team="t")


def test_a_value_is_made_once() -> None:
    cluster = MemoryCluster(namespaces=("scanflow-shop",))
    assert [ensure(cluster), ensure(cluster, b"second")] == [b"first", b"first"]


def test_of_two_who_create_it_at_once_both_have_one_value() -> None:
    cluster = MemoryCluster(namespaces=("scanflow-shop",))

    def make() -> bytes:
        assert ensure(cluster, b"the other's") == b"the other's"
        return b"mine"

    value = ensure_random_secret(cluster, "scanflow-shop", "key", key="value", make=make, app="shop", team="t")
    assert value == b"the other's" == ensure(cluster)


def test_a_secret_without_the_value_is_refused_with_what_to_do() -> None:
    cluster = MemoryCluster(namespaces=("scanflow-shop",))
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "key", "namespace": "scanflow-shop"},
            "data": {"other": base64.b64encode(b"x").decode()},
        }
    )
    with pytest.raises(InvalidError, match=r"scanflow-shop/key has no 'value'\. Delete it"):
        ensure(cluster)


def test_a_key_is_fetched_again_once_its_namespace_may_have_been_made_again() -> None:
    cluster, now = MemoryCluster(), [0.0]
    ensured = ExpiringSet(5.0, clock=lambda: now[0])
    keys = NamespaceKeys(cluster, ensured)
    ensured.add("default")
    first = keys.get("default", "shop", "data")
    cluster.delete("Secret", KEY_SECRET, "default")
    assert keys.get("default", "shop", "data") == first
    now[0] = 6.0
    assert keys.get("default", "shop", "data") != first
