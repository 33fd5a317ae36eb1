"""The agents' events over time, a lane for each agent (thesis Fig. 5.10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.reports.report_data import Kind, LoopEvent

LEFT, RIGHT, TOP, BOTTOM = 84.0, 24.0, 12.0, 32.0
ROW_PX, MARKER_PX, MAX_ROWS = 18.0, 5.0, 5
LANE_PAD_PX = 16.0
MERGE_PX = 14.0  # events of one kind in one lane that are closer than this to the first of them are drawn as one
MERGE_PREDICTIONS_PX = 72.0  # the same for predictions: what counts is how many there were until somebody looked
ORDER = ("tracker", "checker", "labels", "planner", "executor")
STYLES: dict[Kind, tuple[str, str]] = {
    "predictions": ("blue", "predictions"),
    "call": ("soft", "calls"),
    "detection": ("red", "anomalies"),
    "look": ("soft", "no drift"),
    "label": ("amber", "labels"),
    "retrain": ("violet", "retrained"),
    "gate": ("violet", "judged"),
    "promotion": ("green", "promotions"),
    "revert": ("red", "reverts"),
    "other": ("soft", "events"),
}
"""The colour of each kind, and its name in the plural."""

GUIDED_KINDS: tuple[Kind, ...] = ("predictions", "detection", "look")
"""Kinds with a dashed line through all lanes, as in the thesis: an interval ends, or a detection ran."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One event in the plot, or several of a kind that are too close to be distinguished."""

    x: float
    kind: Kind
    text: str
    title: str


def draw_timeline(events: Sequence[LoopEvent], *, width: float = svg.WIDTH) -> Markup:
    """Draw one or more events as SVG. Dashed lines run through all lanes: predictions counted, and detections.

    A label for which there is no room is left out; the event's mark still tells it when pointed at.
    """
    begin = min(event.at for event in events)
    end = max(begin + 1.0, *(event.at for event in events))
    right = width - RIGHT
    scale = (right - LEFT) / (end - begin)
    lanes = {agent: build_markers(agent, events, begin=begin, scale=scale) for agent in sort_agents(events)}
    labels = {agent: place_labels(markers, width) for agent, markers in lanes.items()}

    drawn: list[svg.Element] = []
    top = TOP
    for agent, markers in lanes.items():
        rows = 1 + max((label.row for label in labels[agent] if label), default=0)
        height = rows * ROW_PX + 2 * LANE_PAD_PX + MARKER_PX
        drawn.append(draw_lane(agent, markers, labels[agent], top=top, height=height, right=right))
        top += height
    axis = svg.draw_time_axis(begin, end, left=LEFT, right=right, y=top)
    name = "Events and actions of the agents over time"
    return svg.draw_figure(top + BOTTOM, name, draw_guides(lanes, top), *drawn, axis, width=width)


def sort_agents(events: Sequence[LoopEvent]) -> list[str]:
    """Return the agents in the loop's order, others after them by name."""
    ranks = {agent: rank for rank, agent in enumerate(ORDER)}
    return sorted({event.agent for event in events}, key=lambda agent: (ranks.get(agent, len(ORDER)), agent))


def build_markers(agent: str, events: Sequence[LoopEvent], *, begin: float, scale: float) -> list[Marker]:
    """Build one agent's markers, by time; close events of one kind are merged."""
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
    return [build_marker(group, begin=begin, scale=scale) for group in groups]


def build_marker(group: list[LoopEvent], *, begin: float, scale: float) -> Marker:
    first, last = group[0], group[-1]
    x = LEFT + (last.at - begin) * scale
    if len(group) == 1:
        return Marker(x, first.kind, first.text, f"{svg.format_time(first.at)} {first.text}")
    counts = [event.count for event in group if event.count is not None]
    amount = f"{sum(counts):,}" if counts else f"{len(group)}×"
    texts = "; ".join(event.text for event in group[:5]) + ("; …" if len(group) > 5 else "")
    title = f"{svg.format_time(first.at)} to {svg.format_time(last.at)}: {texts}"
    return Marker(x, first.kind, f"{amount} {STYLES[first.kind][1]}", title)


def place_labels(markers: Sequence[Marker], width: float) -> list[svg.PlacedLabel | None]:
    labels = [(marker.x, svg.estimate_text_width(shorten(marker.text, width))) for marker in markers]
    return svg.place_labels(labels, left=LEFT - MARKER_PX, right=width - MARKER_PX, rows=MAX_ROWS)


def shorten(words: str, width: float) -> str:
    most = min(66, int((width - LEFT) / svg.estimate_text_width("x")))
    return words if len(words) <= most else words[: most - 1] + "…"


def draw_lane(
    agent: str,
    markers: Sequence[Marker],
    labels: Sequence[svg.PlacedLabel | None],
    *,
    top: float,
    height: float,
    right: float,
) -> svg.Element:
    base = top + height - LANE_PAD_PX
    words: list[svg.Element] = []
    parts = [
        svg.draw_element("text", svg.escape_text(agent), x=2.0, y=base + 4, font_weight=600, **svg.paint("ink")),
        svg.draw_line(LEFT, base, right, base, "line", width=2),
    ]
    for mark, label in zip(markers, labels, strict=True):
        colour = STYLES[mark.kind][0]
        if label is not None:
            y = base - LANE_PAD_PX - label.row * ROW_PX
            parts.append(svg.draw_line(mark.x, base, mark.x, y + 4, colour))
            text = shorten(mark.text, right + RIGHT)
            words += [svg.draw_halo(text, label.middle, y), svg.draw_text(text, label.middle, y, colour)]
        title = svg.draw_element("title", svg.escape_text(mark.title))
        parts.append(
            svg.draw_element(
                "circle", title, cx=mark.x, cy=base, r=MARKER_PX, stroke_width=2, **svg.paint(colour, stroke="paper")
            )
        )
    return svg.draw_element("g", svg.join_lines([*parts, *words]))


def draw_guides(lanes: dict[str, list[Marker]], bottom: float) -> svg.Element:
    marks = [mark for markers in lanes.values() for mark in markers if mark.kind in GUIDED_KINDS]
    return svg.join_elements(
        svg.draw_line(mark.x, TOP, mark.x, bottom, STYLES[mark.kind][0], stroke_dasharray="4 4", opacity=0.55)
        for mark in marks
    )
