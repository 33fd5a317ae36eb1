"""Lines over values: extremes survive, series differ without colours, gaps are seen, marks run through all panels."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drawing import svg
from scanflow.drawing.downsampling import downsample
from scanflow.drawing.line_chart import (
    STEPS,
    STYLES,
    EventLine,
    LinePanel,
    Period,
    Point,
    Threshold,
    draw_chart,
    draw_panels,
)
from scanflow.drawing.plot_frame import choose_limits, compute_grid

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0


def line(*values: float, step: float = 60.0) -> list[Point]:
    return [Point(BEGIN + at * step, value, f"{value}") for at, value in enumerate(values)]


def list_paths(drawn: str) -> list[ET.Element]:
    return [path for path in ET.fromstring(drawn).iter(f"{SVG}path") if path.get("fill") == "none"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(1, 60))
def test_few_points_stand_for_many_and_the_extremes_of_each_column_survive(values: list[float], columns: int) -> None:
    points = line(*values, step=1.0)
    begin, end = points[0].at, points[-1].at + 1
    chosen = downsample(points, begin, end, columns)
    assert len(chosen) <= 2 * columns + 2
    assert set(chosen) <= set(points)
    assert [point.at for point in chosen] == sorted(point.at for point in chosen)
    assert (chosen[0], chosen[-1]) == (points[0], points[-1])
    columns_before: dict[int, list[float]] = {}
    columns_after: dict[int, list[float]] = {}
    for those, grouped in ((points, columns_before), (chosen, columns_after)):
        for point in those:
            grouped.setdefault(int((point.at - begin) * columns / (end - begin)), []).append(point.value)
    assert {column: (min(own), max(own)) for column, own in columns_before.items()} == {
        column: (min(own), max(own)) for column, own in columns_after.items()
    }


def test_a_hundred_thousand_points_are_a_small_picture_that_has_the_one_peak() -> None:
    values = [float(at % 7) for at in range(100_000)]
    values[43_210] = 90.0
    drawn = draw_panels("Dense", [LinePanel(name="value", lines={"metric": line(*values, step=0.1)})])
    assert len(drawn) < 40_000
    [path] = [path for path in list_paths(drawn) if len(path.get("d", "")) > 100]
    heights = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))]
    assert len(heights) <= 2 * 960 + 2
    top, usual = sorted(heights)[:2]
    assert usual - top > 80
    assert "<title>metric: 0 to 90, last 4</title>" in drawn, "who points at the line reads its range"
    assert drawn.count("<circle") == 1, "the legend's; there is no room for dots"


def test_series_differ_without_colours() -> None:
    looks = [(style.dashes, style.shape) for style in STYLES]
    assert len({dashes for dashes, _ in looks}) == len({shape for _, shape in looks}) == len(STYLES)
    lines = {name: line(1, 2, 3) for name in "abcd"}
    drawn = draw_panels("Four", [LinePanel(name="value", lines=lines)])
    dashes = [path.get("stroke-dasharray") for path in list_paths(drawn)]
    assert dashes == [None, "7 4", "2 3", "9 3 2 3"] * 2, "the lines of the legend, and those of the plot"


def test_what_is_not_known_breaks_the_line() -> None:
    [first, second] = list_paths(
        draw_chart("Gap", {"a": line(1, 2, math.nan, 4, 5)}, span=(BEGIN, BEGIN + 240), form="{}")
    )
    assert (first.get("d", "").count("L"), second.get("d", "").count("L")) == (1, 1)
    assert "nan" not in draw_panels("None", [LinePanel(name="x", lines={"a": line(math.nan, math.nan)})])


def test_a_step_holds_until_the_next() -> None:
    panel = LinePanel(name="instances", lines={"instances": line(1, 3, 3)}, styles={"instances": STEPS})
    [path] = list_paths(draw_panels("Steps", [panel]))
    places = [tuple(map(float, pair.split())) for pair in path.get("d", "")[1:].split("L")]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[0][1] == places[1][1]
    assert places[1][0] == places[2][0], "it rises upright"
    assert places[2][1] == places[3][1]


def test_events_and_periods_cross_all_panels_and_link() -> None:
    panels = [LinePanel(name=name, lines={name: line(1, 2, 3)}) for name in ("rate", "latency")]
    marks = [EventLine(BEGIN + 60, "scaled to 5", "green", "✓", "scaled to 5: load was high", "/actions/1")]
    periods = [Period(BEGIN + 90, None, "fail-over", "red")]
    drawn = draw_panels("Service", panels, marks, periods)
    figure = ET.fromstring(drawn)
    height = float(figure.get("viewBox", "").split()[3])
    [link] = figure.iter(f"{SVG}a")
    [mark] = link.iter(f"{SVG}line")
    assert link.findtext(f"{SVG}title") == "scaled to 5: load was high"
    assert float(mark.get("y1", "")) < 80
    assert float(mark.get("y2", "")) == pytest.approx(height - 32)
    [period] = [group for group in figure.iter(f"{SVG}g") if group.findtext(f"{SVG}title") == "fail-over"]
    bands = list(period.iter(f"{SVG}rect"))[1:]
    assert len(bands) == 2
    assert all(float(band.get("x", "")) + float(band.get("width", "")) == pytest.approx(946, abs=0.2) for band in bands)
    texts = [text.text for text in figure.iter(f"{SVG}text")]
    assert {"✓", "scaled to 5", "fail-over", "rate", "latency"} <= set(texts)


def test_an_event_is_drawn_where_its_text_does_not_fit() -> None:
    marks = [EventLine(BEGIN + at, "a long sentence of an action", "violet", "■") for at in range(12)]
    drawn = ET.fromstring(draw_panels("Many", [LinePanel(name="x", lines={"x": line(1, 4)})], marks, width=svg.NARROW))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    titles = [
        group.findtext(f"{SVG}title") or "" for group in drawn.iter(f"{SVG}g") if group.find(f"{SVG}line") is not None
    ]
    assert 4 <= texts.count("■") < 12, "they do not cover each other"
    assert sum("a long sentence" in title for title in titles) >= 10
    assert 1 <= texts.count("a long sentence of an action") <= 3


def test_a_threshold_beyond_all_values_is_seen() -> None:
    panel = LinePanel(name="ms", lines={"p99": line(1, 2)}, thresholds=[Threshold(50, "bound 50 ms")])
    drawn = draw_panels("Bound", [panel])
    [group] = [
        group for group in ET.fromstring(drawn).iter(f"{SVG}g") if group.findtext(f"{SVG}title") == "bound 50 ms"
    ]
    [threshold] = group.iter(f"{SVG}line")
    assert 0 < float(threshold.get("y1", "")) < 100
    assert threshold.get("stroke-dasharray")


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9), st.sampled_from(["{:.0%}", "{:.0f}", "{:,.6g}"]))
def test_limits_hold_all_values_and_numbers_at_the_axis_differ(values: list[float], form: str) -> None:
    low, high = choose_limits(values, form)
    assert low <= min(values)
    assert max(values) <= high
    ticks = [form.format(tick) for tick in compute_grid((low, high), form)]
    if "%" in form or ".0f" in form:
        assert len(set(ticks)) == len(ticks)


def test_numbers_at_the_axis_fit() -> None:
    drawn = draw_panels("Wide", [LinePanel(name="bytes", lines={"a": line(0, 123_456_789_000)}, form="{:,.0f}")])
    labels = [text for text in ET.fromstring(drawn).iter(f"{SVG}text") if text.get("text-anchor") == "end"]
    assert all(float(text.get("x", "")) - 12 * 0.58 * len(text.text or "") >= 0 for text in labels)
    assert len(labels) > 2
