"""The load of a service over time: its rates, the autoscaler's thresholds and the times that its backup answered."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from scanflow.app.scaling import Scaling
from scanflow.drawing.line_chart import EventLine, Period
from scanflow.reports.load_drawing import LoadSample, draw_service_load

SCALING = Scaling(metric="rps", target=10, max=4, up=12.5, down=7)


def make_samples(count: int = 5, error_rate: float = 0.0) -> list[LoadSample]:
    return [
        LoadSample(
            at=1000.0 + 5 * place,
            rate=2.0 * place,
            error_rate=error_rate,
            p50_s=None if place == 0 else 0.004,
            p99_s=None if place == 0 else 0.0125,
            ready=1,
            wanted=1 + (place > 2),
            state="ready",
            load=2.0 * place,
        )
        for place in range(count)
    ]


def list_texts(drawing: str) -> set[str]:
    return {element.text or "" for element in ET.fromstring(drawing).iter() if element.text}


def test_each_figure_is_a_panel_and_thresholds_are_named() -> None:
    words = list_texts(draw_service_load("digits", make_samples(), SCALING))
    assert words >= {"requests/s", "instances", "latency, ms", "requests/s of an instance"}
    assert words >= {"adds above 12.5", "removes below 7"}
    assert any("12.5 ms" in text for text in words)
    assert "failed requests/s" not in words, "none has failed"
    assert "requests/s of an instance" not in list_texts(draw_service_load("digits", make_samples()))
    assert "failed requests/s" in list_texts(draw_service_load("digits", make_samples(error_rate=0.5)))


def test_what_was_before_the_samples_is_left_out() -> None:
    marks = [EventLine(at, f"mark {at:.0f}", "soft") for at in (900.0, 1010.0, 1100.0)]
    periods = [
        Period(800.0, 900.0, "long ago", "amber"),
        Period(990.0, 1005.0, "backup answers", "amber"),
        Period(1010.0, None, "it goes on", "red"),
    ]
    words = list_texts(draw_service_load("digits", make_samples(), None, marks, periods))
    assert words >= {"mark 1010", "backup answers", "it goes on"}
    assert not words & {"mark 900", "mark 1100", "long ago"}


def test_a_full_hour_is_a_small_drawing() -> None:
    drawing = draw_service_load("digits", make_samples(720), SCALING)
    assert len(drawing) < 60_000
    assert len(re.findall("NaN|nan", drawing)) == 0
