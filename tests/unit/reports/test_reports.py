"""The report of the loop: what is drawn, that labels do not overlap, and that nothing in it runs or is fetched.

``REGENERATE_GOLDEN=1 pytest tests/unit/reports`` writes the golden files anew; look at them before keeping them.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drawing.svg import COLOURS, compute_ticks, place_labels
from scanflow.reports.agent_lanes import build_lane, draw_agent_lanes
from scanflow.reports.page import render_report
from scanflow.reports.report_data import Kind, LoopEvent, ModelUse, Version
from scanflow.reports.sections import draw_history

HERE = Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0

DRIFT = "drift: 300 of 1,000 outliers; 100 samples selected for labelling"


def event(
    at: float, agent: str, kind: Kind, text: str, count: int | None = None, picked: int | None = None
) -> LoopEvent:
    return LoopEvent(at=BEGIN + at, agent=agent, kind=kind, text=text, count=count, picked=picked)


def loop() -> list[LoopEvent]:
    """The loop of thesis Fig. 5.10, three times."""
    events = []
    for number in range(3):
        at = 40.0 * number
        events += [event(at + 2 * step, "tracker", "predictions", "200 predictions", 200) for step in range(5)]
        events += [
            event(at + 10, "tracker", "call", "calls checker: 1,000 ≥ 1,000"),
            event(at + 10.1, "checker", "call", "runs the detector"),
            event(at + 17, "checker", "detection", DRIFT, 300, 100),
            event(at + 18, "planner", "label", "100 labels", 100),
            event(at + 19, "planner", "retrain", f"retrains V{number + 2}"),
            event(at + 30, "planner", "gate", "0.94 > 0.90"),
            event(at + 31, "executor", "promotion", f"promotes V{number + 2}"),
            event(at + 32, "executor", "other", "swapped in 2 instances"),
        ]
    return events


def versions() -> list[Version]:
    """Those of thesis Fig. 5.11."""
    reached = [0.90, 0.91, 0.92, 0.915, 0.905, 0.92, 0.93]
    used = {0: (0.0, 1.5), 1: (1.5, 2.5), 2: (2.5, 6.5), 6: (6.5, None)}
    return [
        Version(version=at + 1, at=BEGIN + at, accuracy=accuracy, uses=(use(*used[at]),) if at in used else ())
        for at, accuracy in enumerate(reached)
    ]


def use(began: float, ended: float | None = None) -> ModelUse:
    return ModelUse(began=BEGIN + began, ended=None if ended is None else BEGIN + ended)


DRAWINGS = {"timeline.svg": draw_agent_lanes(loop()), "model_history.svg": draw_history(versions())}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_charts_of_the_thesis_are_drawn_as_they_always_were(name: str) -> None:
    file = HERE / name
    if os.environ.get("REGENERATE_GOLDEN") == "1":
        file.write_text(DRAWINGS[name] + "\n", encoding="utf-8")
    assert DRAWINGS[name] + "\n" == file.read_text(encoding="utf-8"), (
        "Meant? REGENERATE_GOLDEN=1 pytest tests/unit/reports"
    )


def texts(svg: str) -> list[tuple[float, float, float, str]]:
    """Return each text that is not turned: where it begins, ends, its base line, and what it says."""
    boxes = []
    for text in ET.fromstring(svg).iter(f"{SVG}text"):  # our own output
        if text.get("transform") is not None:
            continue
        words = text.text or ""
        x, y, width = float(text.get("x", "")), float(text.get("y", "")), 12 * 0.58 * len(words)
        start = {"middle": x - width / 2, "end": x - width}.get(text.get("text-anchor", ""), x)
        boxes.append((start, start + width, y, words))
    return boxes


def overlaps(svg: str) -> list[tuple[str, str]]:
    labels = texts(svg)
    return [
        (name[3], two[3])
        for at, name in enumerate(labels)
        for two in labels[at + 1 :]
        if abs(name[2] - two[2]) < 13 and name[0] < two[1] and two[0] < name[1]
    ]


KINDS = st.sampled_from(["predictions", "call", "detection", "look", "retrain", "promotion", "other"])
EVENTS = st.lists(
    st.builds(
        LoopEvent,
        at=st.floats(0, 7200),
        agent=st.sampled_from(["tracker", "checker", "planner", "executor", "watch"]),
        kind=KINDS,
        text=st.text("abc <&>", min_size=1, max_size=30),
        count=st.none() | st.integers(0, 5000),
    ),
    min_size=1,
    max_size=60,
)


def make_versions(accuracies: list[float], changes: list[tuple[int, float]]) -> list[Version]:
    """Return versions made a second apart; ``changes``: which is put to use next, and when."""
    order = sorted(((version % len(accuracies), at) for version, at in changes), key=lambda pair: pair[1])
    ends: list[float | None] = [at for _, at in order[1:]]
    uses: dict[int, list[ModelUse]] = {}
    for (version, at), end in zip(order, [*ends, None], strict=False):
        uses.setdefault(version, []).append(use(at, end))
    return [
        Version(version=at + 1, at=BEGIN + at, accuracy=accuracy, uses=tuple(uses.get(at, [])))
        for at, accuracy in enumerate(accuracies)
    ]


VERSIONS = st.builds(
    make_versions,
    st.lists(st.floats(0, 1), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 59), st.floats(0, 90)), max_size=20),
)


@given(EVENTS)
def test_whatever_happened_can_be_drawn_and_no_labels_overlap(events: list[LoopEvent]) -> None:
    assert overlaps(draw_agent_lanes(events)) == []


@given(VERSIONS)
def test_whatever_versions_there_are_can_be_drawn_and_no_labels_overlap(many: list[Version]) -> None:
    svg = draw_history(many)

    assert overlaps(svg) == []
    width, height = (float(size) for size in ET.fromstring(svg).get("viewBox", "").split()[2:])
    assert all(start >= 0 and end <= width and 0 < y < height for start, end, y, _ in texts(svg))


def test_versions_in_use_are_joined_in_the_order_of_their_use_and_others_are_not() -> None:
    first = Version(version=1, at=BEGIN, accuracy=0.90, uses=(use(0, 10), use(30)))
    second = Version(version=2, at=BEGIN, accuracy=0.93, uses=(use(10, 30),), n=60, interval=(0.85, 0.97))
    third = Version(version=3, at=BEGIN + 30, accuracy=0.89)
    svg = ET.fromstring(draw_history([third, first, second]))

    points = {
        (element.findtext(f"{SVG}title") or "")[:2]: f"{element.get('cx')} {element.get('cy')}"
        for element in svg.iter(f"{SVG}circle")
    }
    [path] = [element for element in svg.iter(f"{SVG}path") if "L" in element.get("d", "")]
    assert path.get("d") == f"M{points['V1']}L{points['V2']}L{points['V1']}"
    assert {words for *_, words in texts(draw_history([third, first, second]))} >= {
        "90.0% champion",
        "93.0%, n 60",
        "89.0%",
        "V1",
        "V2",
        "V3",
    }


def list_guides(svg: str) -> list[tuple[str, float]]:
    """Return the dashed lines: their colours, and where they are."""
    lines = ET.fromstring(svg).iter(f"{SVG}line")
    names = {light: name for name, (light, _) in COLOURS.items()}
    dashed = [line for line in lines if line.get("stroke-dasharray")]
    return [(names[line.get("stroke", "")], float(line.get("x1", ""))) for line in dashed]


def test_each_look_has_a_dashed_line_whether_it_found_drift_or_not() -> None:
    events = [
        event(0, "tracker", "predictions", "1,000 predictions", 1000),
        event(50, "checker", "look", "no drift in 1,000 predictions"),
        event(100, "checker", "detection", "drift: 300 outliers", 300),
    ]

    assert list_guides(draw_agent_lanes(events)) == [("blue", 84.0), ("soft", 510.0), ("red", 936.0)]
    page = render_report(title="Loop", events=events, versions=[])
    assert "drift was found (red), a detection found no drift (grey)" in page


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(1, 300)), max_size=40), st.integers(1, 5))
def test_labels_are_placed_inside_without_overlap(wanted: list[tuple[float, float]], rows: int) -> None:
    labels = place_labels(wanted, left=0.0, right=900.0, rows=rows, gap=8.0)

    spans: dict[int, list[tuple[float, float]]] = {}
    for (_, width), label in zip(wanted, labels, strict=True):
        if label is not None:
            assert 0 <= label.row < rows
            spans.setdefault(label.row, []).append((label.middle - width / 2, label.middle + width / 2))
    for row in spans.values():
        row.sort()
        assert row[0][0] >= -1e-6
        assert row[-1][1] <= 900 + 1e-6
        assert all(first[1] + 8 <= two[0] + 1e-6 for first, two in pairwise(row))


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.integers(1, 12))
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    ticks = compute_ticks(low, low + span, most)

    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * span - 1e-6 <= tick <= low + span * (1 + 1e-6) + 1e-6 for tick in ticks)


def test_neighbours_of_a_kind_become_one_that_adds_them_up() -> None:
    events = [event(at, "tracker", "predictions", "200 predictions", 200) for at in range(5)]
    events.append(event(300, "tracker", "predictions", "7 predictions", 7))

    lane = build_lane("tracker", events, scale=2.0)

    assert [event.text for event in lane] == ["1,000 predictions", "7 predictions"]


def test_agents_of_the_loop_come_in_its_order_and_others_after_them() -> None:
    events = [event(0, name, "other", "x") for name in ("watch", "executor", "checker", "tracker", "planner")]

    svg = draw_agent_lanes(events)

    lanes = re.findall(r'font-weight="600"[^>]*>(\w+)<', svg)
    assert lanes == ["tracker", "checker", "planner", "executor", "watch"]


def test_a_page_runs_nothing_fetches_nothing_and_shows_text_as_text() -> None:
    events = [*loop(), event(50, "<img src=x>", "other", "<script>alert(1)</script>" + "x" * 99)]

    page = render_report(title="Loop & <more>", events=events, versions=versions(), facts={"<b>": "<i>"})

    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert re.findall(r"https?://[^\"' )]+", page) == ["http://www.w3.org/2000/svg"] * 4
    assert "Loop &amp; &lt;more&gt;" in page
    assert page.count("<svg") == 4  # two plots, each for a wide page and for a phone's
    assert "prefers-color-scheme: dark" in page


def test_a_page_counts_when_it_is_given_no_numbers() -> None:
    page = render_report(title="Loop", events=loop(), versions=versions())

    for name, value in (("predictions", "3,000"), ("anomalies", "900"), ("samples selected", "300"), ("versions", "7")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    assert "<dt>champion</dt><dd>V7, 93.0%</dd>" in page
    assert DRIFT in page
    assert "2025-10-09 08:53:20" in page


def test_all_times_of_a_page_are_the_readers() -> None:
    page = render_report(title="Loop", events=loop(), versions=versions(), zone=ZoneInfo("Asia/Tokyo"))

    assert "From 2025-10-09 17:53:20 to 2025-10-09 17:55:12. All times are JST." in page
    assert "08:53" not in page


def test_a_page_of_nothing_says_so() -> None:
    page = render_report(title="Loop", events=[], versions=[])

    assert "No activity yet." in page
    assert "No drift was found." in page
    assert "<svg" not in page  # no empty frames
    assert "No versions were compared yet." in page


def test_a_long_table_keeps_the_latest() -> None:
    events = [event(at, "tracker", "other", f"number {at}") for at in range(1200)]

    page = render_report(title="Loop", events=events, versions=[])

    assert "The first 1,000 events are not listed." in page
    assert ">number 999</td>" not in page
    assert ">number 1199</td>" in page


def contrast(first: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted([light(first), light(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [name for name in COLOURS if name not in ("paper", "line")])
def test_colours_can_be_read_in_light_and_dark(name: str) -> None:
    for on, paper in zip(COLOURS[name], COLOURS["paper"], strict=True):
        assert contrast(on, paper) >= 4.5
