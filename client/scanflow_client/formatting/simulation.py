"""Simulated scenarios beside each other, and beside what the thesis measured."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.placement.mpi.simulation.experiment import MAKESPANS_S, SchemeSummary
from scanflow_client.formatting.table import Screen, Table

_BASE = "Kubeflow"


def comparison(found: Sequence[SchemeSummary], *, published: bool) -> Screen:
    """Return the table of waiting, running and response times of all jobs together, and of makespans.

    Args:
        found: In the order in which they are shown.
        published: Whether the jobs are those of the thesis, so that its makespans are shown too.
    """
    base = next((one.makespan_s for one in found if one.scenario == _BASE), None)
    headers = ["SCENARIO", "WAITING", "RUNNING", "RESPONSE", "MAKESPAN", "FROM ... TO"]
    if base is not None:
        headers.append(f"OF {_BASE.upper()}'S")
        if published:
            headers.append("THESIS")
    rows: list[list[str]] = []
    for one in found:
        row = [one.scenario, *map(_s, (one.waiting_s, one.running_s, one.response_s, one.makespan_s))]
        row.append(f"{_s(one.shortest_makespan_s)} ... {_s(one.longest_makespan_s)}")
        if base is not None:
            row.append(f"{one.makespan_s / base:.3f}")
            if published:
                row.append(f"{MAKESPANS_S[one.scenario] / MAKESPANS_S[_BASE]:.3f}")
        rows.append(row)
    return ["Seconds, of all jobs together; medians over the seeds.", Table(headers, rows)]


def _s(seconds: float) -> str:
    return f"{seconds:,.0f}"
