"""Events over time: a lane for each who acts, with a mark and words for each event where there is room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg

LEFT, RIGHT, TOP, BOTTOM = 84.0, 24.0, 12.0, 32.0
ROW_PX, MARKER_PX, MAX_ROWS = 18.0, 5.0, 5
LANE_PAD_PX, BESIDE_PX = 16.0, 12.0
MOST_LETTERS, NAMES_SHARE = 66, 0.25


class LaneEvent(NamedTuple):
    """One event, or several that are too close to be distinguished."""

    at: float
    text: str
    """A few words, which are left out where there is no room; empty: it is a mark only."""

    words: str
    """Its tooltip."""

    colour: str
    shape: str = "circle"
    guide: bool = False
    """Whether a dashed line runs from it through all lanes."""

    address: str = ""


class LaneAxis(NamedTuple):
    """The axis of time of lanes, in seconds since the epoch and in pixels."""

    begin: float
    end: float
    left: float
    right: float

    @classmethod
    def build(cls, begin: float, end: float, *, left: float = LEFT, width: float = svg.WIDTH) -> LaneAxis:
        return cls(begin, max(begin + 1.0, end), left, width - RIGHT)

    @property
    def scale(self) -> float:
        """Pixels of a second."""
        return (self.right - self.left) / (self.end - self.begin)

    def scale_x(self, at: float) -> float:
        return self.left + (at - self.begin) * self.scale


def compute_left(names: Iterable[str], width: float, *, least: float = LEFT) -> float:
    """Return where lanes begin, so that there is room for their names, but most of the width is theirs."""
    widest = max((svg.estimate_text_width(name, svg.BOLD_FONT_PX) for name in names), default=0.0)
    return max(least, min(widest + 12, NAMES_SHARE * width))


def draw_event_lanes(
    name: str, lanes: Mapping[str, Sequence[LaneEvent]], axis: LaneAxis, *, zone: tzinfo = UTC
) -> Markup:
    """Draw lanes below each other. A label for which there is no room is left out; its mark has it as tooltip."""
    drawn, bottom = draw_lanes(lanes, axis, top=TOP)
    guides = draw_guides((event for events in lanes.values() for event in events), axis, TOP, bottom)
    times = svg.draw_time_axis(axis.begin, axis.end, left=axis.left, right=axis.right, y=bottom, zone=zone)
    return svg.draw_figure(bottom + BOTTOM, name, guides, *drawn, times, width=axis.right + RIGHT)


def draw_lanes(
    lanes: Mapping[str, Sequence[LaneEvent]], axis: LaneAxis, *, top: float, rows: int = MAX_ROWS
) -> tuple[list[svg.Element], float]:
    """Return the lanes, and where the last ends. ``rows``: of labels above each."""
    drawn = list[svg.Element]()
    for name, all_events in lanes.items():
        events = merge_near(all_events, axis)
        labels = _place_labels(events, axis, rows)
        tall = 1 + max((label.row for label in labels if label), default=0)
        height = tall * ROW_PX + 2 * LANE_PAD_PX + MARKER_PX
        drawn.append(_draw_lane(name, events, labels, axis, base=top + height - LANE_PAD_PX))
        top += height
    return drawn, top


def merge_near(events: Sequence[LaneEvent], axis: LaneAxis) -> list[LaneEvent]:
    """Return the events with those as one that are marks only, look the same and would cover each other."""
    merged, counts = list[LaneEvent](), list[int]()
    for event in events:
        last = merged[-1] if merged else None
        if last is None or _get_look(last) != _get_look(event) or (event.at - last.at) * axis.scale >= MARKER_PX:
            merged.append(event)
            counts.append(0)
        else:
            counts[-1] += 1
    return [
        event._replace(words=f"{event.words}, and {count:,} more") if count else event
        for event, count in zip(merged, counts, strict=True)
    ]


def _get_look(event: LaneEvent) -> tuple[object, ...]:
    """Return what must be the same of two events that are drawn as one; each with words or a link is its own."""
    only_mark = not (event.text or event.address)
    return (event.colour, event.shape, event.guide) if only_mark else (event,)


def draw_guides(events: Iterable[LaneEvent], axis: LaneAxis, top: float, bottom: float) -> svg.Element:
    places = [(axis.scale_x(event.at), event.colour) for event in events if event.guide]
    return svg.join_elements(
        svg.draw_line(x, top, x, bottom, colour, stroke_dasharray="4 4", opacity=0.55) for x, colour in places
    )


def _shorten(words: str, axis: LaneAxis) -> str:
    most = min(MOST_LETTERS, int((axis.right + RIGHT - axis.left) / svg.estimate_text_width("x")))
    return words if len(words) <= most else words[: most - 1] + "…"


def _place_labels(events: Sequence[LaneEvent], axis: LaneAxis, rows: int) -> list[svg.PlacedLabel | None]:
    labels = [(axis.scale_x(event.at), svg.estimate_text_width(_shorten(event.text, axis))) for event in events]
    places = svg.place_labels(
        [label for label, event in zip(labels, events, strict=True) if event.text],
        left=axis.left - MARKER_PX,
        right=axis.right + BESIDE_PX,
        rows=rows,
    )
    placed = iter(places)
    return [next(placed) if event.text else None for event in events]


def _draw_lane(
    name: str, events: Sequence[LaneEvent], labels: Sequence[svg.PlacedLabel | None], axis: LaneAxis, *, base: float
) -> svg.Element:
    words = list[svg.Element]()
    parts = [
        _draw_name(name, base + 4, axis.left - MARKER_PX),
        svg.draw_line(axis.left, base, axis.right, base, "line", width=2),
    ]
    for event, label in zip(events, labels, strict=True):
        x = axis.scale_x(event.at)
        if label is not None:
            y = base - LANE_PAD_PX - label.row * ROW_PX
            parts.append(svg.draw_line(x, base, x, y + 4, event.colour))
            text = _shorten(event.text, axis)
            words.append(svg.draw_label(text, label.middle, y, event.colour))
        tooltip = "" if event.address else event.words
        mark = svg.draw_marker(event.shape, x, base, event.colour, words=tooltip, size=MARKER_PX, edge=True)
        parts.append(svg.draw_link(event.address, event.words, mark) if event.address else mark)
    return svg.draw_element("g", svg.join_lines([*parts, *words]))


def _draw_name(name: str, y: float, width: float) -> svg.Element:
    shown = svg.shorten_text(name, width - 4, svg.BOLD_FONT_PX)
    text = svg.draw_element("text", svg.escape_text(shown), x=2.0, y=y, font_weight=600, **svg.paint("ink"))
    return text if shown == name else svg.draw_titled(name, text)
