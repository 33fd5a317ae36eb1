"""Sections of the report page: each returns HTML, or one line that names the missing data."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from itertools import groupby
from typing import Any

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.line_chart import STYLES, EventLine, LineStyle, Point, draw_chart
from scanflow.reports.distributions import MAX_COLUMNS, draw_column
from scanflow.reports.loop_events import compute_interval
from scanflow.reports.report_data import LoopEvent, RequestCounts, ScoredAnswers, Version
from scanflow.reports.tracker_links import Link, TrackerLinks
from scanflow.text.markup import Templates

MAX_POINTS = 40  # of a line over time; what is closer is added up
MAX_SAMPLES, MAX_VALUES = 12, 8
NEVER_USED = LineStyle("soft", shape="ring")
PNG = b"\x89PNG\r\n\x1a\n"
NO_ANSWERS = "No sample that was drawn at random from a drifted window is labelled yet. Label samples: scanflow labels"
NO_REQUESTS = "The requests to the service are unknown: the executor agent reports them while it is running."

TEMPLATES = Templates("scanflow.reports")

Span = tuple[float, float]


def render_accuracy(
    answers: Sequence[ScoredAnswers], counted: str, marks: Sequence[EventLine], span: Span, zone: tzinfo = UTC
) -> Markup:
    """Render each version's share of correct answers over time, with its interval; ``counted``: the points used."""
    lines: dict[str, list[Point]] = {}
    for answer in answers:
        low, high = compute_interval(answer.right, answer.n)
        words = (
            f"{svg.format_time(answer.at, zone=zone)} {answer.version}: "
            f"{format_share(answer.right / answer.n, answer.n, (low, high))}"
        )
        lines.setdefault(answer.version, []).append(Point(answer.at, answer.right / answer.n, words, low, high))
    if not lines:
        return render_missing(NO_ANSWERS)

    wide, narrow = _draw_both_widths(
        lambda width: draw_chart(
            "Accuracy over time", lines, marks, span=span, form="{:.0%}", limits=(None, 1.0), width=width, zone=zone
        )
    )
    return render_part("accuracy", counted, _make_legend(lines), wide, narrow)


def render_columns(drifted: Sequence[Mapping[str, Any]]) -> Markup:
    if not drifted:
        return render_missing("No detection reported columns.")
    figures = [draw_column(column) for column in drifted[:MAX_COLUMNS]]
    return render_part("columns", figures, len(drifted) - MAX_COLUMNS)


def render_samples(labels: Sequence[Mapping[str, Any]], worst: Sequence[Mapping[str, Any]]) -> Markup:
    """Render some of the selected points: thumbnails, or rows with the ``worst`` columns first."""
    pictures = [(label, picture) for label in labels if (picture := _encode_picture(label))][:MAX_SAMPLES]
    rows = [label for label in labels if isinstance(label.get("row"), Mapping)][:MAX_SAMPLES]
    if not (pictures or rows):
        return render_missing(
            "The selected samples have no stored picture or row." if labels else "No sample was selected."
        )
    if pictures:
        return render_part("pictures", [(picture, _format_prediction(label)) for label, picture in pictures])
    worst_names = [str(column.get("name")) for column in worst]
    names = sorted({name: 0 for label in rows for name in label["row"]}, key=lambda name: name not in worst_names)
    names = names[:MAX_VALUES]
    values = [[*(_format_value(label["row"].get(name)) for name in names), _format_prediction(label)] for label in rows]
    return render_part("rows", len(rows), render_table([*names, "prediction"], values))


def render_requests(
    asked: Sequence[RequestCounts], marks: Sequence[EventLine], span: Span, zone: tzinfo = UTC
) -> Markup:
    """Render request rate, failed requests and latency over time."""
    if not asked:
        return render_missing(NO_REQUESTS)
    width = max((span[1] - span[0]) / MAX_POINTS, 1e-9)
    plots: dict[str, dict[str, list[Point]]] = {"requests a second": {}, "failed requests": {}, "p95, ms": {}}
    rates, errors, slow = plots.values()
    ordered = sorted(asked, key=lambda counts: (counts.version, counts.at))
    for (version, _), near in groupby(ordered, lambda counts: (counts.version, int((counts.at - span[0]) / width))):
        group = list(near)
        at, count, failed = (
            group[-1].at,
            sum(counts.requests for counts in group),
            sum(counts.errors for counts in group),
        )
        rate, when = count / max(at - group[0].since, 1e-3), svg.format_time(at, zone=zone)
        rates.setdefault(version, []).append(Point(at, rate, f"{when} {rate:.3g} a second"))
        errors.setdefault(version, []).append(Point(at, failed, f"{when} {failed:,} of {count:,} failed"))
        p95 = [1000 * counts.p95_s for counts in group if counts.p95_s is not None]
        slow.setdefault(version, []).extend(Point(at, latency, f"{when} {latency:.3g} ms") for latency in p95[-1:])
    drawn = [
        (name, draw_chart(name, lines, marks, span=span, form="{:,.6g}", limits=(0.0, None), zone=zone))
        for name, lines in plots.items()
        if any(lines.values())
    ]
    return render_part("requests", _make_legend(rates), drawn)


def render_versions(
    asked: Sequence[RequestCounts],
    answers: Sequence[ScoredAnswers],
    versions: Sequence[Version],
    links: TrackerLinks,
    zone: tzinfo = UTC,
) -> Markup:
    compared, rows = {f"V{version.version}": version for version in versions}, list[list[str | Link]]()
    names = {*compared, *(record.version for record in asked), *(record.version for record in answers)}
    for name in sorted(names, key=lambda name: (len(name), name)):
        own_counts, version = [counts for counts in asked if counts.version == name], compared.get(name)
        right = sum(answer.right for answer in answers if answer.version == name)
        n = sum(answer.n for answer in answers if answer.version == name)
        figures = ("", "", "")
        if own_counts:
            count, failed = sum(counts.requests for counts in own_counts), sum(counts.errors for counts in own_counts)
            ends = (own_counts[0].since, own_counts[-1].at)
            form = svg.choose_time_format(*ends, zone)
            times = " to ".join(svg.format_time(end, form, zone) for end in ends)
            figures = (times, f"{count:,}", f"{failed:,}")
        live = format_share(right / n, n, compute_interval(right, n)) if n else ""
        judged = format_share(version.accuracy, version.n, version.interval) if version else ""
        shown = links.link_version(name + (" champion" if version and version.champion else ""))
        rows.append([shown, *figures, live, judged])
    heads = ("version", "served", "requests", "failed", "live accuracy", "accuracy when compared")
    return render_table(heads, rows) if rows else Markup()


POINTS = (
    "Green, joined: promoted versions, in the order of their use; grey rings: versions that were never promoted. Each "
    "figure is from the version's first comparison, so that those of versions compared on different samples differ for "
    "that reason, too; bars: 95 % confidence intervals."
)
"""What :func:`draw_history` shows."""


def draw_history(versions: Sequence[Version], *, width: float = svg.WIDTH) -> Markup:
    """Draw the accuracy of each version in its first comparison, and a line through those in use (Fig. 5.11)."""
    ordered = sorted(versions, key=lambda version: version.version)
    points = {
        version.version: Point(
            at,
            version.accuracy,
            f"V{version.version}: {format_share(version.accuracy, version.n, version.interval)}",
            *(version.interval or ()),
        )
        for at, version in enumerate(ordered)
    }
    marks = [
        EventLine(
            points[version.version].at,
            f"{version.accuracy:.1%}"
            + (f", n {version.n:,}" if version.n else "")
            + (" champion" if version.champion else ""),
            "green" if version.promoted else "soft",
        )
        for version in sorted(
            ordered, key=lambda version: not version.promoted
        )  # who chooses first where there is little room
    ]
    used = sorted((use.began, version.version) for version in ordered for use in version.uses)
    lines = {"in use": [points[number] for _, number in used]}
    lines |= {f"V{version.version}": [points[version.version]] for version in ordered if not version.promoted}
    return draw_chart(
        "Accuracy of the model versions",
        lines,
        marks,
        span=(-0.5, len(ordered) - 0.5),
        form="{:.0%}",
        names=[f"V{version.version}" for version in ordered],
        styles=dict.fromkeys(lines, NEVER_USED) | {"in use": LineStyle("green")},
        width=width,
    )


def build_event_lines(events: Sequence[LoopEvent]) -> list[EventLine]:
    """Return the marks for plots over time: drift, and promoted or reverted models."""
    words = {"detection": "drift", "promotion": "{} in use", "revert": "reverted"}
    return [
        EventLine(
            event.at, words[event.kind].format(event.text.split()[0]), "green" if event.kind == "promotion" else "red"
        )
        for event in events
        if event.kind in words
    ]


def render_part(macro: str, *values: object) -> Markup:
    """Render a part of the page by the name of its macro."""
    return TEMPLATES.render_macro("report_parts.html.jinja", macro, *values)


def render_plot(caption: str, draw: Callable[[float], Markup]) -> Markup:
    """Render a drawing twice, for a page and for a phone; ``draw`` takes the width."""
    return render_part("plot", caption, *_draw_both_widths(draw))


def _draw_both_widths(draw: Callable[[float], Markup]) -> tuple[Markup, Markup]:
    return draw(svg.WIDTH), draw(svg.NARROW)


def render_table(heads: Sequence[str], rows: Iterable[Sequence[str | Link]]) -> Markup:
    """Render a table whose rows become lists on a phone; Scanflow's commands are set as code."""
    return render_part("table", heads, (zip(heads, map(_classify, row), row, strict=False) for row in rows))


def _classify(cell: str | Link) -> str:
    return "link" if isinstance(cell, Link) else "command" if cell.startswith("scanflow ") else "text"


def render_missing(words: str) -> Markup:
    return render_part("paragraph", words)


def _make_legend(lines: Iterable[str]) -> list[tuple[Markup, str]]:
    styles = (STYLES[at % len(STYLES)] for at, _ in enumerate(lines))
    return [(svg.draw_dot(style.colour, style.shape), name) for style, name in zip(styles, lines, strict=True)]


def format_share(value: float, n: int | None, interval: tuple[float | None, float | None] | None) -> str:
    low, high = interval or (None, None)
    between = "" if low is None or high is None else f" ({low:.1%} to {high:.1%})"
    return f"{value:.1%}{between}, n {'unknown' if n is None else f'{n:,}'}"


def _encode_picture(item: Mapping[str, Any]) -> str:
    """Return a point's PNG thumbnail in base 64; empty if it has none."""
    try:
        image = base64.b64decode(item.get("picture") or "", validate=True)
    except (TypeError, ValueError):
        return ""
    return base64.b64encode(image).decode() if image.startswith(PNG) else ""


def _format_prediction(item: Mapping[str, Any]) -> str:
    guess = "?" if item.get("guess") in (None, -1) else _format_value(item["guess"])
    return f"{guess}, is {_format_value(item['label'])}" if item.get("label") is not None else guess


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
