"""Lanes of events: marks that would cover each other are one, and each with words or a link stays its own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from scanflow.drawing.event_lanes import LaneAxis, LaneEvent, draw_event_lanes, merge_near

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0
AXIS = LaneAxis.build(BEGIN, BEGIN + 1000)


def event(at: float, text: str = "", shape: str = "circle", address: str = "") -> LaneEvent:
    return LaneEvent(BEGIN + at, text, f"at {at:g}", "blue", shape, address=address)


def test_many_events_are_merged_and_counted_so_that_the_picture_stays_small() -> None:
    near = [event(0), event(1), event(2), event(3, shape="cross"), event(4, "failed"), event(5, address="/a")]
    assert [(entry.words, entry.shape) for entry in merge_near(near, AXIS)] == [
        ("at 0, and 2 more", "circle"),
        ("at 3", "cross"),
        ("at 4", "circle"),
        ("at 5", "circle"),
    ]
    assert len(merge_near([event(0), event(900)], AXIS)) == 2
    many = [event(at / 100) for at in range(100_000)]
    assert len(draw_event_lanes("Many", {"sensor": many}, AXIS)) < 40_000


def test_an_event_links_to_its_page_and_has_one_tooltip() -> None:
    drawn = ET.fromstring(
        draw_event_lanes("Links", {"agent": [event(1, "acts", address="/actions/1"), event(500)]}, AXIS)
    )
    [link] = drawn.iter(f"{SVG}a")
    assert link.get("href") == "/actions/1"
    assert [title.text for title in drawn.iter(f"{SVG}title")] == ["Links", "at 1", "at 500"]


def test_a_long_name_is_cut_and_its_tooltip_is_whole() -> None:
    drawn = ET.fromstring(draw_event_lanes("Names", {"infrastructure-planner": [event(1)]}, AXIS))
    [name] = [text.text for text in drawn.iter(f"{SVG}text") if text.get("font-weight")]
    assert re.fullmatch(r"inf\w*…\w*ner", str(name)), "names differ at their ends"
    assert "infrastructure-planner" in [title.text for title in drawn.iter(f"{SVG}title")]
