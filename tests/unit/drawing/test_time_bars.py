"""Bars over time: to scale, in their rows, with labels that can be read, and times in the reader's zone."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drawing import svg
from scanflow.drawing.time_bars import COLUMNS, Density, TimeBar, TimeRow, compute_density, draw_time_bars

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0


def list_rows(drawn: str) -> list[ET.Element]:
    """Return the groups and links of rows; the mark of the present is another group."""
    figure = ET.fromstring(drawn)
    return [row for row in figure if row.tag in (f"{SVG}g", f"{SVG}a") and row.findtext(f"{SVG}title") != "now"]


def read_bars(row: ET.Element) -> list[tuple[float, float]]:
    bars = [bar for bar in row.iter(f"{SVG}rect") if bar.get("rx")]
    return [(float(bar.get("x") or 0), float(bar.get("width") or 0)) for bar in bars]


@pytest.mark.parametrize("width", [svg.WIDTH, svg.NARROW])
def test_bars_are_to_scale_on_a_page_and_on_a_phone(width: float) -> None:
    rows = [
        TimeRow("a", "a", [TimeBar(BEGIN, BEGIN + 30, "green")]),
        TimeRow(
            "b", "b", [TimeBar(BEGIN + 30, BEGIN + 40, "soft", outline=True), TimeBar(BEGIN + 40, BEGIN + 60, "red")]
        ),
    ]
    first, second = map(read_bars, list_rows(draw_time_bars("Bars", rows, width=width)))
    [(start, wide)], (waits, runs) = first, second
    assert waits[0] == pytest.approx(start + wide, abs=0.2)
    assert runs[0] == pytest.approx(waits[0] + waits[1], abs=0.2)
    assert (waits[1] / wide, runs[1] / wide) == pytest.approx((1 / 3, 2 / 3), abs=0.01)
    assert runs[0] + runs[1] <= width


def test_a_row_is_a_link_with_a_name_and_a_figure_with_links_is_no_mere_picture() -> None:
    row = TimeRow("a<b>", "a<b>: took 1 s", [TimeBar(BEGIN, BEGIN + 1, "green")], address="/runs/x?task=a&b")
    drawn = draw_time_bars("Bars", [row])
    figure = ET.fromstring(drawn)
    [link] = figure.iter(f"{SVG}a")
    assert (link.get("href"), link.get("aria-label")) == ("/runs/x?task=a&b", "a<b>: took 1 s")
    assert figure.get("role") == "group"
    assert ET.fromstring(draw_time_bars("Bars", [row._replace(address="")])).get("role") == "img"


@given(
    st.lists(st.tuples(st.floats(0, 900), st.floats(0, 100), st.text("abc", max_size=60)), min_size=1, max_size=12),
    st.sampled_from([svg.WIDTH, svg.NARROW]),
)
def test_whatever_took_whatever_time_nothing_is_drawn_outside(
    times: list[tuple[float, float, str]], width: float
) -> None:
    rows = [
        TimeRow(text, text, [TimeBar(BEGIN + at, BEGIN + at + took, "green")], label=text[:30], mark="✓", indent=at > 9)
        for at, took, text in times
    ]
    figure = ET.fromstring(draw_time_bars("Bars", rows, heading="many words " * 12, now=BEGIN + 950, width=width))
    height = float(figure.get("viewBox", "").split()[3])
    for text in figure.iter(f"{SVG}text"):
        x, y, wide = float(text.get("x", "")), float(text.get("y", "")), 12 * 0.58 * len(text.text or "")
        start = {"middle": x - wide / 2, "end": x - wide}.get(text.get("text-anchor", ""), x)
        assert start >= -1
        assert start + wide <= width + 1, text.text
        assert 0 < y < height
    for row in list_rows(ET.tostring(figure, encoding="unicode")):
        assert all(x >= 0 and x + wide <= width + 2 for x, wide in read_bars(row))


def test_the_present_is_marked_only_where_it_is_shown() -> None:
    row = TimeRow("a", "a", [TimeBar(BEGIN, BEGIN + 60, "blue")])
    assert "<title>now</title>" in draw_time_bars("Bars", [row], now=BEGIN + 60)
    assert "<title>now</title>" not in draw_time_bars("Bars", [row])
    assert "<title>now</title>" not in draw_time_bars("Bars", [row], now=BEGIN + 90)


def test_density_counts_what_was_there_in_each_part() -> None:
    density = compute_density([(0, 60), (0, 30), (0, 30), (0, 30), (200, 240)], 0, 240)
    assert len(density) == COLUMNS
    assert [density[at] for at in (0, 29, 31, 59, 61, 199, 200, 239)] == [1, 1, 0.25, 0.25, 0, 0, 0.25, 0.25]
    assert compute_density([], 0, 10) == []
    assert compute_density([(5, 5)], 0, 10).count(1) == 1, "what took no time is seen, too"


def test_a_density_has_its_label_above_it() -> None:
    bar = TimeBar(BEGIN, BEGIN + 60, "red", outline=True)
    row = TimeRow("a", "a", [bar], label="100 tasks", density=Density([0.5, 1.0], "green"))
    [drawn] = list_rows(draw_time_bars("Bars", [row]))
    [area] = drawn.iter(f"{SVG}path")
    [rect] = drawn.iter(f"{SVG}rect")
    [label] = [text for text in drawn.iter(f"{SVG}text") if text.text == "100 tasks"]
    assert area.get("fill") == svg.COLOURS["green"][0]
    assert float(label.get("y") or 0) < float(rect.get("y") or 0)


def test_times_are_the_readers() -> None:
    row = TimeRow("a", "a", [TimeBar(BEGIN, BEGIN + 3600, "green")])
    labels = [text.text for text in ET.fromstring(draw_time_bars("Bars", [row])).iter(f"{SVG}text")]
    assert "09:00" in labels
    east = timezone(timedelta(hours=5, minutes=30))
    labels = [text.text for text in ET.fromstring(draw_time_bars("Bars", [row], zone=east)).iter(f"{SVG}text")]
    assert "14:30" in labels
    assert "09:00" not in labels


def test_round_times_are_round_where_the_reader_is_also_when_clocks_change() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    begin, end = (datetime(2025, 10, day, tzinfo=UTC).timestamp() for day in (24, 29))
    days = svg.list_round_times(begin, end, 86400, berlin)
    assert [svg.format_time(at, "%d %H:%M", berlin) for at in days] == [f"{day} 00:00" for day in (25, 26, 27, 28, 29)]
    assert days[2] - days[1] == 25 * 3600
    spring = datetime(2025, 3, 30, tzinfo=UTC).timestamp()
    hours = svg.list_round_times(spring, spring + 3 * 3600, 3600, berlin)
    assert [svg.format_time(at, "%H", berlin) for at in hours] == ["01", "03", "04", "05"]


@given(st.floats(0, 2e9), st.floats(1, 1e6), st.sampled_from([1, 60, 900, 3600, 86400]))
def test_round_times_are_inside_and_in_order(begin: float, span: float, step: int) -> None:
    end = begin + min(span, 50 * step)
    for zone in (UTC, ZoneInfo("America/New_York"), timezone(timedelta(hours=5, minutes=45))):
        times = svg.list_round_times(begin, end, step, zone)
        assert times == sorted(set(times))
        assert all(begin <= at <= end for at in times)
        shown = [datetime.fromtimestamp(at, zone) for at in times]
        assert all((at.hour * 3600 + at.minute * 60 + at.second) % step == 0 for at in shown)
