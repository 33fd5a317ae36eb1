"""The page of MPI jobs: which wait and for what, when each waited and ran, and where the ranks of one are."""

from __future__ import annotations

from typing import Any, Final

from scanflow.app.quantities import format_duration
from scanflow.backends.job_times import JobTimes, compute_job_times
from scanflow.backends.step_schedule import Share
from scanflow.reports.job_drawings import draw_gantt, draw_node_lanes, draw_run_ranks
from scanflow_server.control.job_queue import format_share
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageRequest, PageView
from scanflow_server.dashboard.page_cells import CellRow, CellTable, LinkCell, Moment, StateCell
from scanflow_server.mpi_jobs import explain_queue, list_jobs

_MAX_JOBS: Final = 20
_STEP_S: Final = 30.0
"""How often the bars of what runs grow."""


def load(request: PageRequest) -> PageView:
    records = list_jobs(request.context, request.caller, limit=_MAX_JOBS, team=request.query.get("team"))
    jobs = [compute_job_times(record, max(request.now // _STEP_S * _STEP_S, record.created)) for record in records]
    shares, waits = explain_queue(request.context, request.caller)
    chosen = next((record for record in records if record.name == request.query.get("run")), None)
    placed = [record for record in records if any(task.place for task in record.tasks)]  # none of a job that waits
    chosen = chosen or next((record for record in placed if record.state == "running"), next(iter(placed), None))
    places: dict[str, Any] = {"address": "/runs/{}".format, "zone": request.zone}
    return PageView.make(
        "MPI",
        request.build_command("scanflow mpi list"),
        jobs=_build_table(request, jobs, shares, waits),
        gantt=lambda width: draw_gantt(jobs, width=width, **places),
        lanes=lambda width: draw_node_lanes(jobs, width=width, **places),
        has_nodes=any(job.nodes for job in jobs),
        chosen=chosen,
        ranks=None if chosen is None else lambda width: draw_run_ranks(chosen, width=width),
        has_ranks=chosen is not None and any(task.place for task in chosen.tasks),
    )


def _build_table(
    request: PageRequest, jobs: list[JobTimes], shares: dict[str, Share], waits: dict[str, str]
) -> CellTable:
    rows: list[CellRow] = [
        {
            "state": StateCell("waiting" if job.run in waits else job.state),
            "job": LinkCell(f"{job.job} ({job.run})", f"/runs/{job.run}"),
            "takes": format_share(shares[job.run]) if job.run in shares else None,
            "ranks": LinkCell(str(job.ranks), request.build_address(run=job.run)) if job.ranks else None,
            "nodes": ", ".join(job.nodes),
            "submitted": Moment(job.submitted),
            "waited": None if job.began is None else format_duration(job.waiting_s),
            "ran": None if job.ended is None or job.running_s is None else format_duration(job.running_s),
            "waits for": waits.get(job.run),
        }
        for job in jobs
    ]
    return CellTable.make(rows, "No MPI job has run yet.", "scanflow run app.py:JOB")


SERVED: Final = (DashboardPage(path="/mpi", template="mpi", load=load),)
