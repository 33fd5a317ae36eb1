"""Controllers, each of many things: no more drives at once than may be, and none of them holds up the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scanflow.agent.agent_records import JSON
from scanflow.app.application import Application
from scanflow.backends.local.batch import backend
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import InstanceRecord, Progress, ServiceObserver, ServiceRecord, Shape
from scanflow.deployer import RunRequest
from scanflow.errors import UnavailableError
from scanflow.processes.background_jobs import Job
from scanflow.processes.shared_files import is_locked
from scanflow_server import service_drivers
from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.control import run_controller as runs_control
from scanflow_server.control.retention import RetentionController
from scanflow_server.control.run_controller import RunsController
from scanflow_server.control.service_controller import ServicesController
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store, intent_store, run_store
from scanflow_server.store.run_store import DriveRequest
from tests.unit.server.answering import a_service
from tests.unit.server.server_rows import a_run, make_action_row, make_request_row, read_from_store
from tests.waiting import PATIENCE_S, wait_until


class Started:
    """Controllers' processes of which none is started, only counted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, job: Job, _environ: object, **_how: object) -> bool:
        self.names.append(job.path.parent.name if job.path.parent.parent.name == "runs" else job.path.name)
        return True

    def forget(self, _job: Job) -> None:
        """There is nothing to forget."""


class Driving:
    """The controller of runs, with runs to go on with that are in the backend's journal."""

    def __init__(self, context: ServerContext, folder: Path) -> None:
        processes = Started()
        self.context, self.controller = context, RunsController(context, processes)  # type: ignore[arg-type]
        self.started = processes.names
        (folder / "fit.py").touch()
        node = {"kind": "executor", "name": "fit", "mainfile": "fit.py"}
        self.app = Application.model_validate(
            {"name": "a", "app_dir": str(folder), "workflows": [{"name": "train", "nodes": [node]}]}
        )

    def want(self, created: float) -> Job:
        run = self.context.deployer.batch.enter(self.context.deployer.define(RunRequest(self.app, "train")))
        with self.context.store.write() as connection:
            run_store.add(connection, a_run(run.name, created=created, asked=DriveRequest(action="resume")))
        return self.context.get_run_job(run.name, 1)


def test_a_run_that_waits_in_a_long_queue_is_looked_at_once(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "settings", context.settings.model_copy(update={"max_runs": 0}))
    monkeypatch.setattr(runs_control, "MAX_NEW", 2)
    looked = list[str]()
    monkeypatch.setattr(runs_control, "ensure_entered", lambda _context, run: looked.append(run.name))
    names = [f"run-{number}" for number in range(5)]
    with context.store.write() as connection:
        for number, name in enumerate(names):
            run_store.add(connection, a_run(name, created=number))
    controller = RunsController(context)
    for _ in range(5):
        controller.tick()
    assert looked == names
    with context.store.write() as connection:
        run_store.drive_again(connection, "run-1", DriveRequest(action="resume"))
        run_store.stop(connection, "run-3")
    controller.tick()
    assert looked == [*names, "run-1", "run-3"], "a new drive is another, and a stop is not waited for"


@pytest.fixture
def driving(context: ServerContext, tmp_path: Path) -> Driving:
    return Driving(context, tmp_path)


def test_a_run_where_the_driver_dies_while_it_is_stopped_is_stopped_all_the_same(
    driving: Driving, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, dying = driving.want(0.0), [True, True, True]
    with driving.context.store.write() as connection:
        run_store.stop(connection, get_run(job))
    # Its last instants: its own lock is let go of before the run's.
    with monkeypatch.context() as patched:
        patched.setattr(backend, "is_locked", lambda path: bool(dying and dying.pop()) or is_locked(path))
        driving.controller.tick()
        while dying:
            assert job.result is None
            driving.controller.tick()
    driving.controller.tick()
    assert job.result is not None
    assert job.result["record"]["state"] == "stopped"


def get_run(job: Job) -> str:
    return job.path.parent.name


@pytest.mark.processes
@pytest.mark.parametrize(("most", "going_on", "begun"), [(4, 3, 1), (1, 2, 0)])
def test_runs_that_go_on_count_before_older_ones_are_begun(
    driving: Driving, most: int, going_on: int, begun: int
) -> None:
    driving.context.settings = driving.context.settings.model_copy(update={"max_runs": most})
    older = [driving.want(float(number)) for number in range(4)]
    living = [driving.want(10.0 + number) for number in range(going_on)]
    try:
        for job in living:
            job.prepare({"what": "test"})
            assert job.start(os.environ, command=["sleep", "600"])
        driving.controller.tick()
    finally:
        for job in living:
            job.daemon.kill()
            assert job.daemon.wait(PATIENCE_S)
    assert driving.started == [get_run(action) for action in older[:begun]]


def in_the_way(job: Job) -> None:
    job.path.parent.mkdir(parents=True, exist_ok=True)
    job.path.touch()


def test_a_run_where_the_folder_cannot_be_holds_up_no_other(driving: Driving, caplog: pytest.LogCaptureFixture) -> None:
    broken, well = driving.want(1.0), driving.want(2.0)
    in_the_way(broken)
    for _ in range(2):
        driving.controller.tick()
    assert driving.started == [get_run(well)] * 2
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1, messages
    assert get_run(broken) in messages[0]


@pytest.mark.parametrize("error", [UnavailableError("The journal is away."), KeyError("parameters")])
def test_a_run_that_cannot_be_looked_at_now_holds_up_no_other_and_goes_on(
    driving: Driving, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    away, well = driving.want(1.0), driving.want(2.0)
    show = driving.context.deployer.show

    def showing(run: str) -> Any:
        if run == get_run(away):
            raise error
        return show(run)

    with monkeypatch.context() as patch:
        patch.setattr(driving.context.deployer, "show", showing)
        driving.controller.tick()
    assert driving.started == [get_run(well)]
    assert away.result is None
    driving.controller.tick()
    assert driving.started[1:] == [get_run(away), get_run(well)]


def want_change(context: ServerContext, id: str, service: str) -> Job:
    with context.store.write() as connection:
        intent_store.add(connection, make_request_row(id, service=service, request={"instances": 2}))
    return context.get_operation_job(id)


def test_a_change_that_cannot_be_looked_at_holds_up_only_its_own_service(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way(want_change(context, "scale-1", "digits"))
    want_change(context, "scale-2", "digits")
    want_change(context, "scale-3", "letters")
    started = Started()
    monkeypatch.setattr(service_drivers, "Processes", lambda _ended: started)
    with build_engine(context):
        wait_until(lambda: len(started.names) > 1, "what can be done is done, and looked at again")
        context.shutdown.set()
    assert {*started.names} == {"scale-3"}
    whys = {record.getMessage().partition(" could")[0] for record in caplog.records}
    assert "The change 'scale-1' of a service" in whys


def test_a_service_that_cannot_be_looked_at_hides_no_other_and_its_own_news_is_reported_later(
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
    controller = ServicesController(context, build_engine(context))

    def list_event_types() -> list[str]:
        with context.store.read() as connection:
            return [event.subject for event in event_store.list_after(connection, 0)]

    controller.tick()
    assert list_event_types() == ["service/unwell"]
    away = False
    controller.tick()
    assert list_event_types() == ["service/unwell", "service/alone"]


def test_a_change_that_is_due_is_requested_once_until_there_is_another_generation(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = a_service("digits", "ready")
    monkeypatch.setattr(context.deployer, "services", lambda: [seen])
    monkeypatch.setattr(context.deployer, "reconcile", lambda _record, **_: ServiceChange(promote=True))
    controller = ServicesController(context, build_engine(context))

    def list_open_ids() -> list[str]:
        with context.store.read() as connection:
            changes = intent_store.list_open_changes(connection)
        assert [change.request for change in changes] == [{"promote": True}]
        return [change.id for change in changes]

    controller.tick()
    first = list_open_ids()
    controller.tick()
    assert list_open_ids() == first
    seen = seen.model_copy(update={"generation": seen.generation + 1})
    controller.tick()
    assert list_open_ids() != first


def test_what_waits_for_a_person_is_withdrawn_once_the_service_is_so(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = a_service("digits", "ready").model_copy(update={"shape": Shape(instances=2)})
    arguments: dict[str, JSON] = {"workflow": "digits", "instances": 1}
    row = make_action_row("a1", "pending", "approve", target="service/digits", arguments=arguments, team=seen.team)
    with context.store.write() as connection:
        intent_store.add(connection, row)
    monkeypatch.setattr(context.deployer, "services", lambda: [seen])
    controller = ServicesController(context, build_engine(context))
    for instances, state in ((2, "pending"), (1, "refused")):
        seen = seen.model_copy(update={"shape": Shape(instances=instances)})
        controller.tick()
        assert read_from_store(context.store, intent_store.get, "a1").action.state == state


def test_each_restart_of_an_instance_is_an_event_also_one_that_was_over_between_two_looks(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[ServiceRecord] = []
    monkeypatch.setattr(context.deployer, "services", lambda: listed)
    controller = ServicesController(context, build_engine(context))
    for counts in ({"1": 1}, {"1": 1, "2": 0}, {}, {"1": 2, "2": 0}, {"1": 0, "2": 0}, {"1": 0, "2": 2}):
        instances = [
            InstanceRecord(instance=name, state="ready", restarts=count, error=f"it was killed {count} times")
            for name, count in counts.items()
        ]
        listed[:] = [a_service("digits", "ready").model_copy(update={"instances": tuple(instances)})]
        controller.tick()
    with context.store.read() as connection:
        events = event_store.list_after(connection, 0)
    assert {(event.type, event.subject, event.app) for event in events} == {
        ("service.restarted", "service/digits", "a")
    }
    assert [dict(event.data) for event in events] == [
        {"instance": "1", "restarts": 2, "error": "it was killed 2 times"},
        {"instance": "2", "restarts": 1, "error": "it was killed 2 times"},
        {"instance": "2", "restarts": 2, "error": "it was killed 2 times"},
    ]


def test_what_was_put_right_of_a_service_is_an_event(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def reconcile(record: ServiceRecord, *, observe: ServiceObserver) -> None:
        observe(Progress(service=record.name, text="recreated the Service, which another client deleted"))

    monkeypatch.setattr(context.deployer, "services", lambda: [a_service("digits", "ready")])
    monkeypatch.setattr(context.deployer, "reconcile", reconcile)
    ServicesController(context, build_engine(context)).tick()
    with context.store.read() as connection:
        (event,) = [entry for entry in event_store.list_after(connection, 0) if entry.type == "service.mended"]
    assert (event.subject, event.data) == (
        "service/digits",
        {"text": "recreated the Service, which another client deleted"},
    )


def test_a_folder_that_cannot_be_forgotten_holds_up_no_other(context: ServerContext) -> None:
    jobs = [Job(context.settings.folder / "operations" / id) for id in ("scale-1", "scale-2")]
    for job in jobs:
        job.prepare({"what": "operation"})
        job.end({"result": None, "problem": None})
    (jobs[0].path / "attempts").touch()  # no folder
    RetentionController(context).forget()  # by the context's clock, both ended years ago
    assert [job.path.exists() for job in jobs] == [True, False]
