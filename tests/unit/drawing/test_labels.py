"""Labels of drawings: whatever is drawn, no two overlap, none is outside, and no legend leaves a line unnamed."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, tzinfo
from itertools import combinations
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drawing import svg
from scanflow.drawing.decision_chart import draw_decisions
from scanflow.drawing.event_lanes import LaneEvent
from scanflow.drawing.line_chart import EventLine, LinePanel, Point, Threshold, draw_chart, draw_panels
from scanflow.drawing.plot_frame import NUMBER
from scanflow.drawing.scatter import ScatterPoint, draw_frontier
from scanflow.drawing.service_chart import LATENCY, RATE, draw_service
from scanflow.drawing.time_bars import TimeBar, TimeRow, draw_time_bars

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0

widths = st.sampled_from([svg.WIDTH, svg.NARROW])
names = st.text("abcdefghij_.", min_size=1, max_size=30)
moments = st.floats(0, 3600).map(lambda at: BEGIN + at)


class DrawnLabel(NamedTuple):
    text: str
    left: float
    right: float
    base: float

    def overlaps(self, other: DrawnLabel) -> bool:
        beside = self.right <= other.left + 1 or other.right <= self.left + 1
        return not beside and abs(self.base - other.base) < svg.AXIS_FONT_PX * 0.9


def list_labels(drawn: str) -> Iterator[DrawnLabel]:
    root = ET.fromstring(drawn)
    parents = {child: parent for parent in root.iter() for child in parent}
    for text in root.iter(f"{SVG}text"):
        assert parents[text].get("transform") is None
        font = svg.BOLD_FONT_PX if text.get("font-weight") else float(text.get("font-size", svg.AXIS_FONT_PX))
        words, x = text.text or "", float(text.get("x", ""))
        wide = svg.estimate_text_width(words, font)
        left = {"middle": x - wide / 2, "end": x - wide}.get(text.get("text-anchor", ""), x)
        yield DrawnLabel(words, left, left + wide, float(text.get("y", "")))


def check_labels(drawn: str, width: float) -> None:
    labels = list(list_labels(drawn))
    assert [(a, b) for a, b in combinations(labels, 2) if a.overlaps(b)] == []
    assert [label for label in labels if label.left < -1 or label.right > width + 1] == []


decisions = st.tuples(moments, names, st.sampled_from(["red", "green"]), st.sampled_from("✓✗?")).map(
    lambda drawn: EventLine(*drawn)
)
events = st.tuples(moments, st.sampled_from(["", "failed"]), names).map(
    lambda drawn: LaneEvent(*drawn, colour="red", shape="cross")
)


@settings(max_examples=20)
@given(st.lists(decisions, max_size=40), st.dictionaries(names, st.lists(events, max_size=9), max_size=3), widths)
def test_no_decision_covers_the_label_of_another(
    actions: list[EventLine], lanes: dict[str, list[LaneEvent]], width: float
) -> None:
    lanes = {name: sorted(own, key=lambda event: event.at) for name, own in lanes.items()}
    drawn = draw_decisions({}, actions, observations=lanes, span=(BEGIN, BEGIN + 3600), width=width)
    check_labels(drawn, width)


@settings(max_examples=20)
@given(st.lists(names, min_size=1, max_size=9, unique=True), names, widths)
def test_each_line_and_threshold_is_in_a_legend_that_is_wide_enough(lines: list[str], unit: str, width: float) -> None:
    panel = LinePanel(
        name=f"{unit}/s",
        lines={name: [Point(BEGIN, 1, ""), Point(BEGIN + 60, 2, "")] for name in lines},
        thresholds=[Threshold(1.5, "bound 1.5")],
    )
    drawn = draw_panels("Lines", [panel], width=width)
    check_labels(drawn, width)
    texts = [label.text for label in list_labels(drawn)]
    assert {*lines, "bound 1.5"} <= set(texts)


@settings(max_examples=20)
@given(st.lists(st.tuples(names, st.booleans(), moments, names), min_size=1, max_size=9), widths)
def test_an_emphasised_name_does_not_run_into_its_bar(rows: list[tuple[str, bool, float, str]], width: float) -> None:
    bars = [
        TimeRow(name * 3, name, [TimeBar(at, at + 900, "green")], label=label, strong=strong)
        for name, strong, at, label in rows
    ]
    drawn = draw_time_bars("Bars", bars, span=(BEGIN, BEGIN + 4500), width=width)
    check_labels(drawn, width)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(1, 50), st.floats(1, 900), names), min_size=1, max_size=40), widths)
def test_no_label_of_a_frontier_covers_another(points: list[tuple[float, float, str]], width: float) -> None:
    drawn = draw_frontier(
        "Cuts", [ScatterPoint(*point, words="") for point in points], x_name="ms", y_name="requests/s", width=width
    )
    check_labels(drawn, width)


def test_of_many_names_on_the_axis_every_second_or_third_is_there() -> None:
    numbers = [f"V{at}" for at in range(30)]
    line = [Point(at, 0.5, "") for at in range(30)]
    for width, step in ((svg.WIDTH, 2), (svg.NARROW, 4)):
        drawn = draw_chart("Road", {"in use": line}, span=(0, 29), form="{:.0%}", names=numbers, width=width)
        assert [label.text for label in list_labels(drawn) if label.text in numbers] == numbers[::step]


def test_two_thousand_decisions_are_few_lines_that_say_how_many_they_are_and_failures_are_seen() -> None:
    actions = [EventLine(BEGIN + at, f"act {at}", "red" if at == 1000 else "green", "✓") for at in range(2000)]
    panel = LinePanel(name="load", lines={"load": [Point(BEGIN, 1, ""), Point(BEGIN + 2000, 2, "")]})
    drawn = draw_panels("Many", [panel], actions)
    titles = re.findall(r"<title>(act \d+), and (\d+) more beside it</title>", drawn)
    assert len(titles) <= svg.WIDTH / 5
    assert sum(int(count) + 1 for _, count in titles) == 2000
    assert "act 1000" in [name for name, _ in titles]


def test_no_line_runs_through_a_label() -> None:
    panel = LinePanel(name="load", lines={"measured": [Point(BEGIN, 1, ""), Point(BEGIN + 9, 2, "")]})
    drawn = draw_panels("Edges", [panel], [EventLine(BEGIN + 1, "scaled", "green")])
    edged = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text") if text.get("paint-order") == "stroke"]
    assert edged == ["load", "measured", "scaled"]


def test_without_a_request_there_is_no_panel_of_latencies() -> None:
    rates = {"requests": [Point(BEGIN, 0.0, ""), Point(BEGIN + 60, 0.0, "")]}
    unknown = {"p50": [Point(BEGIN, math.nan, "")]}
    drawn = draw_service("digits", rates, latencies=unknown)
    assert RATE in drawn
    assert LATENCY not in drawn
    assert LATENCY in draw_service("digits", rates, latencies={**unknown, "p99": [Point(BEGIN, 3.0, "")]})


def test_large_numbers_at_an_axis_are_written_out() -> None:
    assert [NUMBER.format(value) for value in (4e7, 1e9, 0.0005, 0.1 * 3)] == [
        "40,000,000",
        "1,000,000,000",
        "0.0005",
        "0.3",
    ]


zones = st.sampled_from([UTC, ZoneInfo("Asia/Kolkata")])


@settings(max_examples=30)
@given(st.floats(0, 1e9), st.floats(0.05, 4e6), st.floats(200, 900), zones)
def test_no_time_on_an_axis_covers_another(begin: float, length: float, right: float, zone: tzinfo) -> None:
    axis = svg.draw_time_axis(begin, begin + length, left=60, right=right, y=100, zone=zone)
    check_labels(svg.draw_figure(140, "Axis", axis, width=right + 14), right + 14)


def test_labels_at_the_end_of_a_lane_are_inside() -> None:
    lanes = {"sensor": [LaneEvent(BEGIN + at, "failed", "", "red", "cross") for at in (0, 3600)]}
    for width in (svg.WIDTH, svg.NARROW):
        check_labels(draw_decisions({}, [], observations=lanes, span=(BEGIN, BEGIN + 3600), width=width), width)
