"""What the agents saw and did over time, a lane for each agent (thesis Fig. 5.10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scanflow.reports.drawing import AXIS_FONT_PX, PlacedLabel, element, place, span_text, text_width, ticks
from scanflow.reports.records import Kind, LoopEvent
from scanflow.reports.style import STYLE, paint

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960.0, 112.0, 24.0, 12.0, 58.0
ROW_PX, MARKER_PX, MOST_ROWS = 18.0, 5.0, 5
LANE_PAD_PX = 16.0
MOST_LETTERS = 66
MERGE_PX = 14.0  # events of one kind in one lane that are closer than this to the first of them are drawn as one
MERGE_PREDICTIONS_PX = 72.0  # the same for predictions: what counts is how many there were until somebody looked
ORDER = ("tracker", "checker", "planner", "executor")
COLOUR: dict[Kind, str] = {
    "predictions": "blue",
    "call": "soft",
    "detection": "red",
    "look": "soft",
    "label": "amber",
    "retrain": "violet",
    "gate": "violet",
    "promotion": "green",
    "revert": "red",
    "other": "soft",
}
GUIDED: tuple[Kind, ...] = ("predictions", "detection", "look")
"""What has a dashed line through all lanes, as in the thesis: an interval ends, or drift is looked for."""

NOUN: dict[Kind, str] = {
    "predictions": "predictions",
    "call": "calls",
    "detection": "anomalies",
    "look": "no drift",
    "label": "labels",
    "retrain": "retrained",
    "gate": "judged",
    "promotion": "promotions",
    "revert": "reverts",
    "other": "events",
}


@dataclass(frozen=True, slots=True)
class Marker:
    """One event in the plot, or several of a kind that are too close to be told apart."""

    x: float
    kind: Kind
    text: str
    title: str


def timeline(events: Sequence[LoopEvent]) -> str:
    """Return the plot as SVG. Dashed lines run through all lanes: predictions counted, and looks for drift.

    A label for which there is no room is left out; the event's mark still tells it when pointed at.
    """
    if not events:
        return empty("Nothing has happened yet.")
    begin, end = min(event.at for event in events), max(event.at for event in events)
    span = max(end - begin, 1.0)
    scale = (WIDTH - LEFT - RIGHT) / span
    lanes = {agent: markers_of(agent, events, begin=begin, scale=scale) for agent in agents_of(events)}
    labels = {agent: labels_of(markers) for agent, markers in lanes.items()}

    drawn: list[str] = []
    top = TOP
    for agent, markers in lanes.items():
        rows = 1 + max((label.row for label in labels[agent] if label), default=0)
        height = rows * ROW_PX + 2 * LANE_PAD_PX + MARKER_PX
        drawn.append(lane(agent, markers, labels[agent], top=top, height=height))
        top += height
    between = guides(lanes, top)
    return whole(top + BOTTOM, "What the agents saw and did over time", between, *drawn, axis(top, span, scale))


def agents_of(events: Sequence[LoopEvent]) -> list[str]:
    """Return the agents in the order of the loop, others after them by name."""
    return sorted({event.agent for event in events}, key=lambda agent: (rank(agent), agent))


def rank(agent: str) -> int:
    return ORDER.index(agent) if agent in ORDER else len(ORDER)


def markers_of(agent: str, events: Sequence[LoopEvent], *, begin: float, scale: float) -> list[Marker]:
    """Return one agent's marks, by time; neighbours of one kind become one."""
    groups: list[list[LoopEvent]] = []
    open_groups: dict[Kind, list[LoopEvent]] = {}
    for event in sorted((event for event in events if event.agent == agent), key=lambda event: event.at):
        group = open_groups.get(event.kind)
        near = MERGE_PREDICTIONS_PX if event.kind == "predictions" else MERGE_PX
        if group is not None and (event.at - group[0].at) * scale < near:
            group.append(event)
            continue
        open_groups[event.kind] = [event]
        groups.append(open_groups[event.kind])
    return [marker(group, begin=begin, scale=scale) for group in groups]


def marker(group: list[LoopEvent], *, begin: float, scale: float) -> Marker:
    first = group[0]
    x = LEFT + (group[-1].at - begin) * scale
    if len(group) == 1:
        return Marker(x, first.kind, shortened(first.text), f"{first.at - begin:.1f} s: {first.text}")
    counts = [event.count for event in group if event.count is not None]
    text = f"{sum(counts):,} {NOUN[first.kind]}" if counts else f"{len(group)}× {NOUN[first.kind]}"
    said = "; ".join(event.text for event in group[:5]) + ("; …" if len(group) > 5 else "")
    return Marker(x, first.kind, text, f"{first.at - begin:.1f} s to {group[-1].at - begin:.1f} s: {said}")


def shortened(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def labels_of(markers: Sequence[Marker]) -> list[PlacedLabel | None]:
    wanted = [(marker.x, text_width(marker.text)) for marker in markers]
    return place(wanted, left=LEFT - MARKER_PX, right=WIDTH - MARKER_PX, rows=MOST_ROWS)


def lane(
    agent: str, markers: Sequence[Marker], labels: Sequence[PlacedLabel | None], *, top: float, height: float
) -> str:
    """Return one agent's lane: its name, its line, marks on the line and labels above."""
    base = top + height - LANE_PAD_PX
    line = paint(stroke="line")
    words: list[str] = []
    parts = [
        element("text", safe(agent), x=16.0, y=base + 4, font_weight=600, **paint("ink")),
        element("line", x1=LEFT, y1=base, x2=WIDTH - RIGHT, y2=base, stroke_width=2, **line),
    ]
    for mark, label in zip(markers, labels, strict=True):
        colour = COLOUR[mark.kind]
        if label is not None:
            y = base - LANE_PAD_PX - label.row * ROW_PX
            foot = element("line", x1=mark.x, y1=base, x2=mark.x, y2=y + 4, stroke_width=1, **paint(stroke=colour))
            parts.append(foot)
            words += halo(mark.text, label.middle, y)
            words.append(element("text", safe(mark.text), x=label.middle, y=y, text_anchor="middle", **paint(colour)))
        title = element("title", safe(mark.title))
        parts.append(
            element("circle", title, cx=mark.x, cy=base, r=MARKER_PX, stroke_width=2, **paint(colour, stroke="paper"))
        )
    return element("g", "\n".join(["", *parts, *words, ""]))


def halo(text: str, middle: float, y: float) -> list[str]:
    """Return what keeps lines from running through a label: a piece of paper behind it."""
    width = text_width(text)
    return [element("rect", x=middle - width / 2, y=y - 12, width=width, height=15.0, **paint("paper"))]


def guides(lanes: dict[str, list[Marker]], bottom: float) -> str:
    """Return dashed lines through all lanes, where predictions were counted and where drift was looked for."""
    marks = [mark for markers in lanes.values() for mark in markers if mark.kind in GUIDED]
    return "\n".join(
        element(
            "line",
            x1=mark.x,
            y1=TOP,
            x2=mark.x,
            y2=bottom,
            stroke_width=1,
            stroke_dasharray="4 4",
            opacity=0.55,
            **paint(stroke=COLOUR[mark.kind]),
        )
        for mark in marks
    )


def axis(top: float, span: float, scale: float) -> str:
    """Return the time axis, in seconds, minutes or hours since the first event."""
    unit = "s" if span <= 180 else "min" if span <= 3 * 3600 else "h"
    size = {"s": 1, "min": 60, "h": 3600}[unit]
    parts = [element("line", x1=LEFT, y1=top, x2=WIDTH - RIGHT, y2=top, stroke_width=1, **paint(stroke="soft"))]
    for tick in ticks(0.0, span / size, 8):
        x = LEFT + tick * size * scale
        parts.append(element("line", x1=x, y1=top, x2=x, y2=top + 5, stroke_width=1, **paint(stroke="soft")))
        shown = span_text(tick * size, unit)
        parts.append(element("text", shown, x=x, y=top + 20, text_anchor="middle", **paint("soft")))
    name = "time since the first event"
    parts.append(element("text", name, x=(LEFT + WIDTH - RIGHT) / 2, y=top + 42, text_anchor="middle", **paint("soft")))
    return "\n".join(parts)


def whole(height: float, name: str, *parts: str) -> str:
    """Return a complete SVG of the report's width."""
    return element(
        "svg",
        "\n".join(["", element("title", safe(name)), element("style", STYLE), *parts, ""]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        font_family="system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif",
        font_size=AXIS_FONT_PX,
    )


def empty(words: str) -> str:
    """Return a plot that says why there is nothing in it."""
    return whole(80.0, words, element("text", safe(words), x=WIDTH / 2, y=44.0, text_anchor="middle", **paint("soft")))


def safe(text: str) -> str:
    """Return the text so that it cannot become an element."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
