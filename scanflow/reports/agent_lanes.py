"""The agents' events over time, a lane for each agent (thesis Fig. 5.10)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.event_lanes import LaneAxis, LaneEvent, compute_left, draw_event_lanes
from scanflow.reports.report_data import Kind, LoopEvent

MERGE_PX = 14.0  # events of one kind in one lane that are closer than this to the first of them are drawn as one
MERGE_PREDICTIONS_PX = 72.0  # the same for predictions: what counts is how many there were until somebody looked
ORDER = ("tracker", "checker", "labels", "planner", "executor")
STYLES: dict[Kind, tuple[str, str, str]] = {
    "predictions": ("blue", "circle", "predictions"),
    "call": ("soft", "circle", "calls"),
    "detection": ("red", "diamond", "anomalies"),
    "look": ("soft", "ring", "no drift"),
    "label": ("amber", "square", "labels"),
    "retrain": ("violet", "triangle", "retrained"),
    "gate": ("violet", "diamond", "judged"),
    "promotion": ("green", "square", "promotions"),
    "revert": ("red", "cross", "reverts"),
    "failure": ("amber", "cross", "failures"),
    "other": ("soft", "square", "events"),
}
"""The colour and the shape of each kind, and its name in the plural."""

GUIDED_KINDS: tuple[Kind, ...] = ("predictions", "detection", "look")
"""Kinds with a dashed line through all lanes, as in the thesis: an interval ends, or a detection ran."""


def draw_agent_lanes(events: Sequence[LoopEvent], *, width: float = svg.WIDTH, zone: tzinfo = UTC) -> Markup:
    """Draw one or more events as SVG. Dashed lines run through all lanes: predictions counted, and detections."""
    times = [event.at for event in events]
    agents = sort_agents(events)
    axis = LaneAxis.build(min(times), max(times), left=compute_left(agents, width), width=width)
    lanes = {agent: build_lane(agent, events, scale=axis.scale, zone=zone) for agent in agents}
    return draw_event_lanes("Events and actions of the agents over time", lanes, axis, zone=zone)


def sort_agents(events: Sequence[LoopEvent]) -> list[str]:
    """Return the agents in the loop's order, others after them by name."""
    ranks = {agent: rank for rank, agent in enumerate(ORDER)}
    return sorted({event.agent for event in events}, key=lambda agent: (ranks.get(agent, len(ORDER)), agent))


def build_lane(agent: str, events: Sequence[LoopEvent], *, scale: float, zone: tzinfo = UTC) -> list[LaneEvent]:
    """Build one agent's lane, by time; close events of one kind are merged. ``scale``: the pixels of a second."""
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
    return [_build_lane_event(group, zone) for group in groups]


def _build_lane_event(group: Sequence[LoopEvent], zone: tzinfo) -> LaneEvent:
    first, last = group[0], group[-1]
    colour, shape, plural = STYLES[first.kind]
    guide = first.kind in GUIDED_KINDS
    when = svg.format_time(first.at, zone=zone)
    if len(group) == 1:
        return LaneEvent(last.at, first.text, f"{when} {first.text}", colour, shape, guide)
    counts = [event.count for event in group if event.count is not None]
    amount = f"{sum(counts):,}" if counts else f"{len(group)}×"
    texts = "; ".join(event.text for event in group[:5]) + ("; …" if len(group) > 5 else "")
    words = f"{when} to {svg.format_time(last.at, zone=zone)}: {texts}"
    return LaneEvent(last.at, f"{amount} {plural}", words, colour, shape, guide)
