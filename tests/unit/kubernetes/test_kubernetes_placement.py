"""On which nodes pods of steps and of instances run."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.object_labels import SERVICE
from scanflow.backends.kubernetes.placement import build_instance_placement, build_step_placement
from scanflow.errors import UnsupportedError
from tests.manifests import assert_manifests

SHOP = {SERVICE: "shop"}


def service(name: str = "model", **affinity: Any) -> sf.Service:
    return sf.Service(name=name, implementation="model.py:Model", affinity=sf.Affinity(**affinity))


def test_a_step_is_placed_as_its_affinity_says() -> None:
    affinity = sf.Affinity(
        node_selector={"disk": "ssd"}, near=["load"], apart_from=["left", "right"], avoid_services=["shop"]
    )
    placement = build_step_placement(affinity, app="shop", team="data", run="calm-otter-417")
    assert_manifests("step-placement", placement)


@pytest.mark.parametrize("affinity", [None, sf.Affinity(), sf.Affinity(mode="cpumem")])
def test_a_step_without_wishes_runs_anywhere(affinity: sf.Affinity | None) -> None:
    assert build_step_placement(affinity, app="shop", team="data", run="calm-otter-417") == {}


def test_instances_are_spread_and_keep_to_the_nodes_that_were_chosen() -> None:
    nodes = [service("scale", near=["model"]), service(node_selector={"disk": "ssd"}), service("join")]
    assert_manifests("instance-placement", build_instance_placement(nodes, SHOP))


@pytest.mark.parametrize("field", ["apart_from", "avoid_services"])
def test_what_one_pod_cannot_have_is_refused_by_name(field: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"Service 'model': .*affinity\.{field}"):
        build_instance_placement([service("model", **{field: ["other"]})], SHOP)


def test_nodes_of_a_graph_cannot_ask_for_different_machines() -> None:
    nodes = [service("one", node_selector={"disk": "ssd"}), service("two", node_selector={"disk": "hdd"})]
    with pytest.raises(UnsupportedError, match=r"'two': .*node_selector: it asks for disk=hdd"):
        build_instance_placement(nodes, SHOP)
