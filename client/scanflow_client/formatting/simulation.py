"""Comparison of simulated scenarios, and with the thesis' measurements."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.placement.mpi.simulation.experiment import MAKESPANS_S, SchemeSummary
from scanflow_client.formatting.table import Screen, Table

_BASE = "Kubeflow"


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
