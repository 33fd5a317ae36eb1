"""The deployer that works in this process and needs nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scanflow.app.application import Application
from scanflow.app.plan import Plan, plan_workflow
from scanflow.app.workflow import Workflow
from scanflow.backends.local.backend import LocalBackend
from scanflow.backends.local.definition import Definition
from scanflow.backends.records import EnvironmentReady, Observer, RunRecord, Waiting
from scanflow.deployer.services import EmbeddedServices, ServiceBackend, local_services, refuse_while_loading
from scanflow.errors import NotFoundError, UnsupportedError
from scanflow.knowledge import open_knowledge, prepared_environment, tagged
from scanflow.loading import load_application
from scanflow.names import RunName
from scanflow.placement.granted import this_machine
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.knowledge.cached import Models

__all__ = ["EmbeddedDeployer"]

LOG_POLL_S = 0.2
_BLOCK = 65_536


class EmbeddedDeployer(EmbeddedServices):
    """A :class:`~scanflow.deployer.port.Deployer` on the embedded backend. Application objects given to it may hold
    live functions."""

    def __init__(
        self, settings: Settings, *, services: Callable[[Settings, Models], ServiceBackend] = local_services
    ) -> None:
        """Work below ``settings.home``; ``services`` makes what runs online workflows, when one is asked for."""
        super().__init__(settings, services)
        self._backend = LocalBackend(settings)

    def plan(
        self, app: Application, workflow: str | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> Plan:
        """See :meth:`~scanflow.deployer.port.Deployer.plan`."""
        chosen = _changed(app, workflow, parameters)
        if chosen.type == "online":
            return self._plan_online(app, chosen)
        self._backend.check(app, chosen)
        machine = this_machine()
        return plan_workflow(
            chosen,
            machine_cores=self._settings.slots or machine.cores,
            machine_memory_bytes=machine.memory_bytes,
        )

    def run(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        source: Path | None = None,
        observe: Observer = lambda _: None,
    ) -> RunRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.run`."""
        refuse_while_loading()
        chosen = self.runnable(app, workflow, parameters)
        tracking = self._tracking(app, observe)
        return self._backend.run(
            app, chosen, parameters=parameters or {}, source=source, tracking=tracking, observe=observe
        )

    def enter(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        source: Path | None = None,
        name: RunName | None = None,
    ) -> RunRecord:
        """Check a run and enter it, without driving it: ``resume``, in whatever process, does what ``run`` would have.

        With a name it may be asked for again: the run is entered once.
        """
        chosen = self.runnable(app, workflow, parameters)
        return self._backend.enter(app, chosen, parameters=parameters or {}, source=source, name=name)

    def check_spin(
        self, step: str, *, run: str, app: Application | None = None, parameters: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse what :meth:`enter_spin` would."""
        record, definition = self._backend.definition(run)
        changed, _ = _spun(app, record, definition, step, parameters)
        self._backend.check_spin(record.name, step, app=app or definition.read()[0], workflow=changed)

    def enter_spin(
        self,
        step: str,
        *,
        run: str,
        app: Application | None = None,
        parameters: Mapping[str, Any] | None = None,
        name: RunName | None = None,
    ) -> RunRecord:
        """Check and enter what ``spin`` would run. Without ``app``, it is of what the past run was made of."""
        record, definition = self._backend.definition(run)
        changed, changes = _spun(app, record, definition, step, parameters)
        return self._backend.enter_spin(
            record.name,
            step,
            app=app or definition.read()[0],
            workflow=changed,
            parameters={**definition.parameters, **changes},
            source=None if record.source is None else Path(record.source),
            name=name,
        )

    def free_name(self) -> RunName:
        """Return a name for a run that none has at this moment."""
        return self._backend.free_name()

    def definition(self, run: str) -> tuple[Application, Workflow]:
        """Return what a run is made of."""
        return self._backend.definition(run)[1].read()

    def give_up(self, run: str, why: str) -> RunRecord:
        """Note that a run which nobody drives has failed, and why."""
        return self._backend.give_up(run, why)

    def resume(self, run: str, *, app: Application | None = None, observe: Observer = lambda _: None) -> RunRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.resume`.

        Without ``app``, the file that the run came from is read again, if it is there.
        """
        record, definition = self._backend.definition(run)
        found = app or _read_again(record)
        workflow = None if found is None else found.workflow(record.workflow).with_parameters(definition.parameters)
        tracking = self._tracking(found or definition.read()[0], observe)
        return self._backend.resume(record.name, app=found, workflow=workflow, tracking=tracking, observe=observe)

    def spin(
        self,
        step: str,
        *,
        run: str = "@latest",
        app: Application | None = None,
        parameters: Mapping[str, Any] | None = None,
        observe: Observer = lambda _: None,
    ) -> RunRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.spin`."""
        record, definition = self._backend.definition(run)
        found = app or _read_again(record)
        changed, changes = _spun(found, record, definition, step, parameters)
        own = found or definition.read()[0]
        return self._backend.spin(
            record.name,
            step,
            app=own,
            workflow=changed,
            parameters={**definition.parameters, **changes},
            source=None if record.source is None else Path(record.source),
            tracking=self._tracking(own, observe),
            observe=observe,
        )

    def stop(self, run: str) -> RunRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.stop`."""
        return self._backend.stop(run)

    def show(self, run: str) -> RunRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.show`."""
        return self._backend.show(run)

    def runs(
        self, *, limit: int = 20, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """See :meth:`~scanflow.deployer.port.Deployer.runs`; of one application, team or workflow where it is named."""
        return self._backend.runs(limit=limit, app=app, team=team, workflow=workflow)

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        """See :meth:`~scanflow.deployer.port.Deployer.outputs`."""
        return self._backend.outputs(run, step)

    def logs(
        self,
        run: str,
        task: str,
        *,
        stream: Literal["stdout", "stderr"] = "stdout",
        attempt: int | None = None,
        follow: bool = False,
    ) -> Iterator[bytes]:
        """See :meth:`~scanflow.deployer.port.Deployer.logs`."""
        name = self._backend.show(run).name
        path = self.log_file(name, task, stream=stream, attempt=attempt)
        position = 0
        while True:
            # Asked before reading: what is written until the end is then read after it.
            ended = not follow or self.task_ended(name, task)
            if path.exists():
                with path.open("rb") as file:
                    file.seek(position)
                    while block := file.read(_BLOCK):
                        position += len(block)
                        yield block
            if ended:
                return
            time.sleep(LOG_POLL_S)

    def runnable(self, app: Application, workflow: str | None, parameters: Mapping[str, Any] | None) -> Workflow:
        """Check a run, and return its workflow with the parameters set."""
        chosen = _changed(app, workflow, parameters)
        if chosen.type == "online":
            raise UnsupportedError(
                f"The workflow {chosen.name!r} is of type 'online': it is served, and has no end. "
                "Deploy it: scanflow deploy"
            )
        self._backend.check(app, chosen)
        return chosen

    def _plan_online(self, app: Application, workflow: Workflow) -> Plan:
        from scanflow.deployer.planning import plan_online

        self._services(app).check(app, workflow)
        return plan_online(self._settings.home.expanduser().absolute(), workflow)

    def log_file(
        self, run: str, task: str, *, stream: Literal["stdout", "stderr"] = "stdout", attempt: int | None = None
    ) -> Path:
        """Return the file that :meth:`logs` reads; it may not exist yet."""
        return self._backend.log_files(run, task, attempt=attempt)[stream]

    def task_ended(self, run: str, task: str) -> bool:
        """Say whether nothing more will be written by a task."""
        record = self._backend.show(run)
        if record.state != "running":
            return True
        return any(one.task == task and one.state != "running" for one in record.tasks)

    def _tracking(self, app: Application, observe: Observer) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        """Make sure that the application's tracker is ready, and return what makes steps log to it."""
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


def _changed(app: Application, workflow: str | None, parameters: Mapping[str, Any] | None) -> Workflow:
    batches = [one.name for one in app.workflows if one.type == "batch"]
    name = batches[0] if workflow is None and len(batches) == 1 else workflow
    return app.workflow(name).with_parameters(parameters or {})


def _spun(
    app: Application | None,
    record: RunRecord,
    definition: Definition,
    step: str,
    parameters: Mapping[str, Any] | None,
) -> tuple[Workflow, dict[str, Any]]:
    """Return the workflow of a spin with its parameters changed, and these by their full names."""
    workflow = (
        definition.read()[1] if app is None else app.workflow(record.workflow).with_parameters(definition.parameters)
    )
    workflow.node(step)
    changes = {f"{step}.{name.removeprefix(f'{step}.')}": value for name, value in (parameters or {}).items()}
    return workflow.with_parameters(changes), changes


def _read_again(record: RunRecord) -> Application | None:
    """Return what the run's file says now; None if it came from no file, or that is gone."""
    if record.source is None or not Path(record.source).is_file():
        return None
    app, _, _ = load_application(record.source)
    if all(workflow.name != record.workflow for workflow in app.workflows):
        raise NotFoundError(
            f"{record.source!r} no longer has the workflow {record.workflow!r} of the run {record.name!r}. "
            "Put it back, or start a new run."
        )
    return app
