"""The page of MPI jobs: what waits for what, of the caller's team, and nothing of others but that they are there."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.backends.step_schedule import Share
from scanflow.names import RunName, StepName
from scanflow_server import run_requests
from scanflow_server.control.job_queue import JobQueue
from scanflow_server.server_context import ServerContext
from scanflow_server.store import run_store
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api, a_run

HOSTILE = "<script>alert('x')</script>"


def make_job(name: str, team: str, state: Any, began: float | None = None) -> RunRecord:
    job = TaskRecord(task=StepName("ring"), step="ring", state="running", began=began, seconds=None)
    places = [] if began is None else [f"{HOSTILE}, CPUs 0-1", "node-1, CPU 2"]
    ranks = [
        TaskRecord(task=StepName(f"ring.{rank}"), step="ranks", state="running", place=place)
        for rank, place in enumerate(places)
    ]
    about: dict[str, Any] = {"app": "hpc", "team": team, "workflow": "ring", "created": 1_799_999_900.0}
    return RunRecord(name=RunName(name), state=state, tasks=(*ranks, job), **about).with_details(type="mpi")


@pytest.fixture
def jobs(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of another team that runs, one that runs, and one that waits for both; and a run that is none."""
    records = [
        make_job("waits-3", "data", "running"),
        make_job("runs-2", "data", "running", 1_799_999_950.0),
        RunRecord(name=RunName("batch-1"), app="b", team="data", workflow="w", state="running", created=1.0),
        make_job("other-1", "others", "running", 1_799_999_940.0),
    ]

    def list_runs(_context: Any, *, limit: int, team: str | None = None, **_: Any) -> list[RunRecord]:
        listed = [record for record in records if team in {None, record.team}][:limit]
        return [record.model_copy(update={"tasks": ()}) for record in listed]

    def list_jobs(_queue: JobQueue, runs: Any) -> list[tuple[str, bool, Share]]:
        assert [name for name, _ in runs] == ["other-1", "runs-2", "waits-3"]
        return [(name, name != "waits-3", Share(1.0)) for name, _ in runs]

    monkeypatch.setattr(run_requests, "list_runs", list_runs)
    monkeypatch.setattr(run_requests, "show_run", lambda _context, name: next(r for r in records if r.name == name))
    monkeypatch.setattr(JobQueue, "list_jobs", list_jobs)
    with context.store.write() as connection:
        for at, (name, team) in enumerate((("other-1", "others"), ("runs-2", "data"), ("waits-3", "data"))):
            run_store.add(connection, a_run(name, created=float(at)).model_copy(update={"team": team}))


@pytest.mark.usefixtures("jobs")
def test_jobs_say_what_they_take_and_wait_for_without_names_of_other_teams(api: Api) -> None:
    with browsing(api, "vic", "viewer", "data") as browser:
        page = browser.get("/mpi")
        assert "other-1" not in page
        assert "a job of another team, runs-2 to end" in page
        assert "batch-1" not in page
        assert HOSTILE not in page
        assert {"/runs/waits-3", "/runs/runs-2"} <= browser.read("/mpi").addresses
        assert 'Ranks of <a href="/runs/runs-2"' in browser.get("/mpi?run=runs-2")
        assert "Ranks of" not in browser.get("/mpi?run=waits-3"), "it has none yet"
    with browsing(api, "ann", "viewer") as browser:
        assert "other-1, runs-2 to end" in browser.get("/mpi")


@pytest.mark.usefixtures("jobs")
def test_a_page_does_not_change_by_itself_within_a_moment(
    api: Api, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with browsing(api, "vic", "viewer", "data") as browser:
        before = browser.get("/mpi").partition("<main")[2]
        monkeypatch.setattr(context, "clock", lambda: 1_800_000_005.0)
        assert browser.get("/mpi").partition("<main")[2] == before


def test_no_job_has_run_yet_and_the_page_says_how_one_does(api: Api) -> None:
    with browsing(api, "vic", "viewer", "data") as browser:
        page = browser.get("/mpi")
        assert "No MPI job has run yet." in page
        assert "scanflow run app.py:JOB" in page
