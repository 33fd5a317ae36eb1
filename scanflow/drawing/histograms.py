"""Distributions before and now: the shares of each bin beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.plot_frame import draw_legend

WIDTH, HEIGHT, TOP, FOOT, GAP = 340.0, 190.0, 44.0, 20.0, 24.0
NOTE_PX, SCALE_FONT_PX, LEAST_SHARE = 184.0, 10, 1e-3
SUMMARY_PX = 76.0  # the height of one without bins
LETTERS = 44  # of the widest line over a histogram
BEFORE, NOW, WHEN, LEGEND_PX = "blue", "amber", ("before", "now"), 16.0


class Histogram(NamedTuple):
    name: str
    note: str
    """A line below its name."""

    bins: Sequence[str] = ()
    before: Sequence[float] = ()
    now: Sequence[float] = ()
    """The share of each bin, 0 to 1."""

    summary: str = ""
    """What is known if there are no bins."""

    colour: str = "ink"
    """Of its name."""


def draw_histograms(name: str, histograms: Sequence[Histogram], *, width: float = 2 * WIDTH + 3 * GAP) -> Markup:
    """Draw histograms in rows, as many beside each other as there is room for. Before is hollow, now is filled."""
    columns = max(1, int((width - GAP) / (WIDTH + GAP)))
    margin = GAP if width >= WIDTH + 2 * GAP else max((width - WIDTH) / 2, 0.0)
    legend = _draw_legend(margin - 8, width, GAP) if any(histogram.bins for histogram in histograms) else []
    height, drawn = GAP + LEGEND_PX if legend else GAP, list[svg.Element]()
    for first in range(0, len(histograms), columns):
        row = histograms[first : first + columns]
        for at, histogram in enumerate(row):
            place = f"translate({margin + at * (WIDTH + GAP):g} {height:g})"
            drawn.append(svg.draw_element("g", _draw_parts(histogram), transform=place))
        height += max(map(_get_height, row)) + GAP
    paper = svg.draw_element("rect", width=width, height=height, **svg.paint("paper"))
    return svg.draw_figure(height, name, paper, *legend, *drawn, width=width)


def draw_histogram(histogram: Histogram) -> Markup:
    """Draw one, with a legend of its own beside its note."""
    legend = _draw_legend(NOTE_PX, WIDTH, 28.0) if histogram.bins else []
    name = f"Distribution of {histogram.name}"
    return svg.draw_figure(_get_height(histogram), name, _draw_parts(histogram), *legend, width=WIDTH)


def _get_height(histogram: Histogram) -> float:
    return HEIGHT if histogram.bins else SUMMARY_PX


def _draw_legend(left: float, right: float, y: float) -> list[svg.Element]:
    entries = [(when, svg.draw_element("rect", x=-6, y=-6, width=12, height=12, **_paint(when))) for when in WHEN]
    return draw_legend(entries, first=left, left=left, right=right, y=y)


def _draw_parts(histogram: Histogram) -> svg.Element:
    bins, base, step = histogram.bins, HEIGHT - FOOT, WIDTH / max(len(histogram.bins), 1)
    tallest = max([*histogram.before, *histogram.now, LEAST_SHARE])
    shares = svg.compute_ticks(0.0, tallest, 2) if bins else []
    scale = {f"{100 * share:g}%": base - share / tallest * (base - TOP) for share in shares}
    name = svg.draw_text(_shorten(histogram.name), 0, 12, histogram.colour, anchor="start", font_weight="bold")
    parts = [
        name if len(histogram.name) <= LETTERS else svg.draw_titled(histogram.name, name),
        svg.draw_text(svg.shorten_text(histogram.note, NOTE_PX), 0, 28, "soft", anchor="start"),
        *(svg.draw_line(0, y, WIDTH, y, "line") for y in scale.values()),
    ]
    if not bins:
        parts.append(svg.draw_text(_shorten(histogram.summary), 0, TOP + 24, "ink", anchor="start"))
    for place, pair in enumerate(zip(histogram.before, histogram.now, strict=True)):
        for when, share, shift in zip(WHEN, pair, (0.1, 0.5), strict=True):
            tall = share / tallest * (base - TOP)
            title = svg.draw_element("title", svg.escape_text(f"{bins[place]}, {when}: {share:.1%}"))
            where = {"x": (place + shift) * step, "y": base - tall, "width": step * 0.4, "height": tall}
            parts.append(svg.draw_element("rect", title, **where, **_paint(when)))
    for label, y in list(scale.items())[1:]:
        parts.append(svg.draw_label(label, 0, y - 3, "soft", anchor="start", font_size=SCALE_FONT_PX))
    return svg.Element("".join([*parts, *_draw_bins(bins, base + 15, step)]))


def _paint(when: str) -> dict[str, object]:
    hollow = {"fill_opacity": 0.2, "stroke_width": 1.5}
    return {**hollow, **svg.paint(BEFORE, stroke=BEFORE)} if when == "before" else {**svg.paint(NOW)}


def _draw_bins(bins: Sequence[str], y: float, step: float) -> list[svg.Element]:
    """Draw the names of bins, or those of both ends where there is room for no more."""
    letters = int(step / svg.estimate_text_width("x"))
    if letters > 3 or (bins and max(map(len, bins)) <= letters):
        names = [_shorten(name, letters) for name in bins]
        return [svg.draw_text(name, (at + 0.5) * step, y, "soft") for at, name in enumerate(names)]
    if not bins:
        return []
    first, last = (_shorten(bins[end], LETTERS // 2) for end in (0, -1))
    return [svg.draw_text(first, 0, y, "soft", anchor="start"), svg.draw_text(last, WIDTH, y, "soft", anchor="end")]


def _shorten(words: str, most: int = LETTERS) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
