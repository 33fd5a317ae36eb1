"""The whole report as one HTML page: metrics, plots and tables, and the outcome of each drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial
from typing import Any

from markupsafe import Markup

from scanflow.drawing.svg import LONG, choose_time_format, format_time
from scanflow.reports import sections
from scanflow.reports.agent_lanes import draw_agent_lanes
from scanflow.reports.outcome import DriftOutcome
from scanflow.reports.report_data import LoopEvent, RequestCounts, ScoredAnswers, Version
from scanflow.reports.run_devices import NamedDevices
from scanflow.reports.sections import POINTS, TEMPLATES, render_missing, render_part
from scanflow.reports.tracker_links import TrackerLinks

MAX_ROWS = 200  # so many events are listed, the latest ones; the plot has all
LANES = (
    "A lane for each agent. Dashed lines: predictions were counted (blue), drift was found (red), a detection found "
    "no drift (grey)."
)

_NOT_COMPARED = "No versions were compared yet."
RANDOM = "Measured on labelled samples that were drawn at random from drifted windows."


def render_report(
    *,
    title: str,
    events: Sequence[LoopEvent],
    marked: Sequence[LoopEvent] | None = None,
    versions: Sequence[Version],
    asked: Sequence[RequestCounts] = (),
    answers: Sequence[ScoredAnswers] = (),
    counted: str = RANDOM,
    columns: Sequence[Mapping[str, Any]] = (),
    picked: Sequence[Mapping[str, Any]] = (),
    outcomes: Sequence[DriftOutcome] = (),
    devices: Sequence[NamedDevices] = (),
    facts: Mapping[str, str] | None = None,
    lead: str = "",
    links: TrackerLinks | None = None,
    zone: tzinfo = UTC,
    back: str = "",
) -> str:
    """Render the report page, without scripts and external resources; missing data is named as such.

    ``marked`` are the events that plots over time have lines for, if they are of the model shown; None: all.
    ``counted`` is a sentence on which ``answers`` are known; ``columns`` are as ``drift.found`` has them, ``picked`` as
    the label queue has them. ``facts`` are shown first; without them, what can be counted is. ``lead`` is a sentence,
    ``links`` are where the tracker shows runs and versions, and ``devices`` the GPUs of runs, where they had some. All
    times are those of ``zone``. ``back`` is the address of the page that leads here.
    """
    tracker = links or TrackerLinks()
    shown = dict(facts) if facts is not None else compute_totals(events, versions)
    times = [record.at for part in (events, answers, asked) for record in part]
    span = (min(times), max(times)) if times else (0.0, 0.0)
    first, last = (format_time(end, LONG, zone) for end in span)
    when = f"From {first} to {last}. All times are {format_time(span[1], '%Z', zone)}."
    marks = sections.build_event_lines(events if marked is None else marked)
    history = _render_plot(POINTS, sections.draw_history, versions) if versions else render_missing(_NOT_COMPARED)
    draw_lanes = partial(draw_agent_lanes, zone=zone)
    activity = _render_plot(LANES, draw_lanes, events) if events else render_missing("No activity yet.")
    drifts = [render_outcome(outcome, tracker, zone) for outcome in outcomes] or [render_missing("No drift was found.")]
    return TEMPLATES.render(
        "report.html.jinja",
        title=title,
        back=back,
        lead=f"{when} {lead}".strip() if times else "No activity yet.",
        facts=shown,
        sections={
            "Accuracy of the served versions": [sections.render_accuracy(answers, counted, marks, span, zone)],
            "Drifted columns": [sections.render_columns(columns)],
            "Selected samples": [sections.render_samples(picked, columns)],
            "Requests": [sections.render_requests(asked, marks, span, zone)],
            "Model versions": [sections.render_versions(asked, answers, versions, tracker, zone), history],
            "Agent activity": [activity, render_events(events, zone)],
            "Outcome of each drift": drifts,
            **({"GPUs of the runs": [sections.render_table(("run", "step", "GPUs"), devices)]} if devices else {}),
        }.items(),
    )


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


def render_events(events: Sequence[LoopEvent], zone: tzinfo = UTC) -> Markup:
    rows = sorted(events, key=lambda event: event.at)
    if not rows:
        return Markup()
    omitted = len(rows) - MAX_ROWS
    form = choose_time_format(rows[0].at, rows[-1].at, zone)
    body = [(format_time(event.at, form, zone), event.agent, event.text, event.detail) for event in rows[-MAX_ROWS:]]
    return render_part("events", len(rows), omitted, sections.render_table(("time", "agent", "what", "more"), body))


def render_outcome(outcome: DriftOutcome, links: TrackerLinks, zone: tzinfo = UTC) -> Markup:
    form = choose_time_format(outcome.at, outcome.steps[-1][0], zone)
    steps = [
        (format_time(at, form, zone), what, figures, f"scanflow show {run}" if run else "", links.run(run))
        for at, what, figures, run in outcome.steps
    ]
    listed = sections.render_table(("time", "what", "figures", "more", ""), steps)
    return render_part("outcome", format_time(outcome.at, LONG, zone), listed, outcome.verdict)


def _render_plot(words: str, draw: Callable[..., Markup], drawn: Sequence[Any]) -> Markup:
    return sections.render_plot(words, lambda width: draw(drawn, width=width))


def render_frame(title: str, page: str) -> Markup:
    """Render a page in a frame of its own, which runs no scripts."""
    return TEMPLATES.render("frame.html.jinja", title=title, page=page)
