"""Drawings of services: what goes over each edge of the graph, and how much of it fails."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.service_drawing import draw_service, list_placed_instances
from scanflow.backends.service_records import InstanceRecord, NodeTraffic, RevisionRecord, ServiceRecord, Shape
from scanflow.placement.topology_drawing import PlacedProcess
from tests.drawn_graphs import Drawn, read_graph

SCALE = sf.Service(name="scale", role="TRANSFORMER", implementation="scale.py:Scale")
CNN = sf.Service(name="cnn", model="models:/cnn@champion")
CHAIN = sf.Workflow(name="serve", type="online", nodes=[SCALE, CNN], edges=SCALE >> CNN)


def make_record(*revisions: RevisionRecord, **fields: Any) -> ServiceRecord:
    record = ServiceRecord(
        name="serve", app="a", team="t", state="ready", url="", generation=1, shape=Shape(instances=2), ready=1
    )
    return record.model_copy(update={"revisions": revisions, **fields})


def make_revision(name: str, **fields: Any) -> RevisionRecord:
    return RevisionRecord(id=name, models={"cnn": f"models:/cnn/{name[1:]}"}, **fields)


def list_labels(drawn: Drawn) -> list[str]:
    return [label.text for label in drawn.labels]


def test_the_edges_say_how_much_goes_over_them_how_long_it_takes_and_what_fails() -> None:
    nodes = {"scale": NodeTraffic(rps=120, p95_s=0.001), "cnn": NodeTraffic(rps=119, p95_s=0.0123, error_share=0.02)}
    revision = make_revision("r3", rps=120.0, p95_s=0.014, error_share=0.0, nodes=nodes)
    drawn = read_graph(draw_service(make_record(revision), CHAIN))
    assert [box.lines for box in drawn.boxes] == [
        ["serve", "✓", "1 of 2 instances"], ["scale", "transformer"], ["cnn", "cnn/3"]
    ]  # fmt: skip
    assert list_labels(drawn) == ["120/s", "p95 14 ms", "119/s", "p95 12.3 ms", "2.0% errors"]
    assert sorted(drawn.edges) == [
        "119 requests a second in the last 60 s\n95 % of the requests took at most 12.3 ms\n2.0% errors",
        "120 requests a second in the last 60 s\n95 % of the requests took at most 14 ms",
    ]
    [failing] = [edge for title, edge in drawn.edges.items() if "errors" in title]
    assert "stroke-dasharray" in failing[1].attrib


def test_the_share_of_each_revision_is_on_its_edge() -> None:
    current, canary = make_revision("r3", weight=0.9), make_revision("r4", weight=0.1, role="canary", rps=0.0)
    shadow = make_revision("r5", weight=0.0, role="shadow", shadow=True)
    drawn = read_graph(draw_service(make_record(current, canary, shadow), CHAIN))
    assert list_labels(drawn) == ["90%", "10%", "0/s", "copies"]
    lines = [box.lines for box in drawn.boxes]
    assert lines.count(["scale", "transformer"]) == 1
    assert {("cnn", "cnn/3"), ("cnn", "canary: cnn/4"), ("cnn", "shadow: cnn/5")} <= set(map(tuple, lines))
    assert len(drawn.edges) == 4  # two without traffic have the same tooltip
    alone = read_graph(draw_service(make_record(current), CHAIN))
    assert list_labels(alone) == []


def test_without_its_definition_a_revision_is_one_box() -> None:
    drawn = read_graph(draw_service(make_record(make_revision("r3", rps=2.0), RevisionRecord(id="r4", role="canary"))))
    assert [box.lines for box in drawn.boxes] == [
        ["serve", "✓", "1 of 2 instances"], ["cnn/3", "current"], ["r4", "canary"]
    ]  # fmt: skip


@pytest.mark.parametrize(("router", "rates"), [(True, ["50/s", "40/s", "10/s"]), (False, ["50/s", "50/s", "30/s"])])
def test_an_edge_has_its_own_part_of_the_traffic(router: bool, rates: list[str]) -> None:
    small, large = (sf.Service(name=name, model=f"models:/{name}@champion") for name in ("small", "large"))
    other = sf.Service(name="other", role="ROUTER" if router else "COMBINER", implementation="other.py:Other")
    edges = other >> [small, large] if router else [small, large] >> other
    workflow = sf.Workflow(name="serve", type="online", nodes=[other, small, large], edges=edges)
    parts = (40, 10) if router else (50, 30)
    nodes = {name: NodeTraffic(rps=rps) for name, rps in zip(("small", "large", "other"), (*parts, 50), strict=True)}
    drawn = read_graph(draw_service(make_record(make_revision("r1", rps=50.0, nodes=nodes)), workflow))
    assert sorted(list_labels(drawn)) == sorted(rates if router else [*rates, "50/s"])


def test_the_instances_of_this_machine_are_placed_on_it() -> None:
    instances = (
        InstanceRecord(instance="1", state="ready", cpus=(0, 1)),  # type: ignore[call-arg]  # a detail of the backend
        InstanceRecord(instance="2", state="waiting", cpus=(2,)),  # type: ignore[call-arg]
        InstanceRecord(instance="3", state="ready", place="node-1"),
    )
    records = [make_record(instances=instances)]
    assert list_placed_instances(records, "/services/serve") == [PlacedProcess("serve/1", (0, 1), "/services/serve")]
