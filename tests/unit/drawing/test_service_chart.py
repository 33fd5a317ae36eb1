"""A service over time: a panel for each of what is known, with its own style; fail-overs are periods."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from scanflow.agent.agent_records import Event
from scanflow.drawing.line_chart import Point, build_points
from scanflow.drawing.service_chart import draw_service
from scanflow.drawing.svg import COLOURS
from scanflow.reports.service_periods import list_unready_periods

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0


def line(*values: float | None) -> list[Point]:
    return build_points((BEGIN + 60 * at, value) for at, value in enumerate(values))


def test_the_threshold_is_drawn_over_the_load_and_holds_until_it_is_changed() -> None:
    drawn = draw_service(
        "digits", {"digits": line(10, 20, 30)}, threshold=line(20, 40, 40), instances={"ready": line(1, 2, 2)}
    )
    figure = ET.fromstring(drawn)
    names = [text.text for text in figure.iter(f"{SVG}text") if text.get("font-weight") == "600"]
    assert names == ["requests/s", "instances"]
    legends = [text.text for text in figure.iter(f"{SVG}text")]
    assert "threshold" in legends
    upright = [
        path.get("d", "").count("L") for path in figure.iter(f"{SVG}path") if path.get("stroke-dasharray") == "4 2"
    ]
    assert upright.count(4) == 2, "three values with steps between them, of the threshold and of the instances"


def test_failures_and_latency_have_panels_of_their_own_only_if_they_are_known() -> None:
    drawn = draw_service(
        "digits", {"digits": line(1, 2)}, latencies={"p50": line(3, None)}, failures={"digits": line(0, 1)}, bound_ms=50
    )
    names = [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text") if text.get("font-weight") == "600"]
    assert names == ["requests/s", "latency, ms", "failed requests/s"]
    assert "bound 50 ms" in drawn
    assert COLOURS["red"][0] in drawn


def test_a_fail_over_ends_where_the_service_answers_again() -> None:
    def event(at: float, type: str, state: str, name: str = "digits") -> Event:
        return Event(at=at, type=type, subject=f"service/{name}", data={"state": state})

    events = [
        event(1, "service.unready", "degraded"),
        event(2, "service.unready", "backup"),
        event(3, "service.unready", "failed", "other"),
        event(5, "service.ready", "ready"),
        event(9, "service.unready", "failed"),
    ]
    periods = [
        (period.begin, period.end, period.words, period.colour) for period in list_unready_periods(events, "digits")
    ]
    assert periods == [(1, 2, "! degraded", "amber"), (2, 5, "! backup answers", "amber"), (9, None, "✗ failed", "red")]
