"""The deployer that works in this process, on the backend that the settings name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.port import Environment, LogPart, LogReader, RunDefinition, Stream
from scanflow.backends.records import EnvironmentReady, Observer, RunRecord, Waiting
from scanflow.deployer.checks import online_workflow, refuse_while_loading, runnable, with_parameters
from scanflow.deployer.places import open_backend
from scanflow.deployer.service_client import ServiceCalls
from scanflow.errors import NotFoundError
from scanflow.knowledge import open_knowledge, prepared_environment, tagged
from scanflow.loading import load_application
from scanflow.names import RunName
from scanflow.settings import Settings

if TYPE_CHECKING:  # most commands are about runs, and need none of these
    from scanflow.backends.port import Backend, OnlineBackend, ServiceClient
    from scanflow.backends.service_change import ServiceChange, Sizing
    from scanflow.backends.service_records import Explanation, ServiceObserver, ServiceRecord

LOG_POLL_S = 0.2


def _ignore(_: object) -> None:
    """Observe no progress."""


class EmbeddedDeployer(ServiceCalls):
    """A :class:`~scanflow.deployer.port.Deployer` in this process. Applications given to it may hold live functions."""

    def __init__(
        self, settings: Settings, *, backend: Backend | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Work on ``backend``. None: on the one that the settings name.

        Raises:
            NotFoundError: it is not installed.
        """
        self._settings = settings
        self.backend = open_backend(settings) if backend is None else backend
        self._batch = self.backend.batch()
        self._sleep = sleep

    # Runs

    def plan(
        self, app: Application, workflow: str | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> Plan:
        chosen = with_parameters(app, workflow, parameters)
        return (self._online(app) if chosen.type == "online" else self._batch).plan(app, chosen)

    def run(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        source: Path | None = None,
        observe: Observer = _ignore,
    ) -> RunRecord:
        refuse_while_loading()
        chosen = runnable(app, workflow, parameters)
        self._batch.check(app, chosen)
        environment = self._environment(app, observe)
        run = self._batch.enter(app, chosen, parameters=parameters or {}, source=source)
        return self._batch.drive(run.name, app=app, workflow=chosen, environment=environment, observe=observe)

    def enter(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        source: Path | None = None,
        name: RunName | None = None,
    ) -> RunRecord:
        """Check and enter a run without driving it: ``resume``, in any process, does what ``run`` would have done.

        Idempotent by name.
        """
        chosen = runnable(app, workflow, parameters)
        return self._batch.enter(app, chosen, parameters=parameters or {}, source=source, name=name)

    def runnable(self, app: Application, workflow: str | None, parameters: Mapping[str, Any] | None) -> Workflow:
        chosen = runnable(app, workflow, parameters)
        self._batch.check(app, chosen)
        return chosen

    def check_spin(
        self, step: str, *, run: str, app: Application | None = None, parameters: Mapping[str, Any] | None = None
    ) -> None:
        definition = self._batch.definition(run)
        changed, changes = _spun(app, definition, step, parameters)
        given = {**definition.parameters, **changes}
        self._batch.check_spin(run, step, app=app or definition.app, workflow=changed, parameters=given)

    def enter_spin(
        self,
        step: str,
        *,
        run: str,
        app: Application | None = None,
        parameters: Mapping[str, Any] | None = None,
        name: RunName | None = None,
    ) -> RunRecord:
        past, definition = self._batch.show(run), self._batch.definition(run)
        changed, changes = _spun(app, definition, step, parameters)
        return self._batch.enter_spin(
            past.name,
            step,
            app=app or definition.app,
            workflow=changed,
            parameters={**definition.parameters, **changes},
            source=None if past.source is None else Path(past.source),
            name=name,
        )

    def resume(self, run: str, *, app: Application | None = None, observe: Observer = _ignore) -> RunRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.resume`.

        Without ``app``, the file that the run came from is read again, if it is there.
        """
        record, definition = self._batch.show(run), self._batch.definition(run)
        found = app or _read_again(record)
        workflow = None if found is None else found.workflow(record.workflow).with_parameters(definition.parameters)
        environment = self._environment(found or definition.app, observe)
        return self._batch.drive(record.name, app=found, workflow=workflow, environment=environment, observe=observe)

    def spin(
        self,
        step: str,
        *,
        run: str = "@latest",
        app: Application | None = None,
        parameters: Mapping[str, Any] | None = None,
        observe: Observer = _ignore,
    ) -> RunRecord:
        past = self._batch.show(run)
        found = app or _read_again(past)
        entered = self.enter_spin(step, run=past.name, app=found, parameters=parameters)
        definition = self._batch.definition(past.name)
        changed, _ = _spun(found, definition, step, parameters)
        own = found or definition.app
        environment = self._environment(own, observe)
        return self._batch.drive(entered.name, app=own, workflow=changed, environment=environment, observe=observe)

    def free_name(self) -> RunName:
        return self._batch.free_name()

    def definition(self, run: str) -> RunDefinition:
        return self._batch.definition(run)

    def give_up(self, run: str, why: str) -> RunRecord:
        return self._batch.give_up(run, why)

    def stop(self, run: str) -> RunRecord:
        return self._batch.stop(run)

    def show(self, run: str) -> RunRecord:
        return self._batch.show(run)

    def runs(
        self, *, limit: int = 20, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        return self._batch.runs(limit=limit, app=app, team=team, workflow=workflow)

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        return self._batch.outputs(run, step)

    def follow(self, run: str, since: int = -1) -> tuple[RunRecord, int]:
        return self._batch.follow(run, since)

    def logs(
        self, run: str, task: str, *, stream: Stream = "stdout", attempt: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        reader = self.log_reader(run, task, stream=stream, attempt=attempt)
        return (part.data for part in self._parts(reader, follow=follow))

    def log_reader(self, run: str, task: str, *, stream: Stream, attempt: int | None = None) -> LogReader:
        return self._batch.logs(run, task, stream=stream, attempt=attempt)

    # Services

    def deploy(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        sizing: Sizing | None = None,
        port: int | None = None,
        source: Path | None = None,
        key: str | None = None,
        observe: ServiceObserver = _ignore,
    ) -> ServiceRecord:
        refuse_while_loading()
        chosen = online_workflow(app, workflow)
        return self._online(app).deploy(app, chosen, source=source, sizing=sizing, port=port, key=key, observe=observe)

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = _ignore
    ) -> ServiceRecord:
        tracker = self.backend.online().service(name).tracker
        return self.backend.online(tracker).change(name, change, key=key, observe=observe)

    def services(self) -> list[ServiceRecord]:
        return self.backend.online().services()

    def service(self, name: str) -> ServiceRecord:
        return self.backend.online().service(name)

    def explain(self, name: str) -> Explanation:
        return self.backend.online().explain(name)

    def service_logs(
        self, name: str, *, instance: str | None = None, follow: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        return self._parts(self.service_log_reader(name, instance=instance), follow=follow)

    def service_log_reader(self, name: str, *, instance: str | None = None) -> LogReader:
        return self.backend.online().logs(name, instance)

    def delete(self, name: str, *, observe: ServiceObserver = _ignore) -> None:
        self.backend.online().delete(name, observe=observe)

    def connect(self, name: str) -> ServiceClient:
        return self.backend.online().client(name) or super().connect(name)

    # What both need

    def _online(self, app: Application) -> OnlineBackend:
        return self.backend.online(None if app.tracker is None else app.tracker.uri)

    def _parts(self, reader: LogReader, *, follow: bool) -> Iterator[LogPart]:
        with closing(reader):
            while True:
                page = reader.read()
                yield from page.parts
                if page.ended or not (page.parts or follow):
                    return
                if not page.parts:
                    self._sleep(LOG_POLL_S)

    def _environment(self, app: Application, observe: Observer) -> Environment:
        if app.tracker is None:
            return lambda _tags: {}
        uri = app.tracker.uri or self._settings.tracker_uri
        home = self._settings.home.expanduser().absolute()
        variables = prepared_environment(home, app.name, app.team, tracker_uri=uri)
        if variables is None:
            nobody = RunName("")
            observe(Waiting(run=nobody, what="the tracker"))
            began = time.monotonic()
            variables = open_knowledge(home, uri).prepare(app.name, app.team)
            observe(EnvironmentReady(run=nobody, what="the tracker", seconds=time.monotonic() - began))
        return lambda tags: tagged(variables, tags)


def _spun(
    app: Application | None, definition: RunDefinition, step: str, parameters: Mapping[str, Any] | None
) -> tuple[Workflow, dict[str, Any]]:
    workflow = definition.workflow
    if app is not None:
        workflow = app.workflow(workflow.name).with_parameters(definition.parameters)
    step = step.partition(".")[0]  # of one task of a fan-out, too
    workflow.node(step)
    changes = {f"{step}.{name.removeprefix(f'{step}.')}": value for name, value in (parameters or {}).items()}
    return workflow.with_parameters(changes), changes


def _read_again(record: RunRecord) -> Application | None:
    if record.source is None or not Path(record.source).is_file():
        return None
    app, _, _ = load_application(record.source)
    if all(workflow.name != record.workflow for workflow in app.workflows):
        raise NotFoundError(
            f"{record.source!r} no longer has the workflow {record.workflow!r} of the run {record.name!r}. "
            "Put it back, or start a new run."
        )
    return app
