"""MPI jobs over time as an SVG: for each job how long it waited and ran, and where (thesis Fig. 6.8)."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from scanflow.app.quantities import format_duration
from scanflow.backends.job_times import JobTimes, compute_job_totals
from scanflow.drawing import svg

LEFT, RIGHT, TOP, BOTTOM = 150.0, 24.0, 34.0, 32.0
ROW_PX, BAR_PX = 26.0, 16.0
COLOURS = {"succeeded": "green", "failed": "red", "stopped": "amber", "running": "blue", "interrupted": "soft"}
MAX_LETTERS = 19


def draw_gantt(jobs: Sequence[JobTimes], *, width: float = svg.WIDTH) -> Markup:
    """Draw one or more jobs, the first submitted on top; waiting time is an outline, running time a filled bar."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    begin = ordered[0].submitted
    end = max(begin + 1.0, *(job.ended or job.now for job in ordered))
    right = width - RIGHT
    scale = (right - LEFT) / (end - begin)
    bottom = TOP + len(ordered) * ROW_PX
    rows = [_draw_row(job, TOP + place * ROW_PX, begin, scale, right) for place, job in enumerate(ordered)]
    axis = svg.draw_time_axis(begin, end, left=LEFT, right=right, y=bottom)
    return svg.draw_figure(bottom + BOTTOM, "MPI jobs over time", _draw_heading(ordered), *rows, axis, width=width)


def _draw_heading(jobs: Sequence[JobTimes]) -> svg.Element:
    job_totals = compute_job_totals(jobs)
    heading = f"{len(jobs)} jobs"
    if job_totals is not None:
        heading += (
            f"; makespan {format_duration(job_totals.makespan_s)}, mean wait {format_duration(job_totals.waiting_s)}"
        )
    return svg.draw_text(heading, LEFT, 18.0, "ink", anchor="start")


def _draw_row(job: JobTimes, top: float, begin: float, scale: float, right: float) -> svg.Element:
    name = job.job if len(job.job) <= MAX_LETTERS else job.job[: MAX_LETTERS - 1] + "…"
    submitted = LEFT + (job.submitted - begin) * scale
    began = submitted + job.waiting_s * scale
    y = top + (ROW_PX - BAR_PX) / 2
    parts = [
        svg.draw_element("title", svg.escape_text(_format_job(job))),
        svg.draw_text(name, LEFT - 10, y + BAR_PX - 4, "ink", anchor="end"),
        _draw_bar(submitted, began, y, stroke="soft"),
    ]
    last = began
    if job.running_s is not None:
        last = began + job.running_s * scale
        parts.append(_draw_bar(began, last, y, fill=COLOURS[job.state]))
    parts.append(_draw_label(job, began, last, y + BAR_PX - 4, right))
    return svg.draw_element("g", svg.join_lines(parts))


def _draw_label(job: JobTimes, began: float, last: float, y: float, right: float) -> svg.Element:
    """Draw the running time: inside the bar if it fits, else after or before it."""
    ran = "waits" if job.running_s is None else format_duration(job.running_s)
    wide = svg.estimate_text_width(ran) + 8
    if last - began >= wide:
        return svg.draw_text(ran, (began + last) / 2, y, "paper")
    if last + wide <= right:
        return svg.draw_text(ran, last + 5, y, "soft", anchor="start")
    return svg.draw_text(ran, began - 5, y, "soft", anchor="end")


def _draw_bar(left: float, right: float, y: float, **colour: str) -> svg.Element:
    return svg.draw_element(
        "rect", x=left, y=y, width=max(right - left, 1.0), height=BAR_PX, rx=2, **svg.paint(**colour)
    )


def _format_job(job: JobTimes) -> str:
    where = f" on {', '.join(job.nodes)}" if job.nodes else ""
    ran = "" if job.running_s is None else f", ran {format_duration(job.running_s)}"
    return f"{job.job} ({job.run}), {job.ranks} ranks{where}: waited {format_duration(job.waiting_s)}{ran}, {job.state}"
