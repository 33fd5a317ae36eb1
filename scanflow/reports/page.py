"""The whole report as one HTML page: figures in a row, the two plots, and every event as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from scanflow.reports.model_history import model_history
from scanflow.reports.records import LoopEvent, Version
from scanflow.reports.timeline import timeline

MOST_ROWS = 1000  # so many events are listed, the latest ones; the plot has all
LANES = (
    "A lane for each agent. Dashed lines: predictions were counted (blue), drift was found (red), drift was looked for "
    "and not found (grey)."
)
POINTS = "Line: the version in use. Filled points were promoted, hollow ones never were; the ring marks the champion."


STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --soft: #5b6372; --line: #d5d9e0; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ee; --soft: #a4acba; --line: #3a414d; --paper: #171a20; } }
body { margin: 0 auto; max-width: 1040px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 28px; line-height: 1.2; margin: 16px 0 4px; }
h2 { font-size: 19px; margin: 40px 0 4px; }
p { margin: 4px 0 12px; color: var(--soft); }
figure { margin: 12px 0; overflow-x: auto; }
svg { display: block; min-width: 720px; width: 100%; height: auto; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px 24px; margin: 20px 0; }
dt { color: var(--soft); font-size: 14px; }
dd { margin: 0; font-size: 24px; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
"""


def loop_report(
    *,
    title: str,
    events: Sequence[LoopEvent],
    versions: Sequence[Version],
    facts: Mapping[str, str] | None = None,
    lead: str = "",
) -> str:
    """Return the page. It has no scripts and asks for nothing from elsewhere.

    ``facts`` are figures to show first, by what they are; without them, what can be counted is. ``lead`` is a sentence
    below the heading.
    """
    shown = dict(facts) if facts is not None else counted(events, versions)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(lead or began(events))}</p>
<dl>
{"".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>{chr(10)}" for name, value in shown.items())}</dl>
<h2>What the agents did</h2>
<p>{LANES}</p>
<figure>
{timeline(events)}
</figure>
<h2>Model version history</h2>
<p>{POINTS}</p>
<figure>
{model_history(versions)}
</figure>
<h2>Events</h2>
{table(events)}
</body>
</html>
"""


def counted(events: Sequence[LoopEvent], versions: Sequence[Version]) -> dict[str, str]:
    def total(kind: str) -> int:
        return sum(event.count or 0 for event in events if event.kind == kind)

    facts = {
        "predictions": f"{total('predictions'):,}",
        "anomalies": f"{total('detection'):,}",
        "samples selected": f"{sum(event.picked or 0 for event in events):,}",
        "versions": f"{len(versions):,}",
    }
    champion = next((version for version in versions if version.champion), None)
    if champion is not None:
        facts["champion"] = f"V{champion.version}, {champion.accuracy:.1%}"
    return facts


def began(events: Sequence[LoopEvent]) -> str:
    if not events:
        return "Nothing has happened yet."
    first, last = min(event.at for event in events), max(event.at for event in events)
    return f"From {moment(first)} on, for {last - first:,.0f} seconds. Times are UTC."


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def table(events: Sequence[LoopEvent]) -> str:
    rows = sorted(events, key=lambda event: event.at)
    left_out = len(rows) - MOST_ROWS
    note = f"<p>The first {left_out:,} events are not listed.</p>\n" if left_out > 0 else ""
    begin = rows[0].at if rows else 0.0
    body = "".join(
        f"<tr><td>{event.at - begin:,.1f} s</td><td>{escape(event.agent)}</td><td>{escape(event.text)}</td>"
        f"<td>{escape(event.detail)}</td></tr>\n"
        for event in rows[-MOST_ROWS:]
    )
    return f"{note}<table>\n<tr><th>time</th><th>agent</th><th>what</th><th>more</th></tr>\n{body}</table>"
