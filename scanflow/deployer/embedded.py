"""The deployer that works in this process, on the backend that the settings name."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.plain_secrets import check_no_plain_secrets
from scanflow.app.plan import Plan, PlannedObject
from scanflow.app.workflow import Workflow
from scanflow.app_files import declare_functions
from scanflow.application_loading import load_application, refuse_while_loading
from scanflow.backends.backend_port import Environment, RunPreparer
from scanflow.backends.log_reader import LogPart, LogReader, WholeLinesReader
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import EnvironmentReady, Observer, RunRecord, RunState, StepFile, Waiting
from scanflow.deployer.background import BackgroundRun, build_still_running_error
from scanflow.deployer.deployer_port import LATEST, Deployer, InstanceLogs, RunRequest, TaskLog
from scanflow.deployer.direct_predictions import connect_service
from scanflow.deployer.functions_by_value import (
    check_live_functions,
    find_application,
    remember_application,
    save_functions,
)
from scanflow.deployer.masked_deployer import (
    MaskedRuns,
    build_masker,
    mask_event,
    mask_log,
    mask_plan,
    mask_run,
    read_masked_tail,
)
from scanflow.deployer.remote_home import find_mlflow_url
from scanflow.errors import NotFoundError, ScanflowError, UnsupportedError
from scanflow.http.home_token import make_step_token, read_home_token
from scanflow.installation import explain_install
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.step_environment import (
    add_run_tags,
    build_served_variables,
    build_step_environment,
    find_prepared_environment,
    locate_tracker,
)
from scanflow.modules import use_folder
from scanflow.names import RunName
from scanflow.plugins import load_plugin
from scanflow.settings import Settings
from scanflow.text.masking import Masker

if TYPE_CHECKING:  # most commands are about runs, and need none of these
    from scanflow.backends.backend_port import Backend, Models, OnlineBackend, RunBackend, ServiceClient
    from scanflow.backends.environments import EnvironmentBackend, ObjectChange
    from scanflow.backends.service_change import Deployment, ServiceChange
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord

DEFAULT = "local"
LOG_POLL_S = 0.2
RUN_POLL_S = 0.2
SEARCHED_RUNS = 200
"""The number of newest runs of a workflow among which a whole one is searched."""


def _ignore(_: object) -> None:
    """Observe no progress."""


class EmbeddedDeployer(Deployer):
    """A deployer in this process. Applications given to it may hold live functions. Secrets are masked in what it
    returns of runs, except in outputs.

    It works on the backend it is given, else on the one that the settings name, else on that of the last application
    that it was given, else on this machine.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        backend: Backend | None = None,
        sleep: Callable[[float], None] = time.sleep,
        models_of: str | None = None,
    ) -> None:
        """Create a deployer on ``backend``. ``models_of``: the team whose registered models alone are there.

        Raises:
            NotFoundError: the one that the settings name is not installed.
        """
        self._settings, self._sleep, self._models_of = settings, sleep, models_of
        self._chosen_before = backend is not None or settings.backend is not None
        self._opened: dict[str | None, Backend] = {}
        self._background: dict[str, BackgroundRun] = {}
        self._listed = MaskedRuns(self.load_masker)
        self.backend = self._open(None) if backend is None else backend

    @property
    def batch(self) -> RunBackend:
        """The backend of batch workflows, for callers that enter runs for another process to drive."""
        return self.backend.batch()

    def _open(self, name: str | None) -> Backend:
        if name not in self._opened:
            self._opened[name] = open_backend(self._settings, name, models_of=self._models_of)
        return self._opened[name]

    def _use(self, app: Application) -> Application:
        """Use the backend that an application names, unless one was chosen before."""
        if not self._chosen_before:
            self.backend = self._open(app.backend)
        return app

    def environments(self, app: Application) -> EnvironmentBackend:
        """Return the environments of an application's backend."""
        self._use(app)
        return self.backend.environments()

    # Runs

    def plan(self, request: RunRequest) -> Plan:
        app, chosen = self._use(request.application), request.chosen
        plan = (self._online(app) if chosen.type == "online" else self.batch).plan(app, self._save_functions(chosen))
        objects = tuple(map(_to_planned_object, self.backend.objects(app, chosen)))
        return mask_plan(plan.model_copy(update={"objects": objects}), app)

    def define(self, request: RunRequest) -> RunDefinition:
        """Build the definition of the requested run; of an earlier run, from its own definition or ``request.app``.

        Raises:
            UsageError: there is no such workflow, step or parameter, or it is not run.
        """
        if request.run is None:
            app, chosen = self._use(request.application), request.chosen
            if chosen.type == "online":
                raise UnsupportedError(
                    f"The workflow {chosen.name!r} is of type 'online': it serves requests and does not finish. Deploy "
                    "it: scanflow deploy"
                )
            return RunDefinition(
                app,
                self._save_functions(chosen),
                request.changed_parameters,
                request.source,
                functions=request.functions,
            )
        past, earlier = self.batch.show(request.run), self.batch.definition(request.run)
        app, workflow = request.app or earlier.app, earlier.workflow
        if request.app is None:
            check_live_functions(workflow)
        else:
            current = self._save_functions(app.workflow(workflow.name))
            if current == workflow:
                workflow = current  # which has the functions themselves
            else:
                refreshed = [node.name for node in workflow.steps if node.refresh_cache]
                workflow = current.with_parameters(earlier.parameters).with_refreshed_cache(refreshed)
        if request.step is None:
            functions = {**earlier.functions, **request.functions}
            return replace(earlier, app=app, workflow=workflow, functions=functions)
        workflow = declare_functions(app, workflow)
        step = request.step.partition(".")[0]  # of one task of a fan-out, too
        workflow.node(step)
        changes = request.read_parameters(workflow, step)
        full_names = {f"{step}.{name.removeprefix(f'{step}.')}": value for name, value in changes.items()}
        return RunDefinition(
            app,
            workflow.with_parameters(changes, step=step).with_refreshed_cache([step]),
            {**earlier.parameters, **full_names},
            earlier.source,
            step=request.step,
            past=past.name,
        )

    def _save_functions(self, workflow: Workflow) -> Workflow:
        return save_functions(workflow, self.batch.keep_function) if workflow.type == "batch" else workflow

    def run(self, request: RunRequest, *, observe: Observer = _ignore) -> RunRecord:
        name, definition = self._prepare(request)
        environment = self._get_environment(definition.app, observe)
        if name is None:
            name = self.batch.enter(definition).name
        remember_application(name, request.app)
        return self._drive(name, definition, environment, observe)

    def begin(self, request: RunRequest) -> RunRecord:
        resumed, definition = self._prepare(request)
        batch = self.batch
        name = batch.enter(definition).name if resumed is None else resumed
        remember_application(name, request.app)

        def drive(observe: Observer) -> RunRecord:
            try:
                environment = self._get_environment(definition.app, observe)
            except ScanflowError as error:
                if resumed is None:
                    batch.give_up(name, str(error))
                raise
            if resumed is None and (now := self.mask(batch.show(name))).state == "stopped":
                return now  # before it was driven
            return self._drive(name, definition, environment, observe)

        self._background[name] = BackgroundRun(drive)
        return self.show(name)

    def wait(self, run: str, *, timeout_s: float | None = None, observe: Observer = _ignore) -> RunRecord:
        record = self.show(run)
        if (own := self._background.get(record.name)) is not None:
            return own.wait(record.name, timeout_s=timeout_s, observe=observe)
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while record.state == "running":  # another process drives it
            if time.monotonic() >= until:
                raise build_still_running_error(record.name, timeout_s)
            self._sleep(RUN_POLL_S)
            record = self.show(record.name)
        return record

    def _drive(self, name: str, definition: RunDefinition, environment: Environment, observe: Observer) -> RunRecord:
        @cache
        def load_masker() -> Masker:
            return build_masker(definition)

        use_folder(Path(definition.app.app_dir))  # conditions and lists have classes of its files
        record = self.batch.drive(
            name, definition, environment=environment, observe=lambda event: observe(mask_event(event, load_masker))
        )
        return mask_run(record, load_masker)

    def _prepare(self, request: RunRequest) -> tuple[str | None, RunDefinition]:
        """Check the requested run; return the name of the run to resume, None for a new one, and its definition."""
        refuse_while_loading()
        if request.run is not None:
            past = self.batch.show(request.run)
            if request.step is not None and request.run == LATEST:
                past = self.find_full_run(app=past.app, team=past.team, workflow=past.workflow) or past
            app = request.app or reload_application(past) or find_application(past.name)
            request = replace(request, run=past.name, app=app)
        definition = self.define(request)
        if request.run is not None and request.step is None:
            return request.run, definition
        if isinstance(batch := self.batch, RunPreparer):
            return None, batch.prepare(definition)
        batch.check(definition)
        return None, definition

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        return self.mask(self.batch.stop(run) if task is None else self.batch.stop_task(run, task))

    def show(self, run: str) -> RunRecord:
        record = self.mask(self.batch.show(run))
        own = self._background.get(record.name)
        soon = record.state == "interrupted" and own is not None and own.alive  # it waits for the tracker
        return record.model_copy(update={"state": "running"}) if soon else record

    def runs(
        self,
        *,
        limit: int = 20,
        offset: int = 0,
        app: str | None = None,
        team: str | None = None,
        workflow: str | None = None,
        state: RunState | None = None,
    ) -> list[RunRecord]:
        """Return the newest runs first; only of an application, team, workflow or state if one is given."""
        records = self.batch.runs(limit=limit, offset=offset, app=app, team=team, workflow=workflow, state=state)
        return list(map(self._listed.mask, records))

    def find_full_run(self, *, app: str, team: str, workflow: str) -> RunRecord | None:
        """Return the newest run of a whole workflow, without its tasks; None: its newest runs are spins of steps."""
        records = self.runs(limit=SEARCHED_RUNS, app=app, team=team, workflow=workflow)
        return next((record for record in records if self.batch.definition(record.name).step is None), None)

    def follow(self, run: str, since: int = -1) -> tuple[RunRecord, int]:
        """Return a run with only the tasks changed after ``since``, and the next ``since``."""
        record, last = self.batch.follow(run, since)
        return self.mask(record), last

    def load_masker(self, run: str) -> Masker:
        """Return the masker of a run's secrets, for what else is shown of it."""
        return build_masker(self.batch.definition(run))

    def mask(self, record: RunRecord) -> RunRecord:
        """Return a run's record with its secrets masked."""
        return mask_run(record, lambda: self.load_masker(record.name))

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        use_folder(Path(self.batch.definition(run).app.app_dir))  # which has the classes of its values
        return self.batch.outputs(run, step)

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        return self.batch.files(run, step)

    def logs(self, of: TaskLog | InstanceLogs, *, follow: bool = False) -> Iterator[LogPart]:
        return self._read_parts(self.log_reader(of), follow=follow)

    def log_reader(self, of: TaskLog | InstanceLogs) -> LogReader:
        """Return a log reader, to be closed by the caller. A run's secrets are masked in its logs."""
        if isinstance(of, InstanceLogs):
            return self.backend.online().logs(of.service, of.instance)
        reader = self.batch.logs(of.run, of.task, stream=of.stream, attempt=of.attempt)
        return WholeLinesReader(mask_log(reader, self.load_masker(of.run)))

    def read_log_tail(self, of: TaskLog, n_bytes: int) -> bytes:
        """Return the end of a log of one stream, about so many bytes, with the run's secrets masked.

        A log of any length takes as long, where the backend has it in a file.
        """
        with closing(self.batch.logs(of.run, of.task, stream=of.stream, attempt=of.attempt)) as reader:
            return read_masked_tail(reader, self.load_masker(of.run), n_bytes)

    # Services

    def deploy(
        self, deployment: Deployment, *, key: str | None = None, observe: ServiceObserver = _ignore
    ) -> ServiceRecord:
        refuse_while_loading()
        app = self._use(deployment.app)
        check_no_plain_secrets(app, workflow=deployment.online.name)
        return self._online(app).deploy(deployment, key=key, observe=observe)

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = _ignore
    ) -> ServiceRecord:
        tracker = self.backend.online().service(name).tracker
        return self.backend.online(tracker).change(name, change, key=key, observe=observe)

    def delete(self, name: str, *, observe: ServiceObserver = _ignore) -> None:
        self.backend.online().delete(name, observe=observe)

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        return self.backend.online().services(instances=instances)

    def reconcile(self, record: ServiceRecord, *, observe: ServiceObserver = _ignore) -> ServiceChange | None:
        """Reconcile a service, and return the change of it that is due: for controllers of services."""
        return self.backend.online().reconcile(record, observe=observe)

    def service(self, name: str) -> ServiceRecord:
        return self.backend.online().service(name)

    def connect(self, name: str) -> ServiceClient:
        """Return a client of a service, without a network where the backend has none."""
        return self.backend.online().client(name) or connect_service(self.service(name))

    def _online(self, app: Application) -> OnlineBackend:
        return self.backend.online(None if app.tracker is None else app.tracker.uri)

    def _read_parts(self, reader: LogReader, *, follow: bool) -> Iterator[LogPart]:
        with closing(reader):
            while True:
                page = reader.read()
                yield from page.parts
                if page.ended or not (page.parts or follow):
                    return
                if not page.parts:
                    self._sleep(LOG_POLL_S)

    def _get_environment(self, app: Application, observe: Observer) -> Environment:
        if app.tracker is None:
            return lambda _tags: {}
        if (own := self.backend.tracker(app)) is not None:
            own_variables = build_step_environment(own, app=app.name, team=app.team)
            return lambda tags: add_run_tags(own_variables, tags)
        uri = app.tracker.uri or self._settings.tracker_uri
        home = self._settings.home.expanduser().absolute()
        variables = find_prepared_environment(home, app.name, app.team, tracker_uri=uri)
        if variables is None:
            nobody = RunName("")
            observe(Waiting(run=nobody, what="the tracker", why="MLflow creates the application's experiment, once"))
            began = time.monotonic()
            variables = open_knowledge(home, uri, served=True).prepare(app.name, app.team)
            observe(EnvironmentReady(run=nobody, what="the tracker", seconds=time.monotonic() - began))
        return lambda tags: add_run_tags({**variables, **self._get_served_variables(app, uri)}, tags)

    def _get_served_variables(self, app: Application, uri: str | None) -> dict[str, str]:
        """Return the variables that lead steps to MLflow behind the home's server; none: it does not run.

        Read for each step, as the server may have started, stopped or moved since the run began.
        """
        home = self._settings.home.expanduser().absolute()
        url, token = find_mlflow_url(home), read_home_token(home)
        if (
            url is None
            or token is None
            or locate_tracker(home, uri) != locate_tracker(home, self._settings.tracker_uri)
        ):
            return {}
        return build_served_variables(url, make_step_token(token, app.name, app.team))


def reload_application(record: RunRecord) -> Application | None:
    """Return the application that a run's file defines now; None: there is no such file here.

    Raises:
        NotFoundError: it has no longer the run's workflow.
    """
    if record.source is None or not Path(record.source).is_file():
        return None
    app, _, _ = load_application(record.source)
    if all(workflow.name != record.workflow for workflow in app.workflows):
        raise NotFoundError(
            f"{record.source!r} no longer has the workflow {record.workflow!r} of the run {record.name!r}. "
            "Restore it, or start a new run."
        )
    return app


def open_backend(settings: Settings, name: str | None = None, *, models_of: str | None = None) -> Backend:
    """Return the backend that the settings name, else the backend ``name``, else this machine. ``models_of``: the team
    whose registered models alone are there.

    Raises:
        NotFoundError: it is not installed; the message says which are, and what to install.
    """
    home = settings.home.expanduser().absolute()
    chosen = settings.backend or name or DEFAULT
    try:
        factory = load_plugin("backends", chosen)
    except NotFoundError as error:
        how = f" {explain_install('kubernetes')}" if chosen == "kubernetes" else ""
        raise NotFoundError(f"{error} Choose one: SCANFLOW_BACKEND.{how}") from error
    backend: Backend = factory(settings, lambda tracker: open_models(home, tracker or settings.tracker_uri, models_of))
    return backend


def open_models(home: Path, uri: str | None, team: str | None = None) -> Models:
    """Return a tracker's registry, with a team's models alone; MLflow, where it is not loaded, runs in a separate
    process."""
    if "mlflow" not in sys.modules:
        from scanflow.knowledge.registry_subprocess import RegistrySubprocess

        return RegistrySubprocess(home, uri, team=team)
    from scanflow.knowledge import open_knowledge
    from scanflow.knowledge.model_cache import ModelCache

    return ModelCache(home / "models", lambda: open_knowledge(home, uri).for_team(team))


def _to_planned_object(change: ObjectChange) -> PlannedObject:
    fields = tuple(str(field) for field in change.fields)
    return PlannedObject(kind=change.kind, name=change.name, change=change.change, fields=fields, why=change.why)
