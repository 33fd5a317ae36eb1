"""The boxes of a graph: a node, or a group of folded nodes, with its kind as a shape and its states as marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import nsmallest
from itertools import takewhile
from typing import Any, Literal

from scanflow.drawing import svg
from scanflow.drawing.states import StateLook, get_state_look

NodeKind = Literal["step", "service", "agent", "model", "workflow"]

DETAIL_FONT_PX = 11
PADDING_PX, MARK_PX = 10.0, 15.0
LINE_PX, BAR_PX, DETAIL_PX = 28.0, 8.0, 15.0
MAX_BOX_PX = 220.0
CORNER_PX, COUNT_GAP_PX, LEAST_SHARE_PX = 8.0, 6.0, 3.0
MAX_LISTED = 20
"""How many members of a group its tooltip names."""

MARKS_BY_URGENCY = "✗!?↻■●·✓≡–"
"""A group looks as its most urgent member does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """What is drawn of a node."""

    name: str
    """Unique in the graph."""

    label: str = ""
    """What is written on it. Empty: its name."""

    kind: NodeKind = "step"
    state: str | None = None
    """None: it has none, or that of ``counts``."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """How many of what it stands for, such as tasks of a fan-out, are in which state."""

    detail: str = ""
    """A small second line."""

    tooltip: str = ""
    """What is said of it beside the label, the state and the detail, where it is pointed at."""

    address: str | None = None
    """The page that it links to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBox:
    """A box of the drawing: one node, or a group of them."""

    label: str
    number: int
    """How many tasks, or nodes, it stands for."""

    is_chain: bool
    """Whether some of these follow others, so that they are not as many of one kind beside each other."""

    kind: NodeKind
    state: str | None
    counts: Mapping[str, int]
    """The number of tasks, or nodes, by state, the most urgent first. Empty for a single one."""

    detail: str
    tooltip: str
    address: str | None

    @property
    def suffix(self) -> str:
        return f" ×{self.number}" if self.is_stack else ""

    @property
    def is_stack(self) -> bool:
        return self.number > 1 and not self.is_chain

    @property
    def is_skipped(self) -> bool:
        return self.state is not None and get_state_look(self.state).mark == "–"


def build_box(members: Sequence[GraphNode], *, is_chain: bool = False) -> GraphBox:
    """Return the box of a node, or of nodes that are folded into one: beside each other, or as a chain of which some
    follow others."""
    counts = _sort_by_urgency(sum(map(_count_states, members), Counter[str]()))
    first, is_group = members[0], len(members) > 1
    is_chain = is_chain and is_group
    addresses, kinds = {node.address for node in members}, {node.kind for node in members}
    state = next(iter(counts), None)
    own_state = first.state if not is_group and first.state is not None else state
    number = len(members) if is_group else max(1, sum(first.counts.values()))
    kind: NodeKind = first.kind if len(kinds) == 1 else "step"
    return GraphBox(
        label=_join_labels([node.label or node.name for node in members], is_chain=is_chain),
        number=number,
        is_chain=is_chain,
        kind=kind,
        state=own_state,
        counts=counts if number > 1 else {},
        detail=f"{number} {kind}s" if is_chain else "" if is_group else first.detail,
        tooltip=_describe_group(members, counts) if is_group else _describe_node(first, own_state, counts),
        address=addresses.pop() if len(addresses) == 1 else None,
    )


def _count_states(node: GraphNode) -> Counter[str]:
    return Counter(node.counts or ([] if node.state is None else [node.state]))


def list_looks(node: GraphNode) -> list[StateLook]:
    """Return the looks of the states of a node, or of what it stands for."""
    return [get_state_look(state) for state in _count_states(node)]


def _sort_by_urgency(counts: Mapping[str, int]) -> Mapping[str, int]:
    return {state: counts[state] for state in sorted(counts, key=get_urgency) if counts[state]}


@cache
def get_urgency(state: str) -> tuple[int, str]:
    return MARKS_BY_URGENCY.index(get_state_look(state).mark), state


def _join_labels(labels: Sequence[str], *, is_chain: bool) -> str:
    if len(labels) == 1:
        return labels[0]
    if is_chain:
        return f"{labels[0]} … {labels[-1]}"
    columns = zip(*labels, strict=False)
    common = "".join(letter for letter, *_ in takewhile(lambda column: len(set(column)) == 1, columns))
    return common.rstrip("-_. 0123456789") or f"{labels[0]}, …"


def _describe_node(node: GraphNode, state: str | None, counts: Mapping[str, int]) -> str:
    several = len(counts) > 1 or sum(counts.values()) > 1
    states = format_counts(counts) if several else state
    return "\n".join(
        filter(None, [f"{node.label or node.name}{f': {states}' if states else ''}", node.detail, node.tooltip])
    )


def _describe_group(members: Sequence[GraphNode], counts: Mapping[str, int]) -> str:
    ordered = nsmallest(MAX_LISTED, members, key=lambda node: sorted(map(get_urgency, _count_states(node))))
    names = [f"{node.label or node.name}{f' ({node.state})' if node.state else ''}" for node in ordered]
    more = [f"and {len(members) - MAX_LISTED} more"] if len(members) > MAX_LISTED else []
    head = f"{len(members)} nodes" + (f": {format_counts(counts)}" if counts else "")
    return "\n".join([head, *names, *more])


def format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def measure_box(box: GraphBox) -> float:
    """Return the width at which nothing of a box is cut, but not more than boxes may have."""
    start = _get_text_start(box)
    title = svg.estimate_text_width(box.label + box.suffix)
    second = svg.estimate_text_width(_format_second_line(box), DETAIL_FONT_PX)
    return min(start + max(title, second) + PADDING_PX, MAX_BOX_PX)


def measure_height(boxes: Iterable[GraphBox]) -> float:
    """Return the height that all boxes of a drawing have."""
    listed = list(boxes)
    second = DETAIL_PX if any(map(_format_second_line, listed)) else 0.0
    return LINE_PX + second + (BAR_PX if any(box.counts for box in listed) else 0.0)


def _get_text_start(box: GraphBox) -> float:
    return PADDING_PX + (MARK_PX if box.state is not None else 0.0)


def _list_count_texts(box: GraphBox) -> list[tuple[str, str]]:
    """Return the counts by mark, each with its colour: states that look alike are one."""
    totals: Counter[tuple[str, str]] = Counter()
    for state, number in box.counts.items():
        totals[get_state_look(state)] += number
    return [(f"{number} {mark}", colour) for (mark, colour), number in totals.items()]


def _format_second_line(box: GraphBox) -> str:
    return "  ".join(text for text, _ in _list_count_texts(box)) or box.detail


def is_cut(box: GraphBox, width: float) -> bool:
    """Return whether the label of a box does not fit."""
    text = svg.estimate_text_width(box.label + box.suffix)
    return _get_text_start(box) + text + PADDING_PX > width + 0.01


def draw_box(box: GraphBox, x: float, y: float, width: float, height: float) -> svg.Element:
    """Draw a box with its upper left corner at a point: a link if it has an address."""
    look = None if box.state is None else get_state_look(box.state)
    colour = "soft" if look is None else look.colour
    start = x + _get_text_start(box)
    room = width - PADDING_PX - _get_text_start(box)
    title = svg.shorten_text(box.label, room - svg.estimate_text_width(box.suffix)) + box.suffix
    second = DETAIL_PX if _format_second_line(box) else 0.0
    middle = y + (height - second - (BAR_PX if box.counts else 0.0)) / 2
    parts = [
        svg.draw_element("title", svg.escape_text(box.tooltip)),
        *_draw_shape(box, x, y, width, height, colour),
        svg.draw_text(title, start, middle + 4, "soft" if box.is_skipped else "ink", anchor="start"),
    ]
    if look is not None:
        parts.append(
            svg.draw_text(look.mark, x + PADDING_PX - 2, middle + 4, colour, anchor="start", font_weight="bold")
        )
    if box.counts:
        parts += [
            _draw_counts(box, start, middle + 19, room),
            *_draw_bar(box, x + PADDING_PX, y + height - 10, width - 2 * PADDING_PX),
        ]
    elif box.detail:
        detail = svg.shorten_text(box.detail, room, DETAIL_FONT_PX)
        parts.append(svg.draw_text(detail, start, middle + 19, "soft", anchor="start", font_size=DETAIL_FONT_PX))
    if box.address is not None:
        return svg.draw_element("a", svg.join_lines(parts), href=box.address)
    return svg.draw_element("g", svg.join_lines(parts))


def _draw_counts(box: GraphBox, x: float, y: float, room: float) -> svg.Element:
    """Draw the counts that fit, the most urgent first, which is always there."""
    texts = _list_count_texts(box)
    spans, used = list[svg.Element](), 0.0
    for place, (text, colour) in enumerate(texts):
        gap = COUNT_GAP_PX if spans else 0.0
        used += gap + svg.estimate_text_width(text, DETAIL_FONT_PX)
        more = COUNT_GAP_PX + svg.estimate_text_width("…", DETAIL_FONT_PX) if place < len(texts) - 1 else 0.0
        if spans and used + more > room:
            spans.append(svg.draw_element("tspan", svg.escape_text("…"), dx=gap, **svg.paint("soft")))
            break
        shown = svg.shorten_text(text, room, DETAIL_FONT_PX)
        spans.append(svg.draw_element("tspan", svg.escape_text(shown), dx=gap, **svg.paint(colour)))
    return svg.draw_element("text", *spans, x=x, y=y, font_size=DETAIL_FONT_PX)


def _draw_bar(box: GraphBox, x: float, y: float, width: float) -> list[svg.Element]:
    """Draw the shares of the states; what is there at all is seen."""
    totals: Counter[str] = Counter()
    for state, number in box.counts.items():
        totals[get_state_look(state).colour] += number
    least = min(LEAST_SHARE_PX, width / len(totals))
    free = width - least * len(totals)
    bars = []
    for colour, number in totals.items():
        long = least + free * number / sum(totals.values())
        bars.append(svg.draw_element("rect", x=x, y=y, width=long, height=4.0, **svg.paint(colour)))
        x += long
    return bars


def _draw_shape(box: GraphBox, x: float, y: float, width: float, height: float, colour: str) -> list[svg.Element]:
    """Draw the outline: a rectangle for a step, rounded for a service, with points at the sides for an agent, with a
    corner turned down for a model, with double sides for a workflow; behind it another one if it stands for many."""
    dashes: dict[str, Any] = {"stroke_dasharray": "4 3"} if box.is_skipped else {}
    outline = {"stroke_width": 1.5, **dashes, **svg.paint("paper", colour)}
    tint = {"fill_opacity": "0.08", **svg.paint(colour)}
    parts = []
    if box.is_stack:
        parts.append(_draw_outline(box.kind, x + 3, y + 3, width - 3, height - 3, {**outline, "stroke_width": 1.0}))
        width, height = width - 3, height - 3
    parts += [_draw_outline(box.kind, x, y, width, height, look) for look in (outline, tint)]
    if box.kind == "workflow":
        parts += [svg.draw_line(at, y, at, y + height, colour, **dashes) for at in (x + 5, x + width - 5)]
    if box.kind == "model":
        corner = f"M{x + width - CORNER_PX:.1f} {y:.1f}v{CORNER_PX:g}h{CORNER_PX:g}"
        parts.append(svg.draw_element("path", d=corner, stroke_width=1.0, **svg.paint(stroke=colour)))
    return parts


def _draw_outline(
    kind: NodeKind, x: float, y: float, width: float, height: float, look: Mapping[str, object]
) -> svg.Element:
    right, bottom, middle = x + width, y + height, y + height / 2
    if kind == "agent":
        inset = x + CORNER_PX, right - CORNER_PX
        corners = [(inset[0], y), (inset[1], y), (right, middle), (inset[1], bottom), (inset[0], bottom), (x, middle)]
    elif kind == "model":
        corners = [(x, y), (right - CORNER_PX, y), (right, y + CORNER_PX), (right, bottom), (x, bottom)]
    else:
        radius = height / 2 if kind == "service" else 4.0
        return svg.draw_element("rect", x=x, y=y, width=width, height=height, rx=min(radius, 16.0), **look)
    return svg.draw_element("polygon", points=" ".join(f"{left:.1f},{top:.1f}" for left, top in corners), **look)
