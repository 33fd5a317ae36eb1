"""The whole report as one HTML page: metrics, plots and tables, and the outcome of each drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from scanflow.reports import sections
from scanflow.reports.drawing import LONG, choose_time_format, format_time
from scanflow.reports.outcome import DriftOutcome
from scanflow.reports.report_data import LoopEvent, RequestCounts, ScoredAnswers, Version
from scanflow.reports.timeline import draw_timeline
from scanflow.reports.tracker_links import TrackerLinks

MAX_ROWS = 1000  # so many events are listed, the latest ones; the plot has all
LANES = (
    "A lane for each agent. Dashed lines: predictions were counted (blue), drift was found (red), a detection found "
    "no drift (grey)."
)
POINTS = (
    "Green: promoted versions, in the order of their use; grey: versions that were never promoted. Each figure is "
    "from the version's first comparison; bars: 95 % confidence intervals."
)


_NOT_COMPARED = "<p>No versions were compared yet.</p>"
RANDOM = "Measured on labelled samples that were drawn at random from drifted windows."

STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --soft: #5b6372; --line: #d5d9e0; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ee; --soft: #a4acba; --line: #3a414d; --paper: #171a20; } }
body { margin: 0 auto; max-width: 1040px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 28px; line-height: 1.2; margin: 16px 0 4px; }
h2 { font-size: 19px; margin: 40px 0 4px; } h3 { font-size: 16px; margin: 20px 0 4px; }
p { margin: 4px 0 12px; color: var(--soft); } p.verdict { color: var(--ink); font-weight: 600; }
figure { margin: 12px 0; } svg { display: block; width: 100%; height: auto; }
code { font-size: 13px; white-space: nowrap; } a { color: inherit; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px 20px; margin: 20px 0; }
dt { color: var(--soft); font-size: 14px; }
dd { margin: 0; font-size: 22px; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; min-width: 6em; }
td:first-child { white-space: nowrap; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 12px 28px; }
.thumbs { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); gap: 12px; font-size: 13px; }
.thumbs img { width: 84px; height: 84px; object-fit: contain; image-rendering: pixelated; background: #888; }
svg.dot { display: inline; width: 10px; } .narrow { display: none; }
@media (max-width: 640px) {
  .wide { display: none; } .narrow { display: block; } body { padding: 12px 14px 40px; } h1 { font-size: 24px; }
  tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--line); }
  td, td:first-child { display: block; border: 0; padding: 0; white-space: normal; }
  td[data-head]:not(:empty, [data-head=""])::before { content: attr(data-head) ": "; color: var(--soft); }
  tr:has(> th) { display: none; }
}
"""


def render_report(
    *,
    title: str,
    events: Sequence[LoopEvent],
    versions: Sequence[Version],
    asked: Sequence[RequestCounts] = (),
    answers: Sequence[ScoredAnswers] = (),
    counted: str = RANDOM,
    columns: Sequence[Mapping[str, Any]] = (),
    picked: Sequence[Mapping[str, Any]] = (),
    outcomes: Sequence[DriftOutcome] = (),
    facts: Mapping[str, str] | None = None,
    lead: str = "",
    links: TrackerLinks | None = None,
) -> str:
    """Render the report page, without scripts and external resources; missing data is named as such.

    ``counted`` is a sentence on which ``answers`` are known; ``columns`` are as ``drift.found`` has them, ``picked`` as
    the label queue has them. ``facts`` are shown first; without them, what can be counted is. ``lead`` is a sentence,
    and ``links`` are where the tracker shows runs and versions.
    """
    tracker = links or TrackerLinks()
    shown = dict(facts) if facts is not None else compute_totals(events, versions)
    times = [record.at for part in (events, answers, asked) for record in part]
    span = (min(times), max(times)) if times else (0.0, 0.0)
    when = f"From {format_time(span[0], LONG)} to {format_time(span[1], LONG)}. All times are UTC."
    marks = sections.build_event_lines(events)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(f"{when} {lead}".strip() if times else "No activity yet.")}</p>
<dl>
{"".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>{chr(10)}" for name, value in shown.items())}</dl>
<h2>Accuracy of the served versions</h2>
{sections.render_accuracy(answers, counted, marks, span)}
<h2>Drifted columns</h2>
{sections.render_columns(columns)}
<h2>Selected samples</h2>
{sections.render_samples(picked, columns)}
<h2>Requests</h2>
{sections.render_requests(asked, marks, span)}
<h2>Model versions</h2>
{sections.render_versions(asked, answers, versions, tracker)}
{_render_plot(POINTS, sections.draw_history, versions) if versions else _NOT_COMPARED}
<h2>Agent activity</h2>
{_render_plot(LANES, draw_timeline, events) if events else "<p>No activity yet.</p>"}
{render_events(events)}
<h2>Outcome of each drift</h2>
{"".join(render_outcome(outcome, tracker) for outcome in outcomes) or "<p>No drift was found.</p>"}
</body>
</html>
"""


def compute_totals(events: Sequence[LoopEvent], versions: Sequence[Version]) -> dict[str, str]:
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
        n = f" (n {champion.n:,})" if champion.n is not None else ""
        facts["champion"] = f"V{champion.version}, {champion.accuracy:.1%}{n}"
    return facts


def render_events(events: Sequence[LoopEvent]) -> str:
    rows = sorted(events, key=lambda event: event.at)
    if not rows:
        return ""
    omitted = len(rows) - MAX_ROWS
    note = f"<p>The first {omitted:,} events are not listed.</p>\n" if omitted > 0 else ""
    form = choose_time_format(rows[0].at, rows[-1].at)
    body = [(format_time(event.at, form), event.agent, event.text, event.detail) for event in rows[-MAX_ROWS:]]
    listed = sections.render_table(("time", "agent", "what", "more"), body)
    return f"<details><summary>All {len(rows):,} events</summary>\n{note}{listed}</details>"


def render_outcome(outcome: DriftOutcome, links: TrackerLinks) -> str:
    form = choose_time_format(outcome.at, outcome.steps[-1][0])
    steps = [
        (format_time(at, form), what, figures, f"scanflow show {run}" if run else "", links.run(run))
        for at, what, figures, run in outcome.steps
    ]
    listed = sections.render_table(("time", "what", "figures", "more", ""), steps)
    return (
        f"<h3>Found at {format_time(outcome.at, LONG)}</h3>\n{listed}\n<p "
        f'class="verdict">{escape(outcome.verdict)}</p>\n'
    )


def _render_plot(words: str, draw: Callable[..., str], drawn: Sequence[Any]) -> str:
    return f"<p>{words}</p>\n{sections.render_both_widths(lambda width: draw(drawn, width=width))}"
