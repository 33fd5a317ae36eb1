"""SVG drawing helpers: elements as markup, colours, ticks at round numbers, and labels that do not overlap."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache
from html import escape
from typing import NamedTuple, NewType

from markupsafe import Markup

from scanflow.text.times import bound_time, to_datetime

WIDTH, NARROW = 960.0, 350.0
"""Width of a plot on a wide page, and on a phone."""

AXIS_FONT_PX = 12
BOLD_FONT_PX = 13.8
"""The size at which text is as wide as bold text of the usual size."""

GAP_PX, TIMES_PX = 8.0, 4.0
COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1f2430", "#e7e9ee"),
    "soft": ("#5b6372", "#a4acba"),
    "line": ("#d5d9e0", "#3a414d"),
    "blue": ("#1558e0", "#7fb2f7"),
    "red": ("#b02a30", "#f2726a"),
    "green": ("#2a8259", "#74f0bb"),
    "amber": ("#9a5b00", "#f7cb66"),
    "violet": ("#55216e", "#ab6bf5"),
    "paper": ("#ffffff", "#171a20"),
}
"""Name: (on white, on black). Each has a contrast of 4.5 or more against its background, except ``line``.

They differ in lightness where the colour-blind see the same hue: tests/unit/drawing/test_colours.py."""

STYLE = (
    "@media screen and (prefers-color-scheme: dark){"
    + "".join(f".f-{name}{{fill:{dark}}}.s-{name}{{stroke:{dark}}}" for name, (_, dark) in COLOURS.items())
    + "}"
)
"""Included in each SVG, so that it also works standalone. Dark colours are for screens: paper is white."""


def format_number(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


Element = NewType("Element", str)
"""SVG elements, or text inside of them, escaped. The type checkers see where another text is taken for one."""


def draw_element(name: str, /, *content: Element, **attributes: object) -> Element:
    """Return one SVG element; its attributes are escaped.

    ``_`` in a name stands for ``-``, and a name may end in ``_`` (``class_``).
    """
    opening = name
    for key, value in attributes.items():
        shown = format_number(value) if isinstance(value, float) else _escape_attribute(value)
        opening += f' {_spell_name(key)}="{shown}"'
    inside = "".join(content)
    return Element(f"<{opening}>{inside}</{name}>" if inside else f"<{opening}/>")


def escape_text(words: str) -> Element:
    """Escape a text for SVG."""
    return Element(escape(words, quote=False))


def join_elements(elements: Iterable[Element]) -> Element:
    return Element("\n".join(elements))


def join_lines(elements: Iterable[Element]) -> Element:
    """Return elements on lines of their own, inside another."""
    return Element("\n" + "".join(f"{element}\n" for element in elements))


@cache
def _spell_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


@lru_cache(maxsize=1024)
def _escape_attribute(value: object) -> str:
    return escape(str(value))


@cache
def paint(fill: str | None = None, stroke: str | None = None) -> Mapping[str, str]:
    classes = [f"f-{fill}"] if fill else []
    classes += [f"s-{stroke}"] if stroke else []
    painted = {"class_": " ".join(classes), "fill": COLOURS[fill][0] if fill else "none"}
    return painted | ({"stroke": COLOURS[stroke][0]} if stroke else {})


def draw_line(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: int = 1, **more: object) -> Element:
    return draw_element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke_width=width, **more, **paint(stroke=colour))


def draw_text(words: str, x: float, y: float, colour: str, *, anchor: str = "middle", **more: object) -> Element:
    return draw_element("text", escape_text(words), x=x, y=y, text_anchor=anchor, **more, **paint(colour))


def draw_label(words: str, x: float, y: float, colour: str, *, anchor: str = "middle", **more: object) -> Element:
    """Return a text with an edge in the colour of the paper, so that no line runs through it."""
    edge = {"stroke_width": 4, "stroke_linejoin": "round", "paint_order": "stroke", **paint(colour, stroke="paper")}
    return draw_element("text", escape_text(words), x=x, y=y, text_anchor=anchor, **more, **edge)


_CHARACTER_WIDTHS: Mapping[str, float] = {
    character: width
    for width, characters in {
        0.3: "'ijl",
        0.36: "IJ,. ·/:;\\|f-",
        0.44: 't()[]!r"',
        0.54: "*_`–sz?",
        0.62: "aceghknopquvxybdFLPTYSE",
        0.7: "0123456789${}KAVBRXZC",
        0.8: "UHNDGOQ&",
        1.0: "mMW@%…■●",
    }.items()
    for character in characters
}
_OTHER_WIDTH, _WIDE_WIDTH = 0.86, 1.05


def estimate_text_width(text: str, font_px: float = AXIS_FONT_PX) -> float:
    """Return about the width of a text in pixels, in the widest of the usual sans-serif fonts, DejaVu Sans."""
    return font_px * sum(map(_estimate_character_width, text))


@lru_cache(maxsize=4096)
def _estimate_character_width(character: str) -> float:
    if character in _CHARACTER_WIDTHS:
        return _CHARACTER_WIDTHS[character]
    if unicodedata.combining(character):
        return 0.0
    return _WIDE_WIDTH if unicodedata.east_asian_width(character) in {"W", "F"} else _OTHER_WIDTH


def shorten_text(text: str, width: float, font_px: float = AXIS_FONT_PX) -> str:
    """Return a text that is no wider than ``width`` pixels: its middle is left out, as names differ at their ends."""
    if estimate_text_width(text, font_px) <= width + 1e-6:
        return text
    used, head, tail = estimate_text_width("…", font_px), 0, len(text)
    while used <= width + 1e-6:
        is_first = head <= len(text) - tail
        used += estimate_text_width(text[head] if is_first else text[tail - 1], font_px)
        if used <= width + 1e-6:
            head, tail = (head + 1, tail) if is_first else (head, tail - 1)
    return f"{text[:head]}…{text[tail:]}" if head else ""


SHAPES = ("circle", "square", "triangle", "diamond", "ring", "cross")
"""The shapes of points: the first, second … series has its own, so that they differ without colours, too."""


def draw_marker(
    shape: str, x: float, y: float, colour: str, *, words: str = "", size: float = 3.5, edge: bool = False
) -> Element:
    """Return a point of one of :data:`SHAPES`, with a tooltip if there are words.

    ``edge``: it is parted from points near to it by a line in the colour of the paper.
    """
    title = [draw_element("title", escape_text(words))] if words else []
    paints = {"stroke_width": 2, **paint(colour, stroke="paper")} if edge else paint(colour)
    if shape == "ring":
        paints = {"stroke_width": 2, **paint("paper", stroke=colour)}
    if shape in ("circle", "ring"):
        return draw_element("circle", *title, cx=x, cy=y, r=size, **paints)
    if shape == "cross":
        path = f"M{_format_places((x - size, y - size), (x + size, y + size))}"
        path += f"M{_format_places((x - size, y + size), (x + size, y - size))}"
        return draw_element("path", *title, d=path, stroke_width=3, **paint(stroke=colour))
    wide = size * 1.2
    corners = {
        "square": ((-size, -size), (size, -size), (size, size), (-size, size)),
        "triangle": ((0.0, -wide), (wide, size), (-wide, size)),
        "diamond": ((0.0, -wide), (wide, 0.0), (0.0, wide), (-wide, 0.0)),
    }[shape]
    places = _format_places(*((x + right, y + down) for right, down in corners))
    return draw_element("path", *title, d=f"M{places}Z", **paints)


def _format_places(*places: tuple[float, float]) -> str:
    return "L".join(f"{format_number(x)} {format_number(y)}" for x, y in places)


def draw_path(places: Sequence[tuple[float, float]], colour: str, **more: object) -> Element:
    """Return a line through places."""
    return draw_element("path", d=f"M{_format_places(*places)}", **more, **paint(stroke=colour))


def draw_titled(words: str, *content: Element) -> Element:
    """Return elements with a tooltip in common."""
    return draw_element("g", draw_element("title", escape_text(words)), *content)


def draw_link(address: str, words: str, *content: Element) -> Element:
    """Return elements with a tooltip in common, as a link if there is an address."""
    if not address:
        return draw_titled(words, *content)
    title = draw_element("title", escape_text(words))
    return draw_element("a", title, *content, href=address, aria_label=words)


def wrap_text(text: str, width: float) -> list[str]:
    """Return a text in lines that are at most so wide, but for words that are wider."""
    lines: list[str] = []
    for word in text.split():
        if lines and estimate_text_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def draw_figure(height: float, name: str, *parts: Element, width: float = WIDTH) -> Markup:
    """Return a whole SVG. It is a picture to screen readers, or a group if there are links in it."""
    head = (draw_element("title", escape_text(name)), draw_element("style", escape_text(STYLE)))
    drawn = draw_element(
        "svg",
        join_lines([*head, *parts]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="group" if any("<a " in part for part in parts) else "img",
        font_family="system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif",
        font_size=AXIS_FONT_PX,
    )
    return Markup(drawn)  # noqa: S704 - elements, escaped as they were made


def draw_dot(colour: str, shape: str = "circle") -> Markup:
    """Return the point of a legend, to stand in a line of text."""
    spot = draw_marker(shape, 5, 5, colour, size=5 if shape == "circle" else 4)
    style = draw_element("style", escape_text(STYLE))
    return Markup(draw_element("svg", style, spot, class_="dot", viewBox="0 0 10 10"))  # noqa: S704 - as above


class PlacedLabel(NamedTuple):
    middle: float
    row: int  # counted from the nearest to what it names


def place_labels(
    labels: Sequence[tuple[float, float]], *, left: float, right: float, rows: int, gap: float = GAP_PX
) -> list[PlacedLabel | None]:
    """Place labels so that no two overlap; None for a label that fits in none of the ``rows`` rows.

    ``labels``: the middle and the width of each, in order of priority. None begins before ``left`` or
    ends after ``right``, unless it is wider than all; those of one row are ``gap`` apart, at least.
    """
    occupied: list[list[tuple[float, float]]] = [[] for _ in range(rows)]
    placed: list[PlacedLabel | None] = []
    for middle, width in labels:
        middle = max(min(middle, right - width / 2), left + width / 2)
        first, last = middle - width / 2 - gap, middle + width / 2 + gap
        row = next(
            (at for at, others in enumerate(occupied) if all(last <= start or end <= first for start, end in others)),
            None,
        )
        if row is not None:
            occupied[row].append((first + gap, last - gap))
        placed.append(None if row is None else PlacedLabel(middle, row))
    return placed


def choose_step(span: float, most: int) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that cuts ``span`` into at most ``most`` parts."""
    if span <= 0:
        return 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9)), power * 10)


def compute_ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Return round numbers from ``low`` to ``high``, no more than ``most`` + 1, and at least ``least`` apart."""
    step = max(choose_step(high - low, most), least)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 10) for at in range(first, last + 1)]


PARTS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@lru_cache(maxsize=4096)
def format_time(at: float, form: str = "%H:%M:%S", zone: tzinfo = UTC) -> str:
    """Format a time. Cached, as a report writes each in two plots and a table."""
    return to_datetime(at).astimezone(zone).strftime(form)


LONG = "%Y-%m-%d %H:%M:%S"


def choose_time_format(begin: float, end: float, zone: tzinfo = UTC) -> str:
    """Return the strftime format for times between two: with the date if they span several days."""
    day = "%d%m%Y"
    return "%H:%M:%S" if format_time(begin, day, zone) == format_time(end, day, zone) else "%m-%d %H:%M:%S"


def draw_time_axis(begin: float, end: float, *, left: float, right: float, y: float, zone: tzinfo = UTC) -> Element:
    """Return an axis with round times of day in ``zone`` below it, in parts of a second if it is that short."""
    most = max((right - left) / 75, 1)
    step = next(
        (seconds for seconds in (STEPS_S if end - begin > 2 else PARTS_S) if (end - begin) / seconds <= most),
        86400 * math.ceil((end - begin) / 86400 / most),
    )
    form = "%H:%M:%S.%f" if step < 1 else "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
    times = list_round_times(begin, end, step, zone)
    places = [left + (at - begin) / (end - begin) * (right - left) for at in times]
    words = [format_time(at, form, zone)[: len("00:00:00.00")] for at in times]
    wishes = [(x, estimate_text_width(text)) for x, text in zip(places, words, strict=True)]
    labels = place_labels(wishes, left=left - TIMES_PX, right=right + TIMES_PX, rows=1, gap=4.0)
    ticks = [draw_line(x, y, x, y + 5, "soft") for x in places]
    named = [draw_text(text, label.middle, y + 20, "soft") for text, label in zip(words, labels, strict=True) if label]
    return join_elements([draw_line(left, y, right, y, "soft"), *ticks, *named])


def list_round_times(begin: float, end: float, step: float, zone: tzinfo = UTC) -> list[float]:
    """Return the times between two at which the clocks of ``zone`` show a multiple of ``step`` seconds.

    A time that they show twice, as in autumn, is there once, and one that they leave out is not there.
    """
    shifts = [_get_shift(at, zone) for at in (begin, end)]
    first, last = math.ceil((begin + min(shifts)) / step), math.floor((end + max(shifts)) / step)
    times = [_find_clock_time(number * step, zone) for number in range(first, last + 1)]
    return [at for at in times if at is not None and begin <= at <= end]


def _get_shift(at: float, zone: tzinfo) -> float:
    shift = to_datetime(at).astimezone(zone).utcoffset()
    return 0.0 if shift is None else shift.total_seconds()


def _find_clock_time(shown: float, zone: tzinfo) -> float | None:
    """Return when the clocks of a zone show what those of UTC show at ``shown``; None: they leave it out."""
    if zone is UTC:
        return shown
    at = datetime.fromtimestamp(bound_time(shown), UTC).replace(tzinfo=zone).timestamp()
    return at if abs(at + _get_shift(at, zone) - shown) < 1e-3 else None
