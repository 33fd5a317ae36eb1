"""The backend of services on this machine. It keeps no open files or connections: any process can manage any
service."""

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
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.instance_shapes import keep_shapes, suppress_registry_errors
from scanflow.backends.local.layout import Home
from scanflow.backends.local.services.control import supervisor_control
from scanflow.backends.local.services.service_layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.spec.builder import ServiceSpecBuilder, plan_online
from scanflow.backends.local.services.state.desired import list_used_ports, read_desired, update_desired
from scanflow.backends.local.services.state.observed import is_current, is_supervised, read_observed
from scanflow.backends.local.services.supervisor.attempts import list_newest_attempts
from scanflow.backends.local.services.supervisor.service_report import build_record
from scanflow.backends.local.services.version_fit import describe_free_memory, fit_versions
from scanflow.backends.log_files import FileLogs
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_desired import DesiredState, make_idempotent
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord, Shape
from scanflow.backends.service_spec import Fetch, ServiceSpec
from scanflow.backends.shapes import apply_sizing, compute_shape
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError, did_you_mean
from scanflow.files.private import create_private_folder, write_private
from scanflow.processes.ports import choose_port
from scanflow.processes.shared_files import hold_lock
from scanflow.settings import Settings
from scanflow.text.masking import mask_place

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
        """Create the backend.

        ``log_predictions``: ``module:function`` that uploads a file of predictions to the tracker, called by the
        recorder as ``function(home=…, tracker_uri=…, app=…, team=…, service=…, file=…, metrics=…, tags=…)``. None: no
        predictions are recorded. ``timeout_s``: longest wait for a change.
        """
        self._settings = settings
        self._home = Home(settings.home.expanduser().absolute())
        self._folders = ServicesHome(self._home.path / "services")
        self._remember, self._recall, self._fetch = remember, recall, fetch
        self._log_predictions, self._program, self._timeout_s = log_predictions, program, timeout_s
        self._devices = HomeDevices(self._home.path)
        self._builder = ServiceSpecBuilder(self._home, self._folders, fetch, self._devices, settings=settings)

    def check(self, app: Application, workflow: Workflow) -> None:
        """Raise errors that would occur later: unsupported fields, missing files, too many cores."""
        self._builder.check(app, workflow, None)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        """Check a workflow, and return the placement of its instances beside the other services."""
        self.check(app, workflow)
        planned = plan_online(self._home.path, workflow)
        folder = self._folders.service(workflow.name)
        notes = describe_free_memory(self._devices, folder, compute_shape(workflow))
        return planned.model_copy(update={"notes": tuple(notes)})

    def deploy(
        self, deployment: Deployment, *, key: str | None = None, observe: ServiceObserver = lambda _: None
    ) -> ServiceRecord:
        """Start a service or change its definition; return it once the change is in effect.

        Raises:
            UsageError: the change failed; the previous definition is served on.
            UnavailableError: it takes too long; it continues in the background.
        """
        app, workflow, sizing = deployment.app, deployment.online, deployment.sizing
        shape = None if sizing is None else apply_sizing(compute_shape(workflow), sizing)
        self._builder.check(app, workflow, shape)
        folder = self._folders.service(workflow.name)
        self._check_owner(folder, app, workflow)

        def tell(text: str) -> None:
            observe(Progress(service=workflow.name, text=text))

        spec = self._builder.build_spec(app, workflow, source=deployment.source, shape=shape, tell=tell)
        recorder = self._build_recorder(folder, app, spec.serving)

        def build_desired(before: DesiredState | None) -> DesiredState:
            after = self._build_desired(before, spec, recorder, deployment.port or spec.serving.port)
            if before is not None and (dropped := before.describe_dropped_canary(after)) is not None:
                tell(dropped)
            return after

        return self._change(folder, build_desired, key, observe, inside=hold_lock(self._folders.lock))

    def _check_owner(self, folder: ServiceFolder, app: Application, workflow: Workflow) -> None:
        desired = read_desired(folder)
        if desired is not None and not desired.deleted:
            owner = desired.definition
            if (owner.app, owner.team) != (app.name, app.team):
                raise InvalidError(
                    f"A service {workflow.name!r} is already deployed, by the application {owner.app!r} of team "
                    f"{owner.team!r}. Rename this workflow, or delete that service: scanflow delete {workflow.name}"
                )
        elif desired is not None:
            raise UnavailableError(f"The service {workflow.name!r} is being deleted. Try again in a moment.")

    def _build_desired(
        self, previous: DesiredState | None, spec: ServiceSpec, recorder: tuple[str, ...], requested_port: int | None
    ) -> DesiredState:
        if previous is None or previous.settled == 0:
            generation, previous_port, previous_grpc_port = (
                (1, None, None) if previous is None else (previous.generation + 1, previous.port, previous.grpc_port)
            )
            taken = list_used_ports(self._folders, spec.workflow)
            port = _port(requested_port, previous_port, taken, "HTTP")
            grpc_port = spec.serving.grpc_port
            return DesiredState(
                name=spec.workflow,
                port=port,
                grpc_port=None if grpc_port == 0 else _port(grpc_port, previous_grpc_port, {*taken, port}, "gRPC"),
                created=time.time(),
                generation=generation,
                definition=spec.with_generation(generation),
                recorder=recorder,
                program=self._program,
            )
        if requested_port not in {None, previous.port}:
            raise UsageError(
                f"The service {previous.name!r} listens on port {previous.port}, and its port cannot be changed to "
                f"{requested_port} while it is deployed. Delete it first: scanflow delete {previous.name}"
            )
        if (spec.tls is None) != (previous.definition.tls is None):
            now, then = ("without TLS", "with TLS") if previous.definition.tls is None else ("with TLS", "without TLS")
            raise UsageError(
                f"The service {previous.name!r} is deployed {now}, and cannot be served {then} while it runs, "
                f"since its clients would fail. Delete it first: scanflow delete {previous.name}"
            )
        state = previous.redeploy(spec)
        return state.model_copy(update={"recorder": recorder, "program": self._program})

    def _build_recorder(self, folder: ServiceFolder, app: Application, serving: Serving) -> tuple[str, ...]:
        if serving.record <= 0 or app.tracker is None or self._log_predictions is None:
            return ()
        options = {
            "home": str(self._home.path),
            "app": app.name,
            "team": app.team,
            "tracker_uri": _keep_tracker(folder, app.tracker.uri or self._settings.tracker_uri),
            "service": folder.path.name,
        }
        module = "scanflow.backends.recorder"
        return (sys.executable, "-m", module, str(folder.recorded), self._log_predictions, json.dumps(options))

    # Looking

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:  # noqa: ARG002  its folder has them
        """Return all services, by name. Starts nothing."""
        records = []
        names = self._folders.list_names()
        supervisor_control.refresh_reports(map(self._folders.service, names))
        for name in names:
            try:
                records.append(self._record(self._folders.service(name)))
            except NotFoundError:
                continue  # deleted meanwhile
        return records

    def service(self, name: str) -> ServiceRecord:
        """Return one service; starts its supervisor if there is none.

        Raises:
            NotFoundError: there is none of that name.
        """
        folder = self._ensure_watched(name)
        supervisor_control.refresh_reports([folder])
        state = read_observed(folder)
        explanation = None if state is None else state.explanation
        return self._record(folder).model_copy(update={"explanation": explanation})

    def _ensure_watched(self, name: str) -> ServiceFolder:
        """Return the folder of a service, once it has a supervisor that has reported."""
        folder = self._get_folder(name)
        desired = read_desired(folder)
        if desired is not None and not desired.hopeless and supervisor_control.ensure_supervisor(folder):
            supervisor_control.wait_until_reported(folder)
        return folder

    def logs(self, name: str, instance: str | None = None) -> FileLogs:
        """Return a reader of the logs of all instances, or of one; ``supervisor`` names the supervisor's.

        Raises:
            NotFoundError: there is no such service or instance.
        """
        return FileLogs(lambda: (self._log_files(name, instance), False))

    def _log_files(self, name: str, instance: str | None) -> list[tuple[str, Path]]:
        folder = self._get_folder(name)
        if instance == "supervisor":
            return [("supervisor", folder.log)]
        attempts = dict(list_newest_attempts(folder))
        if instance is not None and instance not in attempts:
            raise NotFoundError(f"{name!r} has no instance {instance!r}.{did_you_mean(instance, attempts)}")
        selected = attempts if instance is None else {instance: attempts[instance]}
        return [
            (instance_name, path / log)
            for instance_name, path in selected.items()
            for log in ("stdout.log", "stderr.log")
        ]

    def client(self, name: str) -> None:
        """Return nothing: callers connect to the address in the service's record."""

    # Changing

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = lambda _: None
    ) -> ServiceRecord:
        folder = self._get_folder(name)
        if change.backup:
            service_transitions.check_backup(name, change.backup, self.services())
        files = None
        if change.model is not None:
            observe(Progress(service=name, text=f"fetching {change.model}"))
            files = self._fetch(change.model)
        before = read_desired(folder)
        if before is not None and before.definition.shape.gpu:
            supervisor_control.refresh_reports([folder])  # what the memory of its GPUs is needed for

        def apply_change(stored: DesiredState | None) -> DesiredState:
            desired = service_transitions.require_changeable(stored, name)
            changed = service_transitions.apply_change(
                desired, change, files, suppress_registry_errors(self._recall), self._builder.complete_shape
            )
            fitting, note = fit_versions(self._devices, folder, desired, changed)
            if note:
                observe(Progress(service=name, text=f"GPU memory: {note}"))
            return fitting

        return self._change(folder, apply_change, key, observe)

    def _change(
        self,
        folder: ServiceFolder,
        make: Callable[[DesiredState | None], DesiredState],
        key: str | None,
        observe: ServiceObserver,
        *,
        inside: AbstractContextManager[None] | None = None,
    ) -> ServiceRecord:
        """Change the desired state, unless the key was used before; return the service once it is in effect."""
        watcher = supervisor_control.Watcher(folder, observe)
        with inside or nullcontext():
            after = update_desired(folder, make_idempotent(key, make))
        assert after is not None
        record = supervisor_control.wait_until_settled(folder, after.get_generation(key), watcher, self._timeout_s)
        keep_shapes(after.definition, self._remember, observe)
        return record

    def reconcile(self, _record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:  # noqa: ARG002
        return None

    def delete(self, name: str, *, observe: ServiceObserver = lambda _: None) -> None:
        """Stop a service, and delete its folder.

        Raises:
            UsageError: it is the backup of another service.
        """
        folder = self._get_folder(name)
        for other in self.services():
            if other.backup == name:
                raise UsageError(
                    f"{name!r} is the backup of {other.name!r}. Delete that service first: scanflow delete {other.name}"
                )
        watcher = supervisor_control.Watcher(folder, observe)
        update_desired(
            folder, lambda desired: None if desired is None else desired.model_copy(update={"deleted": True})
        )
        supervisor_control.wait_until_gone(folder, watcher)
        shutil.rmtree(folder.path, ignore_errors=True)

    def _get_folder(self, name: str) -> ServiceFolder:
        folder = self._folders.service(name)
        if not folder.desired.exists():
            names = self._folders.list_names()
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
            # An older observed state is not valid for the first deployment, or a retry of it.
            return build_record(desired, folder, count=desired.definition.shape.instances)
        record = state.record
        if not is_current(folder, state) and not is_supervised(folder) and not desired.hopeless:
            return record.model_copy(update={"state": "unsupervised"})
        return record


def _port(requested: int | None, previous: int | None, taken: set[int], what: str) -> int:
    """Return the service's previous port, if it can keep it, or a free one."""
    if previous and requested in {None, previous}:
        return previous
    return choose_port(requested, host="127.0.0.1", taken=taken, what=what)


def _keep_tracker(folder: ServiceFolder, uri: str | None) -> str | None:
    """Return a tracker's address for an argument, which every user of the machine can read: of one that holds a
    password, a reference to a file."""
    if uri is None or mask_place(uri) == uri:
        return uri
    create_private_folder(folder.path)
    write_private(folder.path / "tracker", uri)
    return f"file:{folder.path.absolute() / 'tracker'}"
