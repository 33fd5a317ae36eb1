"""Controllers, each of many things: no more drives at once than may be, and none of them holds up the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scanflow.app.application import Application
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import RunRequest
from scanflow.errors import UnavailableError
from scanflow_server.context import ServerContext
from scanflow_server.control.operations import OperationsController, ServicesController
from scanflow_server.control.retention import RetentionController
from scanflow_server.control.runs import RunsController
from scanflow_server.jobs import Job
from scanflow_server.store import events, operations, runs
from scanflow_server.store.operations import OperationRow
from scanflow_server.store.runs import DriveRequest, WantedRun
from tests.unit.server.answering import a_service

WAITS = ["sleep", "600"]


@pytest.fixture
def living() -> Iterator[Callable[[Job], None]]:
    """Lets a job have a process, which is ended with the test."""
    jobs = []

    def live(job: Job) -> None:
        job.prepare({"what": "test"})
        assert job.start(os.environ, command=WAITS)
        jobs.append(job)

    yield live
    for job in jobs:
        job.daemon.kill()
        assert job.daemon.wait(30)


class Started:
    """Controllers' processes of which none is started, only counted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, job: Job, _environ: object) -> bool:
        self.names.append(job.path.parent.name if job.path.parent.parent.name == "runs" else job.path.name)
        return True

    def forget(self, _job: Job) -> None:
        """There is nothing to forget."""


def want_run(context: ServerContext, tmp_path: Path, name: str, created: float) -> Job:
    """Have a run gone on with that is in the backend's journal."""
    (tmp_path / "fit.py").touch()
    node = {"kind": "executor", "name": "fit", "mainfile": "fit.py"}
    app = Application.model_validate(
        {"name": "a", "app_dir": str(tmp_path), "workflows": [{"name": "train", "nodes": [node]}]}
    )
    run = context.deployer.batch.enter(context.deployer.define(RunRequest(app, "train")))
    asked = DriveRequest(action="resume")
    wanted = WantedRun(name=run.name, app="a", team=name, workflow="train", created=created, asked=asked)
    with context.store.write() as connection:
        runs.add(connection, wanted)
    return context.run_job(run.name, 1)


def run_of(job: Job) -> str:
    return job.path.parent.name


def limited(context: ServerContext, most: int) -> None:
    context.settings = context.settings.model_copy(update={"max_runs": most})


def controller_of_runs(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> tuple[RunsController, list[str]]:
    controller, started = RunsController(context), Started()
    monkeypatch.setattr(controller, "_processes", started)
    return controller, started.names


def test_runs_that_go_on_count_before_older_ones_are_begun(
    context: ServerContext, tmp_path: Path, living: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(context, 4)
    older = [want_run(context, tmp_path, "older", float(number)) for number in range(4)]
    for number in range(3):
        living(want_run(context, tmp_path, "newer", 10.0 + number))
    controller, started = controller_of_runs(context, monkeypatch)
    controller.tick()
    assert started == [run_of(older[0])]


def test_more_runs_that_go_on_than_may_be_leave_room_for_none(
    context: ServerContext, tmp_path: Path, living: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(context, 1)
    want_run(context, tmp_path, "older", 0.0)
    for number in range(2):
        living(want_run(context, tmp_path, "newer", 10.0 + number))
    controller, started = controller_of_runs(context, monkeypatch)
    controller.tick()
    assert started == []


def in_the_way(job: Job) -> None:
    """Make a job's folder one that cannot be."""
    job.path.parent.mkdir(parents=True, exist_ok=True)
    job.path.touch()


def test_a_run_whose_folder_cannot_be_holds_up_no_other(
    context: ServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, well = want_run(context, tmp_path, "t", 1.0), want_run(context, tmp_path, "t", 2.0)
    in_the_way(broken)
    controller, started = controller_of_runs(context, monkeypatch)
    for _ in range(2):
        controller.tick()
    assert started == [run_of(well)] * 2
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, told
    assert run_of(broken) in told[0]


@pytest.mark.parametrize("error", [UnavailableError("The journal is away."), KeyError("parameters")])
def test_a_run_that_cannot_be_looked_at_now_holds_up_no_other_and_goes_on(
    context: ServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    away, well = want_run(context, tmp_path, "t", 1.0), want_run(context, tmp_path, "t", 2.0)
    controller, started = controller_of_runs(context, monkeypatch)
    show = context.deployer.show

    def showing(run: str) -> Any:
        if run == run_of(away):
            raise error
        return show(run)

    with monkeypatch.context() as patch:
        patch.setattr(context.deployer, "show", showing)
        controller.tick()
    assert started == [run_of(well)]
    assert away.result is None
    controller.tick()
    assert started[1:] == [run_of(away), run_of(well)]


def want_change(context: ServerContext, id: str, service: str) -> Job:
    one = OperationRow(id=id, kind="change", service=service, request={"instances": 2}, created=1.0)
    with context.store.write() as connection:
        operations.add(connection, one)
    return context.operation_job(id)


def test_a_change_that_cannot_be_looked_at_holds_up_only_its_own_service(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way(want_change(context, "scale-1", "digits"))
    want_change(context, "scale-2", "digits")
    want_change(context, "scale-3", "letters")
    controller, started = OperationsController(context), Started()
    monkeypatch.setattr(controller, "_processes", started)
    controller.tick()
    assert started.names == ["scale-3"]


def test_a_service_that_cannot_be_looked_at_hides_no_other_and_its_own_news_is_told_later(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [a_service("alone", "unsupervised"), a_service("unwell", "degraded")]
    away = True

    def service(name: str) -> ServiceRecord:
        if away:
            raise PermissionError(name)
        return a_service(name, "failed")

    monkeypatch.setattr(context.deployer, "services", lambda: listed)
    monkeypatch.setattr(context.deployer, "service", service)
    controller = ServicesController(context)

    def told() -> list[str]:
        with context.store.read() as connection:
            return [event.subject for event in events.after(connection, 0)]

    controller.tick()
    assert told() == ["service/unwell"]
    away = False
    controller.tick()
    assert told() == ["service/unwell", "service/alone"]


def test_a_folder_that_cannot_be_forgotten_holds_up_no_other(context: ServerContext) -> None:
    jobs = [Job(context.settings.folder / "operations" / id) for id in ("scale-1", "scale-2")]
    for job in jobs:
        job.prepare({"what": "operation"})
        job.end({"result": None, "problem": None})
    (jobs[0].path / "attempts").touch()  # no folder
    RetentionController(context).forget()  # by the context's clock, both ended years ago
    assert [job.path.exists() for job in jobs] == [True, False]
