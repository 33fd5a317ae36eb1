"""Configurations compared: who is on the frontier, labels that do not cover anything, and cuts to scale."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drawing import svg
from scanflow.drawing.scatter import Cut, ScatterPoint, compute_frontier, draw_cuts, draw_frontier

SVG = "{http://www.w3.org/2000/svg}"
CURVE = ((4.0, 120.0), (6.0, 180.0), (9.0, 230.0), (14.0, 240.0))
VALUES = st.floats(0.01, 1e4)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30))
def test_on_the_frontier_nobody_beats_anybody(points: list[tuple[float, float]]) -> None:
    frontier = compute_frontier(points)
    assert all(first[0] < second[0] and first[1] < second[1] for first, second in combinations(frontier, 2))
    for x, y in points:
        assert any(x >= least and y <= most for least, most in frontier)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=15), st.sampled_from([svg.WIDTH, svg.NARROW]))
def test_labels_cover_neither_each_other_nor_a_point_nor_the_frontier(
    points: list[tuple[float, float]], width: float
) -> None:
    shown = [ScatterPoint(x, y, f"point {at}", "words") for at, (x, y) in enumerate(points)]
    figure = ET.fromstring(draw_frontier("Points", shown, x_name="ms", y_name="1/s", width=width))
    boxes = []
    for text in figure.iter(f"{SVG}text"):
        if (text.text or "").startswith("point"):
            half = svg.estimate_text_width(text.text or "") / 2
            x, y = float(text.get("x", "")), float(text.get("y", ""))
            assert half <= x <= width - half
            boxes.append((x - half, x + half, y - 11, y + 3))
    for first, second in combinations(boxes, 2):
        apart = first[1] <= second[0] + 0.2 or second[1] <= first[0] + 0.2
        assert apart or first[3] <= second[2] + 0.2 or second[3] <= first[2] + 0.2
    for circle in figure.iter(f"{SVG}circle"):
        x, y = float(circle.get("cx", "")), float(circle.get("cy", ""))
        assert not any(left < x < right and top < y < bottom for left, right, top, bottom in boxes)
    [line] = (path for path in figure.iter(f"{SVG}path") if path.get("stroke-dasharray") == "2 3")
    ends = [tuple(map(float, end.split())) for end in str(line.get("d"))[1:].split("L")]
    for (x, y), (next_x, next_y) in pairwise(ends):
        for share in (at / 200 for at in range(201)):
            at_x, at_y = x + share * (next_x - x), y + share * (next_y - y)
            assert not any(left < at_x < right and top < at_y < bottom for left, right, top, bottom in boxes)


def test_each_way_to_cut_a_machine_is_named_beside_the_frontier() -> None:
    shown = [ScatterPoint(x, y, f"{at} × 1 core, any", "words") for at, (x, y) in enumerate(CURVE)]
    texts = {
        text.text for text in ET.fromstring(draw_frontier("P", shown, x_name="ms", y_name="1/s")).iter(f"{SVG}text")
    }
    assert {point.label for point in shown} <= texts


def test_the_bound_is_drawn_where_it_is_and_nothing_measured_says_so() -> None:
    point = ScatterPoint(10.0, 5.0, "a", "a")
    figure = ET.fromstring(draw_frontier("Bound", [point], x_name="ms", y_name="1/s", bound=5.0))
    [bound] = [line for line in figure.iter(f"{SVG}line") if line.get("stroke-dasharray") == "4 4"]
    [circle] = figure.iter(f"{SVG}circle")
    left = min(float(line.get("x1", "")) for line in figure.iter(f"{SVG}line"))
    share = (float(bound.get("x1", "")) - left) / (float(circle.get("cx", "")) - left)
    assert share == pytest.approx(0.5, abs=0.01)
    assert "no measurement" in draw_frontier("None", [], x_name="ms", y_name="1/s")


@pytest.mark.parametrize("width", [svg.WIDTH, svg.NARROW])
def test_instances_and_values_are_to_scale(width: float) -> None:
    cuts = [
        Cut("8 × 2 cores", "8 × 2: 200", 8, 2.0, 200.0, "200", "✓", "green"),
        Cut("1 × 8 cores", "1 × 8: 100", 1, 8.0, 100.0, "100"),
        Cut("16 × 1 core", "16 × 1: failed", 16, 1.0, None, "failed", "✗", "red"),
    ]
    figure = ET.fromstring(draw_cuts("Cuts", cuts, cores=16, value_name="1/s", width=width))
    rows = list(figure.iter(f"{SVG}g"))
    widths = [[float(rect.get("width", "")) for rect in row.iter(f"{SVG}rect")] for row in rows]
    assert [len(row) for row in widths] == [9, 2, 16]
    assert widths[0][-1] / widths[1][-1] == pytest.approx(2, abs=0.01)
    assert sum(widths[0][:8]) == pytest.approx(2 * widths[1][0], rel=0.1)
    for rect in figure.iter(f"{SVG}rect"):
        assert float(rect.get("x", "")) + float(rect.get("width", "")) <= width
    assert {"✓ 8 × 2 cores", "✗ 16 × 1 core", "failed"} <= {text.text for text in figure.iter(f"{SVG}text")}


def test_very_many_instances_are_one_block() -> None:
    figure = draw_cuts("Cuts", [Cut("256 × 1", "256", 256, 1.0, 1.0, "1")], cores=256, value_name="1/s")
    assert figure.count("<rect") == 2
