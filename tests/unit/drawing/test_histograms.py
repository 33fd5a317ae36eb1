"""Distributions before and now: shares to scale, hollow and filled, and what is known where there are no bins."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from scanflow.drawing import svg
from scanflow.drawing.histograms import Histogram, draw_histogram, draw_histograms
from scanflow.reports.distributions import build_histogram, draw_column

SVG = "{http://www.w3.org/2000/svg}"
COLUMN = {
    "name": "pixel",
    "test": "ks",
    "p": 0.001,
    "effect": 0.4,
    "shares": {"bins": ["0", "1"], "reference": [0.75, 0.25], "current": [0.25, 0.75]},
}


def test_before_is_hollow_and_now_is_filled_to_one_scale() -> None:
    drawn = ET.fromstring(draw_histogram(build_histogram(COLUMN)))
    rects = [rect for rect in drawn.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    heights = [float(rect.get("height", "")) for rect in rects]
    assert heights[0] == heights[3] == pytest.approx(3 * heights[1], abs=0.3)
    assert [rect.get("fill-opacity") for rect in rects] == ["0.2", None] * 2
    assert [rect.findtext(f"{SVG}title") for rect in rects[:2]] == ["0, before: 75.0%", "0, now: 25.0%"]
    base, scale, *_ = (float(line.get("y1", "")) for line in drawn.iter(f"{SVG}line"))
    assert base - scale == pytest.approx(heights[0] * 0.5 / 0.75, abs=0.3), "the line of 50%"
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"50%", "before", "now"} <= set(texts)


def test_a_column_without_bins_shows_its_averages() -> None:
    column = {"name": "x", "reference": {"mean": 3.0, "sd": 1.0}, "current": {"mean": 4.0}}
    assert build_histogram(column) == Histogram("x", "", [], [], [], "mean 3 ± 1 → mean 4")
    assert "mean 3 ± 1 → mean 4" in draw_column(column)
    assert build_histogram({"name": "x"}).summary == "unknown → unknown"


def test_averages_alone_are_as_tall_as_their_lines() -> None:
    means, shares = Histogram("x", "ks", summary="mean 3 → mean 4"), build_histogram(COLUMN)
    alone = ET.fromstring(draw_histogram(means))
    texts = [float(text.get("y", "")) for text in alone.iter(f"{SVG}text")]
    assert max(texts) < float(alone.get("viewBox", "").split()[3]) < max(texts) + 20
    assert not list(alone.iter(f"{SVG}line")), "there is no scale"
    drawn = draw_histograms("Columns", [means, means, shares], width=752.0)
    first, second, third = (str(group.get("transform")) for group in ET.fromstring(drawn).findall(f"{SVG}g")[2:])
    assert first.split()[1] == second.split()[1] != third.split()[1]
    assert float(third.split()[1].rstrip(")")) - float(first.split()[1].rstrip(")")) < 110, "a row is as tall as needed"
    assert "before" not in draw_histograms("Columns", [means]), "nothing is hollow or filled"


def test_of_values_the_commonest_are_drawn() -> None:
    column = {"name": "kind", "reference": {"a": 0.1, "b": 0.9}, "current": {"b": 0.5, "c": 0.5}}
    histogram = build_histogram(column)
    assert (histogram.bins, histogram.before, histogram.now) == (["b", "c", "a"], [0.9, 0.0, 0.1], [0.5, 0.5, 0.0])


@pytest.mark.parametrize(("width", "columns"), [(752.0, 2), (svg.NARROW, 1)])
def test_on_a_phone_they_stand_below_each_other(width: float, columns: int) -> None:
    drawn = draw_histograms("Columns", [Histogram("a", "", ["x"], [1.0], [1.0])] * 4, width=width)
    places = [
        group.get("transform")
        for group in ET.fromstring(drawn).findall(f"{SVG}g")
        if group.find(f"{SVG}line") is not None
    ]
    assert len({str(place).partition(" ")[0] for place in places}) == columns
    texts = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text")]
    assert texts[:2] == ["before", "now"]
