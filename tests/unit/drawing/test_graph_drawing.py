"""Drawings of graphs: nothing is lost, nothing is cut unseen, and what failed is seen, whatever the graph is."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drawing import svg
from scanflow.drawing.graph_boxes import GraphNode, NodeKind
from scanflow.drawing.graph_drawing import draw_graph
from scanflow.drawing.graph_edges import GraphEdge
from scanflow.errors import InvalidError
from tests.drawn_graphs import SVG, read_graph

STATES = ["succeeded", "failed", "running", "pending", "skipped", None]


@st.composite
def drawn_graphs(draw: st.DrawFn, most: int = 60) -> tuple[list[GraphNode], list[GraphEdge]]:
    size = draw(st.integers(1, most))
    labels = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=60)
    kinds: list[NodeKind] = ["step", "service", "agent", "model", "workflow"]
    nodes = [
        GraphNode(
            name=f"n{number}",
            label=draw(labels),
            kind=draw(st.sampled_from(kinds)),
            state=draw(st.sampled_from(STATES)),
            detail=draw(st.sampled_from(["", "12 s", "a long line that says more than fits"])),
        )
        for number in range(size)
    ]
    edges = [
        GraphEdge(source=f"n{parent}", target=f"n{number}", label=draw(st.sampled_from(["", "1/s · 2 ms"])))
        for number in range(1, size)
        for parent in draw(st.sets(st.integers(0, number - 1), max_size=3))
    ]
    return nodes, edges


def make_fan(states: list[str]) -> tuple[list[GraphNode], list[GraphEdge]]:
    items = [GraphNode(name=f"item-{number}", state=state) for number, state in enumerate(states)]
    ends = [GraphNode(name="start", state="succeeded"), GraphNode(name="finish", state="pending")]
    edges = [
        edge
        for item in items
        for edge in (GraphEdge(source="start", target=item.name), GraphEdge(source=item.name, target="finish"))
    ]
    return [*ends, *items], edges


@settings(max_examples=15)
@given(drawn_graphs(), st.sampled_from([svg.WIDTH, svg.NARROW]))
def test_every_node_is_drawn_or_counted_in_a_group_and_every_text_is_in_its_box(
    graph: tuple[list[GraphNode], list[GraphEdge]], width: float
) -> None:
    nodes, edges = graph
    drawn = read_graph(draw_graph(nodes, edges, title="A graph", width=width))
    assert sum(box.number for box in drawn.boxes) == len(nodes)
    assert len(drawn.boxes) <= 40
    if len(drawn.boxes) == len(nodes):
        tooltips = {f"{edge.source} → {edge.target}" + (f": {edge.label}" if edge.label else "") for edge in edges}
        assert drawn.edges.keys() == tooltips
    for box in drawn.boxes:
        assert -0.1 <= box.left < box.right <= width + 0.1
        assert all(box.left < text.left and text.right < box.right + 0.1 for text in box.texts)


@settings(max_examples=30)
@given(drawn_graphs(12))
def test_labels_of_edges_are_not_drawn_over_each_other(graph: tuple[list[GraphNode], list[GraphEdge]]) -> None:
    drawn = read_graph(draw_graph(*graph, title="A graph"))
    for first, second in combinations(drawn.labels, 2):
        apart = first.right <= second.left + 0.1 or second.right <= first.left + 0.1
        assert apart or first.bottom <= second.top + 2 or second.bottom <= first.top + 2


def test_a_thousand_nodes_are_few_boxes_on_one_screen() -> None:
    names = [f"step-{number}" for number in range(1000)]
    edges = [GraphEdge(source=names[number // 2], target=names[number]) for number in range(1, 1000)]
    drawing = draw_graph([GraphNode(name=name, state="pending") for name in names], edges, title="A graph")
    drawn = read_graph(drawing)
    assert 1 < len(drawn.boxes) <= 40
    assert sum(box.number for box in drawn.boxes) == 1000
    assert float(drawn.root.attrib["viewBox"].split()[3]) <= 1600


def test_what_failed_in_a_group_is_seen() -> None:
    drawn = read_graph(draw_graph(*make_fan(["succeeded"] * 900 + ["failed"] * 60), title="A fan-out"))
    words = [text.text for box in drawn.boxes for text in box.texts]
    assert {"item ×900", "item ×60", "900 ✓", "60 ✗"} <= set(words)
    nodes = [
        GraphNode(name="train", counts={"succeeded": 9997, "running": 1, "failed": 2, "pending": 44444, "lost": 1})
    ]
    [box] = read_graph(draw_graph(nodes, title="A fan-out", width=120.0)).boxes
    assert [text.text for text in box.texts] == ["t… ×54445", "✗", "3 ✗1 ●…"]
    assert box.title.startswith("train: 2 failed, 1 lost, 1 running, 44444 pending, 9997 succeeded")


@pytest.mark.parametrize("width", [svg.WIDTH, svg.NARROW])
@pytest.mark.parametrize("state", ["succeeded", None])
def test_chains_are_folded_with_their_ends_and_do_not_look_as_what_is_parallel(width: float, state: str | None) -> None:
    numbers = range(200)
    nodes = [GraphNode(name=f"step-{number:03}", state=state) for number in reversed(numbers)]
    edges = [GraphEdge(source=f"step-{n:03}", target=f"step-{n + 1:03}") for n in numbers if n % 10 < 9]
    boxes = read_graph(draw_graph(nodes, edges, title="Chains", width=width)).boxes
    names = sorted(box.texts[0].text for box in boxes)
    assert names == [f"step-{n:03} … step-{n + 9:03}" for n in numbers[::10]]
    seconds = {text.text for box in boxes for text in box.texts} - {*names}
    assert seconds == ({"✓", "10 ✓"} if state else {"10 steps"})


def test_a_few_that_fail_or_run_among_many_keep_boxes_of_their_own() -> None:
    states = ["succeeded"] * 300
    states[7], states[123] = "failed", "running"
    titles = [box.title for box in read_graph(draw_graph(*make_fan(states), title="A fan-out")).boxes]
    assert {"item-7: failed", "item-123: running"} <= set(titles)
    assert sum(title.startswith("298 nodes: 298 succeeded\n") for title in titles) == 1


def test_the_tooltip_of_a_group_names_its_members_the_most_urgent_first() -> None:
    nodes = [
        GraphNode(name=f"n{number:02}", state="failed" if number in {30, 31} else "succeeded") for number in range(40)
    ]
    [box] = read_graph(draw_graph(nodes, title="A graph", most=1)).boxes
    lines = box.title.splitlines()
    assert lines[:4] == ["40 nodes: 2 failed, 38 succeeded", "n30 (failed)", "n31 (failed)", "n00 (succeeded)"]
    assert lines[-1] == "and 20 more"


def test_skipped_nodes_are_dashed_and_so_are_their_edges() -> None:
    nodes = [GraphNode(name="a", state="succeeded"), GraphNode(name="b", state="skipped"), GraphNode(name="c")]
    edges = [GraphEdge(source="a", target="b"), GraphEdge(source="a", target="c")]
    drawn = read_graph(draw_graph(nodes, edges, title="A graph"))
    assert sum("stroke-dasharray" in rect.attrib for rect in drawn.root.iter(f"{SVG}rect")) == 1
    dashed = [name for name, edge in drawn.edges.items() if "stroke-dasharray" in edge[1].attrib]
    assert dashed == ["a → b"]


def test_traffic_is_wide_and_errors_are_red_and_dashed() -> None:
    nodes = [GraphNode(name="a"), GraphNode(name="b"), GraphNode(name="c")]
    edges = [
        GraphEdge(source="a", target="b", weight=90.0, label="90/s"),
        GraphEdge(source="a", target="c", weight=10.0, label="10/s · 1 % errors", has_errors=True),
    ]
    drawn = read_graph(draw_graph(nodes, edges, title="A graph"))
    busy, failing = (drawn.edges[f"a → {edge.target}: {edge.label}"][1].attrib for edge in edges)
    assert float(busy["stroke-width"]) > 2 * float(failing["stroke-width"])
    assert (failing["class"], "stroke-dasharray" in failing) == ("s-red", True)
    assert (busy["class"], "stroke-dasharray" in busy) == ("s-soft", False)
    assert [text.text for text in drawn.labels] == ["90/s", "10/s", "1 % errors"]


def test_the_orientation_is_the_one_that_folds_and_cuts_less() -> None:
    fan = read_graph(draw_graph(*make_fan(["running"] * 30), title="A fan-out"))
    assert len(fan.boxes) == 32  # below each other: 30 do not fit beside each other
    chain = [GraphNode(name=f"a-step-with-a-long-name-{number}") for number in range(6)]  # beside each other: cut
    edges = [GraphEdge(source=node.name, target=after.name) for node, after in pairwise(chain)]
    down = read_graph(draw_graph(chain, edges, title="A chain"))
    assert [box.texts[0].text for box in down.boxes] == [node.name for node in chain]
    assert len({box.left for box in down.boxes}) == 1


def test_an_edge_that_closes_a_cycle_leads_back() -> None:
    nodes = [GraphNode(name=name) for name in ("workflow", "model", "agent")]
    pairs = [("workflow", "model"), ("model", "agent"), ("agent", "workflow"), ("agent", "agent")]
    edges = [GraphEdge(source=source, target=target) for source, target in pairs]
    drawn = read_graph(draw_graph(nodes, edges, title="A loop", sideways=False))
    tops = [box.texts[0].top for box in drawn.boxes]
    assert tops == sorted(tops)
    assert drawn.edges.keys() == {"workflow → model", "model → agent", "agent → workflow"}
    tip = float(drawn.edges["agent → workflow"][2].attrib["points"].split()[1])
    assert tip < tops[1]


def test_hostile_text_stays_text() -> None:
    hostile = "</title><script>alert(1)</script>\"'&"
    node = GraphNode(name=hostile, state=hostile, detail=hostile, tooltip=hostile, address=f"/runs/{hostile}")
    edge = GraphEdge(source=hostile, target="b", label=hostile, tooltip=hostile)
    drawn = read_graph(draw_graph([node, GraphNode(name="b")], [edge], title=hostile))
    assert {element.tag.removeprefix(SVG) for element in drawn.root.iter()} <= {
        "svg", "title", "style", "g", "a", "rect", "text", "path", "polygon"
    }  # fmt: skip
    assert drawn.boxes[0].title == f"{hostile}: {hostile}\n{hostile}\n{hostile}"
    [link] = drawn.root.findall(f"{SVG}a")
    assert link.attrib["href"] == f"/runs/{hostile}"


def test_a_drawing_with_links_is_a_group_that_readers_can_enter() -> None:
    plain, linked = (
        read_graph(draw_graph([GraphNode(name="a", address=address)], title="A graph")).root.attrib["role"]
        for address in (None, "/runs/a")
    )
    assert (plain, linked) == ("img", "group")


def test_a_graph_without_nodes_says_so() -> None:
    assert "No nodes." in draw_graph([], title="A graph")


def test_a_name_twice_and_an_edge_to_nowhere_are_refused() -> None:
    with pytest.raises(InvalidError, match="one name"):
        draw_graph([GraphNode(name="a"), GraphNode(name="a")], title="A graph")
    with pytest.raises(InvalidError, match="no node of the graph"):
        draw_graph([GraphNode(name="a")], [GraphEdge(source="a", target="b")], title="A graph")
