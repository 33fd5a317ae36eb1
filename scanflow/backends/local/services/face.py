"""Services on this machine, as a deployer asks for them. It holds nothing open: any process may ask for any service."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.resources import AffinityMode
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.local.layout import Home
from scanflow.backends.local.services import changes
from scanflow.backends.local.services.attempts import newest
from scanflow.backends.local.services.blueprint import Blueprint
from scanflow.backends.local.services.definition import Definition, Fetch
from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.ports import choose_port, taken_ports
from scanflow.backends.local.services.report import record_of
from scanflow.backends.local.services.settling import Watcher, wait_until_gone, wait_until_settled, wait_until_told
from scanflow.backends.local.services.start import ensure_supervisor
from scanflow.backends.local.services.state import is_current, read_state
from scanflow.backends.local.services.stored import Stored, change, held, read_stored
from scanflow.backends.service_records import (
    Explanation,
    Judgement,
    Progress,
    ServiceObserver,
    ServiceRecord,
    Shape,
)
from scanflow.backends.shapes import changed_shape
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError, UsageError, did_you_mean
from scanflow.settings import Settings

__all__ = ["LocalServices"]

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
        """Work below ``settings.home``.

        Args:
            settings: whose home.
            fetch: downloads the version of a model that a registry address names.
            remember: keeps a shape with a model version.
            recall: returns the shape that was kept.
            log_predictions: ``module:function`` that takes a file of predictions to the tracker, called by the recorder
                as ``function(home=…, tracker_uri=…, app=…, team=…, service=…, file=…, metrics=…, tags=…)``. None: no
                predictions are recorded.
            program: what instances run.
            timeout_s: longest that a change is waited for.
        """
        self._settings = settings
        self._home = Home(settings.home.expanduser().absolute())
        self._folders = ServicesHome(self._home.path / "services")
        self._remember, self._recall, self._fetch = remember, recall, fetch
        self._log_predictions, self._program, self._timeout_s = log_predictions, program, timeout_s
        self._blueprint = Blueprint(self._home, self._folders, fetch)

    def check(self, app: Application, workflow: Workflow, *, shape: Shape | None = None) -> None:
        """Refuse at once what would fail later: a field that cannot be honoured, a missing file, too many cores.

        Raises:
            UsageError: says what it is.
        """
        self._blueprint.check(app, workflow, shape)

    def deploy(
        self,
        app: Application,
        workflow: Workflow,
        *,
        source: Path | None = None,
        shape: Shape | None = None,
        port: int | None = None,
        observe: ServiceObserver = lambda _: None,
        timeout_s: float | None = None,
    ) -> ServiceRecord:
        """Start a service, or change it to this definition; return it once that is in effect.

        Raises:
            UsageError: it cannot be; what served before serves on.
            UnavailableError: it takes too long; it goes on.
        """
        self.check(app, workflow, shape=shape)
        folder = self._folders.service(workflow.name)
        self._check_owner(folder, app, workflow)
        watcher = Watcher(folder, observe)

        def tell(text: str) -> None:
            observe(Progress(service=workflow.name, text=text))

        made = self._blueprint.definition(app, workflow, source=source, shape=shape, tell=tell)
        with held(self._folders.lock):
            after = change(folder, lambda before: self._deployed(before, folder, made, app, workflow, port))
        assert after is not None
        record = wait_until_settled(folder, after.generation, watcher, timeout_s or self._timeout_s)
        self._keep_shapes(after.definition, tell)
        return record

    def _check_owner(self, folder: ServiceFolder, app: Application, workflow: Workflow) -> None:
        stored = read_stored(folder)
        if stored is not None and not stored.deleted:
            own = stored.definition
            if (own.app, own.team) != (app.name, app.team):
                raise InvalidError(
                    f"A service {workflow.name!r} is deployed already, by the application {own.app!r} of team "
                    f"{own.team!r}. Rename this workflow, or delete that one: scanflow delete {workflow.name}"
                )
        elif stored is not None:
            raise UnavailableError(f"The service {workflow.name!r} is being deleted. Try again in a moment.")

    def _deployed(
        self,
        before: Stored | None,
        folder: ServiceFolder,
        made: Definition,
        app: Application,
        workflow: Workflow,
        port: int | None,
    ) -> Stored:
        """Return what is wanted with a deployment in it: of a new service, or of one that is there."""
        serving = workflow.serving or Serving()
        recorder = self._recorder(folder, app, serving)
        if before is None or before.settled == 0:
            taken = taken_ports(self._folders, workflow.name)
            generation = 1 if before is None else before.generation + 1
            if before is None:
                http = choose_port(port or serving.port, host="127.0.0.1", taken=taken, what="HTTP")
                grpc = None
                if serving.grpc_port != 0:
                    grpc = choose_port(serving.grpc_port, host="127.0.0.1", taken={*taken, http}, what="gRPC")
            else:
                http, grpc = before.port, before.grpc_port
            return Stored(
                name=workflow.name,
                port=http,
                grpc_port=grpc,
                created=time.time(),
                generation=generation,
                definition=_numbered(made, generation),
                recorder=recorder,
                program=self._program,
            )
        asked = port or serving.port
        if asked not in {None, before.port}:
            raise UsageError(
                f"The service {before.name!r} listens on port {before.port}, which its callers know; it cannot move to "
                f"{asked}. Delete it first: scanflow delete {before.name}"
            )
        changed = before.asked(_numbered(made, before.generation + 1), replaces=True)
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
        module = "scanflow.backends.local.services.recorder"
        return (sys.executable, "-m", module, str(folder.recorded), self._log_predictions, json.dumps(given))

    # Looking

    def services(self) -> list[ServiceRecord]:
        """Return all services, by name, as they stand. Nothing is started by that."""
        found = []
        for name in self._folders.names():
            try:
                found.append(self._record(self._folders.service(name)))
            except NotFoundError:
                continue  # deleted while we looked
        return found

    def service(self, name: str) -> ServiceRecord:
        """Return one service; if nobody watches it, somebody does from now on.

        Raises:
            NotFoundError: there is none of that name.
        """
        folder = self._folder(name)
        if self.ensure(name):
            wait_until_told(folder)
        return self._record(folder)

    def ensure(self, name: str) -> bool:
        """Make sure that somebody watches a service; say whether nobody did."""
        folder = self._folder(name)
        stored = read_stored(folder)
        return stored is not None and not stored.hopeless and ensure_supervisor(folder)

    def explain(self, name: str) -> Explanation:
        """Return the last decision on the number of instances, with what it was made from."""
        folder = self._folder(name)
        if self.ensure(name):
            wait_until_told(folder)
        state = read_state(folder)
        if state is None or state.explanation is None:
            raise UnavailableError(f"The supervisor of {name!r} has not looked at it yet. Try again in a moment.")
        return state.explanation

    def logs(self, name: str, instance: str | None = None) -> list[tuple[str, Path]]:
        """Return whose and which files hold what the instances wrote; ``supervisor`` is one of them when asked for.

        Raises:
            NotFoundError: there is no such service or instance.
        """
        folder = self._folder(name)
        if instance == "supervisor":
            return [("supervisor", folder.log)]
        found = dict(newest(folder))
        if instance is not None and instance not in found:
            raise NotFoundError(f"{name!r} has no instance {instance!r}.{did_you_mean(instance, found)}")
        chosen = found if instance is None else {instance: found[instance]}
        return [(whose, path / log) for whose, path in chosen.items() for log in ("stdout.log", "stderr.log")]

    # Changing

    def scale(
        self,
        name: str,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        observe: ServiceObserver = lambda _: None,
    ) -> ServiceRecord:
        """Cut a service anew, while it serves: other instances, other cores, another affinity."""

        def reshaped(stored: Stored) -> Stored:
            shape = changed_shape(stored.definition.shape, instances=instances, cores=cores, affinity=affinity)
            return changes.reshaped(stored, shape, self._blueprint.complete)

        return self._changed(name, reshaped, observe)

    def traffic(
        self,
        name: str,
        model: str,
        *,
        node: str | None = None,
        weight: float = 0.0,
        shadow: bool = False,
        judgement: Judgement | None = None,
        observe: ServiceObserver = lambda _: None,
    ) -> ServiceRecord:
        """Give another version of a model a share of the requests, or a copy of each."""
        self._folder(name)
        files = self._fetch(model)
        return self._changed(
            name,
            lambda stored: changes.tried(stored, files, node=node, weight=weight, shadow=shadow, judgement=judgement),
            observe,
        )

    def promote(
        self,
        name: str,
        model: str | None = None,
        *,
        node: str | None = None,
        observe: ServiceObserver = lambda _: None,
    ) -> ServiceRecord:
        """Serve what is on trial, or that version of a model, from now on."""
        self._folder(name)
        if model is None:
            return self._changed(name, changes.promoted, observe)
        files = self._fetch(model)
        return self._changed(name, lambda stored: changes.swapped(stored, files, node), observe)

    def rollback(self, name: str, *, observe: ServiceObserver = lambda _: None) -> ServiceRecord:
        """Take back what is on trial; else return to what was served before, cut as it was then."""
        return self._changed(
            name, lambda stored: changes.rolled_back(stored, self._recalled, self._blueprint.complete), observe
        )

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
        watcher = Watcher(folder, observe)
        change(folder, lambda found: None if found is None else found.model_copy(update={"deleted": True}))
        wait_until_gone(folder, watcher, timeout_s)
        shutil.rmtree(folder.path, ignore_errors=True)

    def _changed(self, name: str, make: Callable[[Stored], Stored], observe: ServiceObserver) -> ServiceRecord:
        folder = self._folder(name)
        watcher = Watcher(folder, observe)

        def changed(found: Stored | None) -> Stored:
            if found is None or found.deleted:
                raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
            if found.hopeless or not found.settled:
                raise UsageError(f"The service {name!r} is not deployed yet. Deploy it first: scanflow deploy")
            return make(found)

        after = change(folder, changed)
        assert after is not None
        record = wait_until_settled(folder, after.generation, watcher, self._timeout_s)
        self._keep_shapes(after.definition, lambda text: observe(Progress(service=name, text=text)))
        return record

    def _recalled(self, model: str, version: int) -> Shape | None:
        try:
            return self._recall(model, version)
        except ScanflowError:
            return None  # the registry is away: the shape that we know ourselves is as good

    def _keep_shapes(self, definition: Definition, tell: Callable[[str], None]) -> None:
        """Keep with each model version how it is served; a registry that does not answer fails no change."""
        for revision in definition.revisions:
            for model in (node.model for node in revision.nodes if node.model is not None):
                try:
                    self._remember(model.name, model.version, definition.shape)
                except ScanflowError as error:
                    tell(f"the shape was not kept with models:/{model.name}/{model.version}: {error}")

    def _folder(self, name: str) -> ServiceFolder:
        folder = self._folders.service(name)
        if not folder.stored.exists():
            names = self._folders.names()
            if not names:
                raise NotFoundError("There is no service yet. Start one: scanflow deploy app.py")
            raise NotFoundError(f"There is no service {name!r}.{did_you_mean(name, names)}")
        return folder

    def _record(self, folder: ServiceFolder) -> ServiceRecord:
        stored = read_stored(folder)
        if stored is None:
            raise NotFoundError(f"There is no service {folder.path.name!r}.")
        state = read_state(folder)
        unseen = stored.definition.shape.instances
        record = record_of(stored, folder, count=unseen) if state is None else state.record
        if not is_current(folder, state) and not stored.hopeless:
            return record.model_copy(update={"state": "unsupervised"})
        return record


def _numbered(made: Definition, generation: int) -> Definition:
    """Return a definition as that of a generation of its own."""
    only = made.settled_on(made.current, generation)
    current = only.revisions[0]
    named = type(current)(id=f"r{generation}", nodes=current.nodes)
    return only.changed(deployment=generation, revisions=(named,))
