"""The page of MPI jobs: which wait and for what, when each waited and ran, and where the ranks of one are."""

from __future__ import annotations

from typing import Any, Final

from scanflow.app.quantities import format_duration
from scanflow.backends.backend_port import JobBudget
from scanflow.backends.job_times import JobTimes, compute_job_times, is_job
from scanflow.backends.run_records import RunRecord
from scanflow.backends.step_schedule import Share
from scanflow.reports.job_drawings import draw_gantt, draw_node_lanes, draw_run_ranks
from scanflow_server import run_requests
from scanflow_server.control.job_queue import JobQueue, format_share, list_waiting_jobs
from scanflow_server.dashboard.page import Page, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.scope import restrict_team
from scanflow_server.store import application_store, run_store

_MAX_JOBS: Final = 20
_MAX_RUNS: Final = 200
"""The newest runs, among which jobs are looked for."""

_STEP_S: Final = 30.0
"""How often the bars of what runs grow."""


def load(request: PageRequest) -> PageView:
    records = list_jobs(request)
    jobs = [compute_job_times(record, max(request.now // _STEP_S * _STEP_S, record.created)) for record in records]
    shares, waits = explain_queue(request)
    chosen = next((record for record in records if record.name == request.query.get("run")), None)
    chosen = chosen or next((record for record in records if record.state == "running"), next(iter(records), None))
    places: dict[str, Any] = {"address": "/runs/{}".format, "zone": request.zone}
    return PageView(
        title="MPI",
        command="scanflow mpi list",
        values={
            "jobs": _build_table(request, jobs, shares, waits),
            "gantt": lambda width: draw_gantt(jobs, width=width, **places),
            "lanes": lambda width: draw_node_lanes(jobs, width=width, **places),
            "has_nodes": any(job.nodes for job in jobs),
            "chosen": chosen,
            "ranks": None if chosen is None else lambda width: draw_run_ranks(chosen, width=width),
            "has_ranks": chosen is not None and any(task.place for task in chosen.tasks),
        },
    )


def list_jobs(request: PageRequest) -> list[RunRecord]:
    """Return the newest MPI jobs that the caller may see, with their tasks."""
    team = restrict_team(request.caller, request.query.get("team") or None)
    with request.context.store.read() as connection:
        applications = application_store.list_all(connection, team=team)
    types = {
        (row.name, row.team, workflow.get("name")): workflow.get("type")
        for row in applications
        for workflow in row.document.get("workflows", ())
    }
    jobs: list[RunRecord] = []
    for run in run_requests.list_runs(request.context, limit=_MAX_RUNS, team=team):
        key = run.app, run.team, run.workflow
        if len(jobs) < _MAX_JOBS and types.get(key, "mpi") == "mpi":
            record = run_requests.show_run(request.context, run.name)
            types.setdefault(key, "mpi" if is_job(record) else "batch")
            jobs += [record] if is_job(record) else []
    return jobs


def explain_queue(request: PageRequest) -> tuple[dict[str, Share], dict[str, str]]:
    """Return what each active job takes, and what each waiting one waits for. Jobs of other teams have no names."""
    batch = request.context.deployer.batch
    if not isinstance(batch, JobBudget):
        return {}, {}
    with request.context.store.read() as connection:
        drives = run_store.list_active(connection)
    teams = {drive.name: drive.team for drive in drives}
    processes = {drive.name: request.context.get_run_job(drive.name, drive.number) for drive in drives}
    begun = [(name, process.alive or process.starts > 0) for name, process in processes.items()]
    jobs = [
        (name if request.caller.can_see(teams[name]) else "a job of another team", has_begun, share)
        for name, has_begun, share in JobQueue(request.context.deployer).list_jobs(begun)
    ]
    waits = list_waiting_jobs(jobs, batch.job_capacity()) if jobs else {}
    return {name: share for name, _, share in jobs}, waits


def _build_table(
    request: PageRequest, jobs: list[JobTimes], shares: dict[str, Share], waits: dict[str, str]
) -> CellTable:
    columns = ("state", "job", "takes", "ranks", "nodes", "submitted", "waited", "ran", "waits for")
    rows: list[list[Cell]] = [
        [
            StateCell("waiting" if job.run in waits else job.state),
            Link(f"{job.job} ({job.run})", f"/runs/{job.run}"),
            format_share(shares[job.run]) if job.run in shares else None,
            Link(str(job.ranks), request.build_address(run=job.run)) if job.ranks else None,
            ", ".join(job.nodes),
            Moment(job.submitted),
            None if job.began is None else format_duration(job.waiting_s),
            None if job.ended is None or job.running_s is None else format_duration(job.running_s),
            waits.get(job.run),
        ]
        for job in jobs
    ]
    return CellTable(columns, rows, "No MPI job has run yet.", "scanflow run app.py:JOB")


PAGES: Final = (Page(path="/mpi", template="mpi", section="/mpi", load=load),)
