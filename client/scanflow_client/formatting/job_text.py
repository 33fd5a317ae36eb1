"""MPI jobs for people: a table of their times, and a chart of characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from scanflow.text.printable import make_one_line
from scanflow_client.formatting.text import MARKS, format_seconds
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.backends.job_times import JobTimes

WAITS: Final = "·"
RUNS: Final = "█"
MIN_WIDTH: Final = 20


def format_jobs(jobs: Sequence[JobTimes]) -> Screen:
    """Return a line for each job, the newest first, and the totals of those that have ended."""
    rows = [
        (
            job.run,
            job.job,
            f"{MARKS[job.state]} {'waiting' if job.began is None and job.state == 'running' else job.state}",
            str(job.ranks) if job.ranks else "-",
            ", ".join(job.nodes) or "-",
            format_seconds(job.waiting_s),
            format_seconds(job.running_s),
            format_seconds(job.response_s),
        )
        for job in jobs
    ]
    headers = ("run", "job", "state", "ranks", "nodes", "waited", "ran", "response")
    return (
        [Table(headers, rows), *_format_totals(jobs)]
        if rows
        else ["No MPI job has run yet. Run one: scanflow run app.py"]
    )


def draw_jobs(jobs: Sequence[JobTimes], width: int) -> Screen:
    """Return a bar for each job, the first submitted on top: how long it waited, and ran."""
    if not jobs:
        return ["No MPI job has run yet. Run one: scanflow run app.py"]
    ordered = sorted(jobs, key=lambda job: job.submitted)
    begin, end = ordered[0].submitted, max(job.ended or job.now for job in ordered)
    names = [f"{MARKS[job.state]} {make_one_line(job.job)}" for job in ordered]
    name_width = max(map(len, names))
    room = max(MIN_WIDTH, width - name_width - 2 - len(" 00m 00s"))
    scale = room / max(end - begin, 1e-9)
    lines = []
    for name, job in zip(names, ordered, strict=True):
        before, waited = round((job.submitted - begin) * scale), round(job.waiting_s * scale)
        ran = 0 if job.running_s is None else max(1, round(job.running_s * scale))
        bar = f"{' ' * before}{WAITS * waited}{RUNS * ran}"
        lines.append(f"{name.ljust(name_width)}  {bar} {format_seconds(job.running_s)}".rstrip())
    scale_line = f"{' ' * name_width}  0{format_seconds(end - begin).rjust(room - 1)}"
    return [*lines, scale_line, f"{WAITS} waits  {RUNS} runs", *_format_totals(jobs)]


def _format_totals(jobs: Sequence[JobTimes]) -> list[str]:
    from scanflow.backends.job_times import compute_job_totals

    summary = compute_job_totals(jobs)
    if summary is None:
        return []
    spans = {"makespan": summary.makespan_s, "overall response": summary.response_s, "mean wait": summary.waiting_s}
    return [f"{summary.jobs} ended: {', '.join(f'{name} {format_seconds(span)}' for name, span in spans.items())}."]
