"""Services on this machine, as a deployer asks for them. It holds nothing open: any process may ask for any service."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends import service_transitions
from scanflow.backends.kept_shapes import if_there, keep_shapes
from scanflow.backends.local.layout import Home
from scanflow.backends.local.services.control import rollout
from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.spec.builder import ServiceSpecBuilder, plan_online
from scanflow.backends.local.services.state.desired import change as change_stored
from scanflow.backends.local.services.state.desired import read_desired, taken_ports
from scanflow.backends.local.services.state.observed import is_current, is_supervised, read_observed
from scanflow.backends.local.services.state.report import record_of
from scanflow.backends.local.services.supervisor.attempts import newest
from scanflow.backends.log_files import FileLogs
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_desired import DesiredState, once
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord, Shape
from scanflow.backends.service_spec import Fetch, ServiceSpec
from scanflow.backends.shapes import changed_shape, shape_of
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError, did_you_mean
from scanflow.processes.files import hold_lock
from scanflow.processes.ports import choose_port
from scanflow.settings import Settings

TIMEOUT_S = 600.0


class LocalServices:
    """The services below one home folder."""

    def __init__(
        self,
        settings: Settings,
        *,
        fetch: Fetch,
        remember: Callable[[str, int, Shape], None],
        recall: Callable[[str, int], Shape | None],
        log_predictions: str | None = None,
        program: tuple[str, ...] = ("-m", "scanflow_serving"),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``log_predictions``: ``module:function`` that takes a file of predictions to the tracker, called by the
        recorder as ``function(home=…, tracker_uri=…, app=…, team=…, service=…, file=…, metrics=…, tags=…)``. None: no
        predictions are recorded. ``timeout_s``: longest that a change is waited for."""
        self._settings = settings
        self._home = Home(settings.home.expanduser().absolute())
        self._folders = ServicesHome(self._home.path / "services")
        self._remember, self._recall, self._fetch = remember, recall, fetch
        self._log_predictions, self._program, self._timeout_s = log_predictions, program, timeout_s
        self._builder = ServiceSpecBuilder(self._home, self._folders, fetch)

    def check(self, app: Application, workflow: Workflow) -> None:
        """Refuse at once what would fail later: a field that cannot be honoured, a missing file, too many cores."""
        self._builder.check(app, workflow, None)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        """Check a workflow, and return where its instances would be placed beside the other services."""
        self.check(app, workflow)
        return plan_online(self._home.path, workflow)

    def deploy(
        self, deployment: Deployment, *, key: str | None = None, observe: ServiceObserver = lambda _: None
    ) -> ServiceRecord:
        """Start a service, or change it to this definition; return it once that is in effect.

        Raises:
            UsageError: it cannot be; what served before serves on.
            UnavailableError: it takes too long; it goes on.
        """
        app, workflow, sizing = deployment.app, deployment.online, deployment.sizing
        shape = None if sizing is None else changed_shape(shape_of(workflow), sizing)
        self._builder.check(app, workflow, shape)
        folder = self._folders.service(workflow.name)
        self._check_owner(folder, app, workflow)
        made = self._builder.definition(
            app,
            workflow,
            source=deployment.source,
            shape=shape,
            tell=lambda text: observe(Progress(service=workflow.name, text=text)),
        )
        recorder = self._recorder(folder, app, made.serving)

        def deployed(before: DesiredState | None) -> DesiredState:
            return self._deployed(before, made, recorder, deployment.port or made.serving.port)

        return self._change(folder, deployed, key, observe, inside=hold_lock(self._folders.lock))

    def _check_owner(self, folder: ServiceFolder, app: Application, workflow: Workflow) -> None:
        desired = read_desired(folder)
        if desired is not None and not desired.deleted:
            own = desired.definition
            if (own.app, own.team) != (app.name, app.team):
                raise InvalidError(
                    f"A service {workflow.name!r} is deployed already, by the application {own.app!r} of team "
                    f"{own.team!r}. Rename this workflow, or delete that one: scanflow delete {workflow.name}"
                )
        elif desired is not None:
            raise UnavailableError(f"The service {workflow.name!r} is being deleted. Try again in a moment.")

    def _deployed(
        self, before: DesiredState | None, made: ServiceSpec, recorder: tuple[str, ...], asked: int | None
    ) -> DesiredState:
        if before is None or before.settled == 0:
            generation, had, had_grpc = (
                (1, None, None) if before is None else (before.generation + 1, before.port, before.grpc_port)
            )
            taken = taken_ports(self._folders, made.workflow)
            port = _port(asked, had, taken, "HTTP")
            grpc_port = made.serving.grpc_port
            return DesiredState(
                name=made.workflow,
                port=port,
                grpc_port=None if grpc_port == 0 else _port(grpc_port, had_grpc, {*taken, port}, "gRPC"),
                created=time.time(),
                generation=generation,
                definition=made.numbered(generation),
                recorder=recorder,
                program=self._program,
            )
        if asked not in {None, before.port}:
            raise UsageError(
                f"The service {before.name!r} listens on port {before.port}, which its callers know; it cannot move to "
                f"{asked}. Delete it first: scanflow delete {before.name}"
            )
        changed = before.redeployed(made)
        return changed.model_copy(update={"recorder": recorder, "program": self._program})

    def _recorder(self, folder: ServiceFolder, app: Application, serving: Serving) -> tuple[str, ...]:
        if serving.record <= 0 or app.tracker is None or self._log_predictions is None:
            return ()
        given = {
            "home": str(self._home.path),
            "app": app.name,
            "team": app.team,
            "tracker_uri": app.tracker.uri or self._settings.tracker_uri,
            "service": folder.path.name,
        }
        module = "scanflow.backends.recorder"
        return (sys.executable, "-m", module, str(folder.recorded), self._log_predictions, json.dumps(given))

    # Looking

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:  # noqa: ARG002  its folder has them
        """Return all services, by name, as they stand. Nothing is started by that."""
        found = []
        for name in self._folders.names():
            try:
                found.append(self._record(self._folders.service(name)))
            except NotFoundError:
                continue  # deleted while we looked
        return found

    def service(self, name: str) -> ServiceRecord:
        """Return one service; its supervisor is started if there is none.

        Raises:
            NotFoundError: there is none of that name.
        """
        folder = self._watched(name)
        state = read_observed(folder)
        explanation = None if state is None else state.explanation
        return self._record(folder).model_copy(update={"explanation": explanation})

    def _watched(self, name: str) -> ServiceFolder:
        """Return the folder of a service that has a supervisor by now, which has reported."""
        folder = self._folder(name)
        desired = read_desired(folder)
        if desired is not None and not desired.hopeless and rollout.ensure_supervisor(folder):
            rollout.wait_until_reported(folder)
        return folder

    def logs(self, name: str, instance: str | None = None) -> FileLogs:
        """Return a reader of what the instances, or one of them, wrote; ``supervisor`` is one when named.

        Raises:
            NotFoundError: there is no such service or instance.
        """
        return FileLogs(lambda: (self._log_files(name, instance), False))

    def _log_files(self, name: str, instance: str | None) -> list[tuple[str, Path]]:
        folder = self._folder(name)
        if instance == "supervisor":
            return [("supervisor", folder.log)]
        found = dict(newest(folder))
        if instance is not None and instance not in found:
            raise NotFoundError(f"{name!r} has no instance {instance!r}.{did_you_mean(instance, found)}")
        chosen = found if instance is None else {instance: found[instance]}
        return [(one, path / log) for one, path in chosen.items() for log in ("stdout.log", "stderr.log")]

    def client(self, name: str) -> None:
        """Return nothing: callers connect to the address in the service's record."""

    # Changing

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = lambda _: None
    ) -> ServiceRecord:
        folder = self._folder(name)
        if change.backup:
            service_transitions.check_backup(name, change.backup, self.services())
        files = None
        if change.model is not None:
            observe(Progress(service=name, text=f"fetching {change.model}"))
            files = self._fetch(change.model)

        def changed(found: DesiredState | None) -> DesiredState:
            stored = service_transitions.changeable(found, name)
            return service_transitions.applied(stored, change, files, if_there(self._recall), self._builder.complete)

        return self._change(folder, changed, key, observe)

    def _change(
        self,
        folder: ServiceFolder,
        make: Callable[[DesiredState | None], DesiredState],
        key: str | None,
        observe: ServiceObserver,
        *,
        inside: AbstractContextManager[None] | None = None,
    ) -> ServiceRecord:
        """Change what is wanted, unless that was asked for with this key before; return it once it is in effect."""
        watcher = rollout.Watcher(folder, observe)
        with inside or nullcontext():
            after = change_stored(folder, once(key, make))
        assert after is not None
        record = rollout.wait_until_settled(folder, after.wanted_with(key), watcher, self._timeout_s)
        keep_shapes(after.definition, self._remember, observe)
        return record

    def reconcile(self, _record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:  # noqa: ARG002
        return None

    def delete(self, name: str, *, observe: ServiceObserver = lambda _: None, timeout_s: float = 120.0) -> None:
        """End a service, and remove all that there is of it.

        Raises:
            UsageError: another service has it for its backup.
        """
        folder = self._folder(name)
        for other in self.services():
            if other.backup == name:
                raise UsageError(
                    f"{name!r} is the backup of {other.name!r}. Delete that first: scanflow delete {other.name}"
                )
        watcher = rollout.Watcher(folder, observe)
        change_stored(folder, lambda found: None if found is None else found.model_copy(update={"deleted": True}))
        rollout.wait_until_gone(folder, watcher, timeout_s)
        shutil.rmtree(folder.path, ignore_errors=True)

    def _folder(self, name: str) -> ServiceFolder:
        folder = self._folders.service(name)
        if not folder.desired.exists():
            names = self._folders.names()
            if not names:
                raise NotFoundError("There is no service yet. Start one: scanflow deploy app.py")
            raise NotFoundError(f"There is no service {name!r}.{did_you_mean(name, names)}")
        return folder

    def _record(self, folder: ServiceFolder) -> ServiceRecord:
        desired = read_desired(folder)
        if desired is None:
            raise NotFoundError(f"There is no service {folder.path.name!r}.")
        state = read_observed(folder)
        if state is None or (not desired.settled and state.record.generation < desired.generation):
            # Nothing that was seen before holds of the first deployment, or of another try at it.
            return record_of(desired, folder, count=desired.definition.shape.instances)
        record = state.record
        if not is_current(folder, state) and not is_supervised(folder) and not desired.hopeless:
            return record.model_copy(update={"state": "unsupervised"})
        return record


def _port(asked: int | None, had: int | None, taken: set[int], what: str) -> int:
    """Return the port a service had, if it may keep that, or a free one."""
    if had and asked in {None, had}:
        return had
    return choose_port(asked, host="127.0.0.1", taken=taken, what=what)
