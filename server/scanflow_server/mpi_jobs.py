"""MPI jobs as a caller may see them: the newest, and what each that is active takes and waits for."""

from __future__ import annotations

from typing import Final

from scanflow.backends.backend_port import JobBudget
from scanflow.backends.job_times import is_job
from scanflow.backends.run_records import RunRecord
from scanflow.backends.step_schedule import Share
from scanflow_server import run_requests
from scanflow_server.control.job_queue import JobQueue, list_waiting_jobs
from scanflow_server.scope import restrict_team
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store, run_store
from scanflow_server.token_roles import TokenHolder

_MAX_RUNS: Final = 200
"""The newest runs, among which jobs are looked for."""

_MAX_ACTIVE: Final = 100
"""The first active runs, whose definitions are read for what they take. A job behind them waits without a reason."""


def list_jobs(context: ServerContext, caller: TokenHolder, *, limit: int, team: str | None = None) -> list[RunRecord]:
    """Return the newest MPI jobs that the caller may see, with their tasks."""
    team = restrict_team(caller, team)
    with context.store.read() as connection:
        applications = application_store.list_all(connection, team=team)
    types = {
        (row.name, row.team, workflow.get("name")): workflow.get("type")
        for row in applications
        for workflow in row.document.get("workflows", ())
    }
    jobs: list[RunRecord] = []
    for run in run_requests.list_runs(context, limit=_MAX_RUNS, team=team):
        key = run.app, run.team, run.workflow
        if len(jobs) < limit and types.get(key, "mpi") == "mpi":
            record = run_requests.show_run(context, run.name)
            types.setdefault(key, "mpi" if is_job(record) else "batch")
            jobs += [record] if is_job(record) else []
    return jobs


def explain_queue(context: ServerContext, caller: TokenHolder) -> tuple[dict[str, Share], dict[str, str]]:
    """Return what each active job takes, and what each waiting one waits for. Jobs of other teams have no names."""
    batch = context.deployer.batch
    if not isinstance(batch, JobBudget):
        return {}, {}
    with context.store.read() as connection:
        drives = run_store.list_active(connection)[:_MAX_ACTIVE]
    teams = {drive.name: drive.team for drive in drives}
    processes = {drive.name: context.get_run_job(drive.name, drive.number) for drive in drives}
    begun = [(name, process.alive or process.starts > 0) for name, process in processes.items()]
    jobs = [
        (name if caller.can_see(teams[name]) else "a job of another team", has_begun, share)
        for name, has_begun, share in JobQueue(context.deployer).list_jobs(begun)
    ]
    waits = list_waiting_jobs(jobs, batch.job_capacity()) if jobs else {}
    return {name: share for name, _, share in jobs}, waits
