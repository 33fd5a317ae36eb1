"""Parts of the report's page: each returns HTML, and says in one line what is missing where nothing was told."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from scanflow.reports import drawing as svg
from scanflow.reports.distributions import MOST_COLUMNS, draw_column
from scanflow.reports.loop_events import interval_of
from scanflow.reports.records import Answers, LoopEvent, RequestCounts, Version
from scanflow.reports.series import LINES, EventLine, Point, chart
from scanflow.reports.tracker_links import Link, TrackerLinks

MOST_POINTS = 40  # of a line over time; what is closer is added up
MOST_SAMPLES, MOST_VALUES = 12, 8
PNG = b"\x89PNG\r\n\x1a\n"
NO_ANSWERS = "No point that was drawn at random from a drifted window is labelled yet. Label points: scanflow labels"
NOT_ASKED = "What the service was asked is not known: the executor agent tells it while it is at work."

Span = tuple[float, float]


def accuracy(answers: Sequence[Answers], counted: str, marks: Sequence[EventLine], span: Span) -> str:
    """Return the share of right answers over time, with its interval, for each version; ``counted``: of which."""
    lines: dict[str, list[Point]] = {}
    for one in answers:
        low, high = interval_of(one.right, one.n)
        words = f"{svg.moment(one.at)} {one.version}: {share(one.right / one.n, one.n, (low, high))}"
        lines.setdefault(one.version, []).append(Point(one.at, one.right / one.n, words, low, high))
    if not lines:
        return missing(NO_ANSWERS)
    told = f"{escape(counted)} Bars: where the share may really be, at 95 %. {key(lines)}"
    limits = (None, 1.0)
    return f"<p>{told}</p>\n" + both(
        lambda width: chart("Accuracy over time", lines, marks, span=span, form="{:.0%}", limits=limits, width=width)
    )


def columns(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return missing("No detection named columns.")
    drawn = "".join(f"<figure>{draw_column(one)}</figure>" for one in found[:MOST_COLUMNS])
    more = f" {len(found) - MOST_COLUMNS} more are not drawn." if len(found) > MOST_COLUMNS else ""
    return f'<p>{dot("blue")} before, {dot("amber")} now; the worst first.{more}</p><div class="grid">{drawn}</div>'


def samples(labels: Sequence[Mapping[str, Any]], worst: Sequence[Mapping[str, Any]]) -> str:
    """Return some of the picked points: thumbnails, or rows with the ``worst`` columns first."""
    pictures = [(one, found) for one in labels if (found := _picture(one))][:MOST_SAMPLES]
    rows = [one for one in labels if isinstance(one.get("row"), Mapping)][:MOST_SAMPLES]
    if not (pictures or rows):
        return missing("The points are not kept with what they look like." if labels else "No point was picked.")
    if pictures:
        drawn = (
            f'<div><img alt="" src="data:image/png;base64,{found}"><br>{escape(_said(one))}</div>'
            for one, found in pictures
        )
        shown = f'<div class="thumbs">{"".join(drawn)}</div>'
    else:
        known = [str(one.get("name")) for one in worst]
        names = sorted({name: 0 for one in rows for name in one["row"]}, key=lambda name: name not in known)
        names = names[:MOST_VALUES]
        shown = table(
            [*names, "prediction"], [[*(_value(one["row"].get(name)) for name in names), _said(one)] for one in rows]
        )
    told = f"{len(pictures or rows)} points of the newest drift, the most critical first."
    return f"<p>{told}</p>{shown}"


def requests(asked: Sequence[RequestCounts], marks: Sequence[EventLine], span: Span) -> str:
    """Return how often the service was asked, what failed, and how long it took, over time."""
    if not asked:
        return missing(NOT_ASKED)
    width = max((span[1] - span[0]) / MOST_POINTS, 1e-9)
    plots: dict[str, dict[str, list[Point]]] = {"requests a second": {}, "failed requests": {}, "p95, ms": {}}
    rates, errors, slow = plots.values()
    in_pieces = sorted(asked, key=lambda one: (one.version, one.at))
    for (version, _), near in groupby(in_pieces, lambda one: (one.version, int((one.at - span[0]) / width))):
        some = list(near)
        at, count, failed = some[-1].at, sum(one.requests for one in some), sum(one.errors for one in some)
        rate, when = count / max(at - some[0].since, 1e-3), svg.moment(at)
        rates.setdefault(version, []).append(Point(at, rate, f"{when} {rate:.3g} a second"))
        errors.setdefault(version, []).append(Point(at, failed, f"{when} {failed:,} of {count:,} failed"))
        p95 = [1000 * one.p95_s for one in some if one.p95_s is not None]
        slow.setdefault(version, []).extend(Point(at, one, f"{when} {one:.3g} ms") for one in p95[-1:])
    drawn = [
        f"<figure><figcaption>{name}</figcaption>"
        f"{chart(name, lines, marks, span=span, form='{:,.6g}', limits=(0.0, None))}</figure>"
        for name, lines in plots.items()
        if any(lines.values())
    ]
    told = f"Failed: with a status of 500 or more. p95: of the latency, over the last minute. {key(rates)}"
    return f'<p>{told}</p><div class="grid">{"".join(drawn)}</div>'


def served(
    asked: Sequence[RequestCounts], answers: Sequence[Answers], versions: Sequence[Version], links: TrackerLinks
) -> str:
    compared, rows = {f"V{one.version}": one for one in versions}, list[list[str | Link]]()
    names = {*compared, *(one.version for one in asked), *(one.version for one in answers)}
    for name in sorted(names, key=lambda name: (len(name), name)):
        mine, one = [each for each in asked if each.version == name], compared.get(name)
        right = sum(each.right for each in answers if each.version == name)
        n = sum(each.n for each in answers if each.version == name)
        told = ("", "", "")
        if mine:
            count, failed = sum(each.requests for each in mine), sum(each.errors for each in mine)
            form = svg.dated(mine[0].since, mine[-1].at)
            times = f"{svg.moment(mine[0].since, form)} to {svg.moment(mine[-1].at, form)}"
            told = (times, f"{count:,}", f"{failed:,}")
        live = share(right / n, n, interval_of(right, n)) if n else ""
        judged = share(one.accuracy, one.n, one.interval) if one else ""
        shown = links.version(name + (" champion" if one and one.champion else ""))
        rows.append([shown, *told, live, judged])
    heads = ("version", "served", "requests", "failed", "live accuracy", "accuracy when compared")
    return table(heads, rows) if rows else ""


def history(versions: Sequence[Version], *, width: float = svg.WIDTH) -> str:
    """Return the accuracy of each version when it was first compared, and a line through those in use (Fig. 5.11)."""
    known = sorted(versions, key=lambda one: one.version)
    points = {
        one.version: Point(
            at, one.accuracy, f"V{one.version}: {share(one.accuracy, one.n, one.interval)}", *(one.interval or ())
        )
        for at, one in enumerate(known)
    }
    marks = [
        EventLine(
            points[one.version].at,
            f"{one.accuracy:.1%}" + (f", n {one.n:,}" if one.n else "") + (" champion" if one.champion else ""),
            "green" if one.promoted else "soft",
        )
        for one in sorted(known, key=lambda one: not one.promoted)  # who chooses first where there is little room
    ]
    used = sorted((use.began, one.version) for one in known for use in one.uses)
    lines = [[points[number] for _, number in used]]
    lines += [[points[one.version]] for one in known if not one.promoted]
    return chart(
        "Accuracy of the model's versions",
        {str(at): line for at, line in enumerate(lines)},
        marks,
        span=(-0.5, len(known) - 0.5),
        form="{:.0%}",
        names=[f"V{one.version}" for one in known],
        colours=["green", *("soft" for _ in known)],
        width=width,
    )


def lines_of_events(events: Sequence[LoopEvent]) -> list[EventLine]:
    """Return what is marked in plots over time: drift was found, a model was swapped or taken back."""
    words = {"detection": "drift", "promotion": "{} in use", "revert": "taken back"}
    return [
        EventLine(one.at, words[one.kind].format(one.text.split()[0]), "green" if one.kind == "promotion" else "red")
        for one in events
        if one.kind in words
    ]


def both(draw: Callable[[float], str]) -> str:
    return f'<figure class="wide">{draw(svg.WIDTH)}</figure>\n<figure class="narrow">{draw(svg.NARROW)}</figure>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str | Link]]) -> str:
    """Return a table whose rows are lists of their own on a phone; Scanflow's commands are set as code."""

    def cell(head: str, words: str | Link) -> str:
        if isinstance(words, Link):
            shown = f'<a href="{escape(words.address)}">{escape(words.words)}</a>'
        else:
            shown = f"<code>{escape(words)}</code>" if words.startswith("scanflow ") else escape(words)
        return f'<td data-head="{escape(head)}">{shown}</td>'

    top = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(map(cell, heads, row))}</tr>\n" for row in rows)
    return f"<table>\n<tr>{top}</tr>\n{body}</table>"


def missing(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def key(lines: Iterable[str]) -> str:
    return ", ".join(f"{dot(LINES[at % len(LINES)])} {escape(name)}" for at, name in enumerate(lines))


def dot(colour: str) -> str:
    spot = svg.element("circle", cx=5, cy=5, r=5, **svg.paint(colour))
    return f'<svg class="dot" viewBox="0 0 10 10"><style>{svg.STYLE}</style>{spot}</svg>'


def share(value: float, n: int | None, interval: tuple[float | None, float | None] | None) -> str:
    low, high = interval or (None, None)
    between = "" if low is None or high is None else f" ({low:.1%} to {high:.1%})"
    return f"{value:.1%}{between}, n {'not told' if n is None else f'{n:,}'}"


def _picture(item: Mapping[str, Any]) -> str:
    """Return a point's thumbnail in base 64; empty: it has none that is a PNG."""
    try:
        found = base64.b64decode(item.get("picture") or "", validate=True)
    except (TypeError, ValueError):
        return ""
    return base64.b64encode(found).decode() if found.startswith(PNG) else ""


def _said(item: Mapping[str, Any]) -> str:
    guess = "?" if item.get("guess") in (None, -1) else _value(item["guess"])
    return f"{guess}, is {_value(item['label'])}" if item.get("label") is not None else guess


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
