"""The accuracy of each version of the model, and which of them were in use (thesis Fig. 5.11)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scanflow.reports import drawing as svg
from scanflow.reports.records import Version

LEFT, RIGHT, TOP, HEIGHT, BOTTOM = 64.0, 40.0, 64.0, 240.0, 32.0
MOST_ROWS = 3
ROW_PX = 18.0
AFTER_SHARE = 0.25
"""Where something older came back into use, or nothing was left in use: so much of a version's room after its point."""

CLEAR_PX = 16.0  # how far from its point a label is, at least


def model_history(versions: Sequence[Version], *, width: float = svg.WIDTH) -> str:
    """Return the plot as SVG: a point for each version, and a stepped line for what was in use.

    Points are in the order of versions, evenly spaced, as in the thesis: several may be made within seconds.
    """
    known = sorted(versions, key=lambda version: version.version)
    right = width - RIGHT
    low, high = limits([end for version in known for end in version.interval or (version.accuracy,)])
    room = (right - LEFT) / len(known)
    places = [(LEFT + room * (at + 0.5), y_of(one.accuracy, low, high)) for at, one in enumerate(known)]
    lines, texts = names(known, places, right)
    spans = [
        svg.line(x, y_of(one.interval[0], low, high), x, y_of(one.interval[1], low, high), "soft", opacity=0.5, width=2)
        for one, (x, _) in zip(known, places, strict=True)
        if one.interval
    ]
    return svg.whole(
        TOP + HEIGHT + BOTTOM,
        "Accuracy of the model's versions, the champions marked",
        grid(low, high, right),
        *spans,
        *lines,
        in_use(known, places, right),
        *texts,
        *points(known, places),
        width=width,
    )


def limits(accuracies: Sequence[float]) -> tuple[float, float]:
    """Return round ends of the axis with all accuracies well inside, in 0 to 1."""
    low, high = min(accuracies), max(accuracies)
    room = max(0.005, (high - low) * 0.15)
    step = svg.nice_step(high - low + 2 * room, 5)
    return max(0.0, math.floor((low - room) / step) * step), min(1.0, math.ceil((high + room) / step - 1e-9) * step)


def y_of(accuracy: float, low: float, high: float) -> float:
    return TOP + HEIGHT * (1 - (accuracy - low) / (high - low))


def grid(low: float, high: float, right: float) -> str:
    parts = []
    step = svg.nice_step(high - low, 5)
    digits = 0 if step >= 0.0099 else 1 if step >= 0.00099 else 2
    for tick in svg.ticks(low, high, 5):
        y = y_of(tick, low, high)
        parts.append(svg.line(LEFT, y, right, y, "line"))
        parts.append(svg.text(f"{tick:.{digits}%}", LEFT - 10, y + 4, "soft", anchor="end"))
    middle = TOP + HEIGHT / 2
    parts.append(svg.text("accuracy", 12.0, middle, "soft", transform=f"rotate(-90 12 {svg.number(middle)})"))
    return "\n".join(parts)


def in_use(known: Sequence[Version], places: Sequence[tuple[float, float]], right: float) -> str:
    """Return the stepped line through what was in use, in the order of time, on to the end if anything still is.

    It steps up or down to a version at its point. Where it must go back to an older one, it does so a little after the
    newest that there was by then; where nothing was in use, it has a gap.
    """
    room = (right - LEFT) / len(known) * AFTER_SHARE

    def past(at: int, when: float) -> float:
        """Return where the line stands at a time at which it leaves a version's height."""
        newest = max((place for place, version in enumerate(known) if version.at < when), default=at)
        return max(pen, places[max(newest, at)][0] + room)

    steps: list[str] = []
    pen, before = 0.0, 0
    until: float | None = None
    uses = [(use, at) for at, version in enumerate(known) for use in version.uses]
    uses.sort(key=lambda one: (one[0].began, math.inf if one[0].ended is None else one[0].ended))
    for use, at in uses:
        x, y = places[at]
        if steps and until is not None and until < use.began:
            pen = past(before, until)
            steps.append(f"H{svg.number(pen)}")
            until = None
        x = past(before, use.began) if x < pen else x
        gone_on = until is not None
        steps.append(f"H{svg.number(x)}V{svg.number(y)}" if gone_on else f"M{svg.number(x)} {svg.number(y)}")
        pen, before, until = x, at, use.ended
    if not steps:
        return ""
    steps.append(f"H{svg.number(right if until is None else past(before, until))}")
    return svg.element("path", d=" ".join(steps), stroke_width=2, **svg.paint(stroke="green"))


def points(known: Sequence[Version], places: Sequence[tuple[float, float]]) -> list[str]:
    drawn = []
    for version, (x, y) in zip(known, places, strict=True):
        state = "champion" if version.champion else "promoted" if version.promoted else "not promoted"
        title = svg.element("title", f"version {version.version}: {version.accuracy:.2%}, {state}")
        if version.champion:
            drawn.append(svg.element("circle", cx=x, cy=y, r=10.0, stroke_width=2, **svg.paint(stroke="green")))
        if version.promoted:
            drawn.append(svg.element("circle", title, cx=x, cy=y, r=5.5, **svg.paint("green")))
        else:
            drawn.append(
                svg.element("circle", title, cx=x, cy=y, r=4.5, stroke_width=2, **svg.paint("paper", stroke="soft"))
            )
    return drawn


def names(known: Sequence[Version], places: Sequence[tuple[float, float]], right: float) -> tuple[list[str], list[str]]:
    """Return lines, and texts: what versions are called, below the axis, and what they reach, beside their points.

    Where accuracies do not fit beside each other they go into rows above the plot, with lines that lead to the points.
    Texts are left out where there is no room; versions that were in use choose first.
    """
    below = [f"V{version.version}" for version in known]
    above = [
        f"{one.accuracy:.1%}" + (f", n {one.n:,}" if one.n is not None else "") + (" champion" if one.champion else "")
        for one in known
    ]
    foot = TOP + HEIGHT + 22
    lines, texts = [], []
    for version, (x, _), words, label in zip(
        known, places, below, placed(known, places, below, rows=1, right=right), strict=True
    ):
        if label is not None:
            colour = "ink" if version.promoted else "soft"
            texts.append(svg.text(words, x, foot, colour))
    labels = placed(known, places, above, rows=1, right=right)
    near = all(label is not None and label.middle == x for label, (x, _) in zip(labels, places, strict=True))
    if not near:
        labels = placed(known, places, above, rows=MOST_ROWS, right=right)
    for version, (x, y), words, label in zip(known, places, above, labels, strict=True):
        if label is None:
            continue
        colour = "green" if version.promoted else "soft"
        under = colour == "soft" and y + 2 * CLEAR_PX < TOP + HEIGHT  # what was not in use is mostly below the line
        beside = y + CLEAR_PX + 6 if under else y - CLEAR_PX
        top = beside if near else TOP - CLEAR_PX - label.row * ROW_PX
        if not near:
            lines.append(svg.line(x, y, x, top + 4, "line"))
        texts += [svg.halo(words, label.middle, top), svg.text(words, label.middle, top, colour)]
    return lines, texts


def placed(
    known: Sequence[Version], places: Sequence[tuple[float, float]], words: Sequence[str], *, rows: int, right: float
) -> list[svg.PlacedLabel | None]:
    order = sorted(range(len(known)), key=lambda at: not known[at].promoted)
    found = svg.place(
        [(places[at][0], svg.text_width(words[at])) for at in order], left=LEFT, right=right + RIGHT, rows=rows
    )
    return [label for _, label in sorted(zip(order, found, strict=True), key=lambda one: one[0])]
