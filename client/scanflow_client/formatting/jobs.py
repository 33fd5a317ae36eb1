"""MPI jobs for people: a table of their times, and a chart of characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from scanflow.printable import one_line
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import MARKS, duration

if TYPE_CHECKING:
    from scanflow.backends.job_times import JobTimes

WAITS: Final = "·"
RUNS: Final = "█"
LEAST_WIDTH: Final = 20


def job_table(jobs: Sequence[JobTimes]) -> Screen:
    """Return a line for each job, the newest first, and the totals of those that have ended."""
    rows = [
        (
            one.run,
            one.job,
            f"{MARKS[one.state]} {'waiting' if one.began is None and one.state == 'running' else one.state}",
            str(one.ranks) if one.ranks else "-",
            ", ".join(one.nodes) or "-",
            duration(one.waiting_s),
            duration(one.running_s),
            duration(one.response_s),
        )
        for one in jobs
    ]
    headers = ("run", "job", "state", "ranks", "nodes", "waited", "ran", "response")
    return [Table(headers, rows), *_totals(jobs)] if rows else ["No MPI job was run yet."]


def job_chart(jobs: Sequence[JobTimes], width: int) -> Screen:
    """Return a bar for each job, the first submitted on top: how long it waited, and ran."""
    if not jobs:
        return ["No MPI job was run yet."]
    ordered = sorted(jobs, key=lambda one: one.submitted)
    begin, end = ordered[0].submitted, max(one.ended or one.now for one in ordered)
    names = [f"{MARKS[one.state]} {one_line(one.job)}" for one in ordered]
    left = max(map(len, names))
    room = max(LEAST_WIDTH, width - left - 2 - len(" 00m 00s"))
    scale = room / max(end - begin, 1e-9)
    lines = []
    for name, one in zip(names, ordered, strict=True):
        before, waited = round((one.submitted - begin) * scale), round(one.waiting_s * scale)
        ran = 0 if one.running_s is None else max(1, round(one.running_s * scale))
        bar = f"{' ' * before}{WAITS * waited}{RUNS * ran}"
        lines.append(f"{name.ljust(left)}  {bar} {duration(one.running_s)}".rstrip())
    scale_line = f"{' ' * left}  0{duration(end - begin).rjust(room - 1)}"
    return [*lines, scale_line, f"{WAITS} waits  {RUNS} runs", *_totals(jobs)]


def _totals(jobs: Sequence[JobTimes]) -> list[str]:
    from scanflow.backends.job_times import totals

    found = totals(jobs)
    if found is None:
        return []
    spans = {"makespan": found.makespan_s, "overall response": found.response_s, "mean wait": found.waiting_s}
    return [f"{found.jobs} ended: {', '.join(f'{name} {duration(span)}' for name, span in spans.items())}."]
