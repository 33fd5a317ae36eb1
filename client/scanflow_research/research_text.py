"""The screens of ``scanflow reproduce`` and ``scanflow mpi simulate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scanflow_client.formatting.text_table import Screen, Table
from scanflow_research.simulation.twenty_jobs import MAKESPANS_S, SchemeSummary

if TYPE_CHECKING:
    from scanflow_research.experiment import Experiment
    from scanflow_research.figure import Figure
    from scanflow_research.figure_study import Reproduction

_BASE = "Kubeflow"


def format_figure_list(figures: Sequence[Figure], experiments: Sequence[Experiment]) -> Screen:
    """Return the available figures, with their approximate durations."""
    minutes = {experiment.name: experiment.rounds * experiment.round_s / 60 for experiment in experiments}
    rows = []
    for figure in figures:
        takes = f"{max(1, round(minutes[figure.experiment]))} min" if figure.experiment else "cannot be tested"
        rows.append((figure.name, figure.source, figure.title, figure.experiment, takes))
    return [
        Table(("NAME", "SOURCE", "TITLE", "EXPERIMENT", "TAKES"), rows),
        "Figures of one experiment are measured together.",
        "Measure one: scanflow reproduce fig6.7    all: scanflow reproduce --all --out reproduction",
    ]


def format_reproduction(reproduction: Reproduction) -> Screen:
    """Return the verdicts; for at most three figures, also their claims."""
    from scanflow_research.research_page import MARKS, format_title

    screen: list[str | Table] = []
    if len(reproduction.results) <= 3:
        for result in reproduction.results:
            screen += [
                f"{result.figure.source}: {format_title(result)}",
                f"{MARKS[result.verdict]}{_format_reason(result.reason)}",
            ]
            rows = [
                (
                    finding.claim.statement,
                    "" if finding.claim.published is None else f"{finding.claim.published:g}×",
                    finding.measured,
                    MARKS[finding.verdict],
                )
                for finding in result.findings
            ]
            if rows:
                screen.append(Table(("THE SOURCE SAYS", "IN THE SOURCE", "HERE", "VERDICT"), rows))
        return screen
    verdicts = [
        (result.figure.name, format_title(result), f"{MARKS[result.verdict]}{_format_reason(result.reason)}")
        for result in reproduction.results
    ]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in reproduction.counts.items())
    return [Table(("FIGURE", "TITLE", "VERDICT"), verdicts), f"{len(reproduction.results)} figures: {counts}."]


def _format_reason(text: str) -> str:
    return f": {text}" if text else ""


def format_simulations(summaries: Sequence[SchemeSummary], *, published: bool) -> Screen:
    """Return the table of total waiting, running and response times, and of makespans.

    Args:
        summaries: In the order of the table.
        published: Whether the jobs are those of the thesis, so that its makespans are shown too.
    """
    base = next((summary.makespan_s for summary in summaries if summary.scenario == _BASE), None)
    headers = ["SCENARIO", "WAITING", "RUNNING", "RESPONSE", "MAKESPAN", "FROM ... TO"]
    if base is not None:
        headers.append(f"OF {_BASE.upper()}'S")
        if published:
            headers.append("THESIS")
    rows: list[list[str]] = []
    for summary in summaries:
        row = [
            summary.scenario,
            *map(_format_seconds, (summary.waiting_s, summary.running_s, summary.response_s, summary.makespan_s)),
        ]
        row.append(f"{_format_seconds(summary.shortest_makespan_s)} ... {_format_seconds(summary.longest_makespan_s)}")
        if base is not None:
            row.append(f"{summary.makespan_s / base:.3f}")
            if published:
                row.append(f"{MAKESPANS_S[summary.scenario] / MAKESPANS_S[_BASE]:.3f}")
        rows.append(row)
    return ["Seconds, of all jobs together; medians over the seeds.", Table(headers, rows)]


def _format_seconds(seconds: float) -> str:
    return f"{seconds:,.0f}"
