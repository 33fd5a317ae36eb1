"""The lines of ``scanflow reproduce``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scanflow_client.formatting.table import Screen, Table

if TYPE_CHECKING:
    from scanflow_client.reproduction.experiment import Experiment
    from scanflow_client.reproduction.figure import Figure
    from scanflow_client.reproduction.study import Reproduction


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
    from scanflow_client.reproduction.page import MARKS, format_title

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
