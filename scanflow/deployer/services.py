"""The embedded deployer's services: the half that is there for as long as somebody deletes it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from scanflow.app.application import Application
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.deployer.asking import AsksServices
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.knowledge import open_knowledge
from scanflow.loading import file_being_loaded
from scanflow.settings import Settings

if TYPE_CHECKING:  # most commands are about runs, and need none of these
    from scanflow.backends.service_records import Explanation, Judgement, ServiceObserver, ServiceRecord, Shape
    from scanflow.knowledge.cached import Models

__all__ = ["EmbeddedServices", "ServiceBackend", "local_services"]

LOG_POLL_S = 0.2
_BLOCK = 65_536


def _unseen(_: object) -> None:
    """Look at no progress."""


class ServiceBackend(Protocol):
    """What serves on this machine. See ``scanflow.backends.local.services``."""

    def check(self, app: Application, workflow: Workflow) -> None:
        """Raise what would fail later."""
        ...

    def deploy(
        self,
        app: Application,
        workflow: Workflow,
        *,
        source: Path | None,
        shape: Shape | None,
        port: int | None,
        observe: ServiceObserver,
    ) -> ServiceRecord:
        """Start a service, or change it to this definition. ``shape`` None: as the definition says."""
        ...

    def services(self) -> list[ServiceRecord]:
        """Return all of them."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one."""
        ...

    def scale(
        self,
        name: str,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        observe: ServiceObserver,
    ) -> ServiceRecord:
        """Cut it anew."""
        ...

    def traffic(
        self,
        name: str,
        model: str,
        *,
        node: str | None,
        weight: float,
        shadow: bool,
        judgement: Judgement | None,
        observe: ServiceObserver,
    ) -> ServiceRecord:
        """Put another version of a model on trial."""
        ...

    def promote(
        self, name: str, model: str | None = None, *, node: str | None = None, observe: ServiceObserver
    ) -> ServiceRecord:
        """Make the version on trial, or this one, the current one."""
        ...

    def rollback(self, name: str, *, observe: ServiceObserver) -> ServiceRecord:
        """Go back to what was there before."""
        ...

    def explain(self, name: str) -> Explanation:
        """Return the last decision on the number of instances."""
        ...

    def logs(self, name: str, instance: str | None) -> list[tuple[str, Path]]:
        """Return whose and which files hold what the instances wrote."""
        ...

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        """End it."""
        ...


def local_services(settings: Settings, models: Models) -> ServiceBackend:
    """Return what serves on this machine, for models of that registry."""
    from scanflow.backends.local.services import LocalServices

    return LocalServices(
        settings,
        fetch=models.fetch,
        remember=lambda name, version, shape: models.remember(name, version, shape.model_dump_json()),
        recall=lambda name, version: _shape(models.recall(name, version)),
        log_predictions="scanflow.deployer.recording:log_predictions",
    )


class EmbeddedServices(AsksServices):
    """Serves online workflows on this machine. See :class:`~scanflow.deployer.port.Deployer` for the contract."""

    def __init__(self, settings: Settings, services: Callable[[Settings, Models], ServiceBackend]) -> None:
        """Work below ``settings.home``; ``services`` makes what does the work, when it is asked for."""
        self._settings = settings
        self._make_services = services

    def deploy(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        port: int | None = None,
        source: Path | None = None,
        observe: ServiceObserver = _unseen,
    ) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.deploy`."""
        refuse_while_loading()
        chosen = online_workflow(app, workflow)
        shape = shape_for(chosen, instances=instances, cores=cores, affinity=affinity)
        return self._services(app).deploy(app, chosen, source=source, shape=shape, port=port, observe=observe)

    def services(self) -> list[ServiceRecord]:
        """See :meth:`~scanflow.deployer.port.Deployer.services`."""
        return self._services().services()

    def service(self, name: str) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.service`."""
        return self._services().service(name)

    def scale(
        self,
        name: str,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        observe: ServiceObserver = _unseen,
    ) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.scale`."""
        if instances is None and cores is None and affinity is None:
            raise UsageError("Nothing was given to change. Say how many instances, or their cores, or their affinity.")
        return self._services(name=name).scale(
            name, instances=instances, cores=cores, affinity=affinity, observe=observe
        )

    def traffic(
        self,
        name: str,
        model: str,
        *,
        node: str | None = None,
        weight: float = 0.0,
        shadow: bool = False,
        judgement: Judgement | None = None,
        observe: ServiceObserver = _unseen,
    ) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.traffic`."""
        if not 0 <= weight <= 1:
            raise InvalidError(f"The weight {weight:g} is no share of the requests. Write one from 0 to 1.")
        return self._services(name=name).traffic(
            name, model, node=node, weight=weight, shadow=shadow, judgement=judgement, observe=observe
        )

    def promote(
        self, name: str, model: str | None = None, *, node: str | None = None, observe: ServiceObserver = _unseen
    ) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.promote`."""
        return self._services(name=name).promote(name, model, node=node, observe=observe)

    def rollback(self, name: str, *, observe: ServiceObserver = _unseen) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.rollback`."""
        return self._services(name=name).rollback(name, observe=observe)

    def explain(self, name: str) -> Explanation:
        """See :meth:`~scanflow.deployer.port.Deployer.explain`."""
        return self._services().explain(name)

    def service_logs(
        self, name: str, *, instance: str | None = None, follow: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        """See :meth:`~scanflow.deployer.port.Deployer.service_logs`."""
        backend = self._services()
        positions: dict[Path, int] = {}
        while True:
            try:
                files = backend.logs(name, instance)
            except NotFoundError:
                if not positions:
                    raise
                return  # it was deleted while we were looking
            for whose, path in files:
                for block in _news(path, positions):
                    yield whose, block
            if not follow:
                return
            time.sleep(LOG_POLL_S)

    def service_log_files(self, name: str, *, instance: str | None = None) -> list[tuple[str, Path]]:
        """Return whose words and the files that :meth:`service_logs` reads; they may not exist yet."""
        return self._services().logs(name, instance)

    def delete(self, name: str, *, observe: ServiceObserver = _unseen) -> None:
        """See :meth:`~scanflow.deployer.port.Deployer.delete`."""
        self._services().delete(name, observe=observe)

    def _services(self, app: Application | None = None, *, name: str | None = None) -> ServiceBackend:
        """Return what serves, for models of the registry that the application, or the service of that name, uses."""
        home = self._settings.home.expanduser().absolute()
        if app is not None:
            uri = None if app.tracker is None else app.tracker.uri
        else:
            uri = None if name is None else _tracker_of(home, name)
        uri = uri or self._settings.tracker_uri
        return self._make_services(self._settings, _models(home, uri, live=name is not None))


def online_workflow(app: Application, name: str | None) -> Workflow:
    """Return the workflow of that name, or the only online one.

    Raises:
        NotFoundError: there is none of that name, or none was named and there is not exactly one.
        UsageError: it is run, not served.
    """
    online = [workflow for workflow in app.workflows if workflow.type == "online"]
    chosen = online[0] if name is None and len(online) == 1 else app.workflow(name)
    if chosen.type != "online":
        raise UsageError(
            f"The workflow {chosen.name!r} is of type {chosen.type!r}: it runs to its end. Run it: scanflow run"
        )
    return chosen


def shape_for(
    workflow: Workflow, *, instances: int | None, cores: float | None, affinity: AffinityMode | None
) -> Shape | None:
    """Return what the workflow asks for with what is given changed; None: nothing is given."""
    if instances is None and cores is None and affinity is None:
        return None
    from scanflow.backends.shapes import changed_shape, shape_of

    return changed_shape(shape_of(workflow), instances=instances, cores=cores, affinity=affinity)


def refuse_while_loading() -> None:
    """Refuse to run from a file that is being loaded.

    A file that runs a workflow at its top level would run another each time a step of it loads that file.
    """
    if (path := file_being_loaded()) is not None:
        raise UsageError(
            f"{path.name} runs a workflow while it is only being loaded. Put that below: if __name__ == '__main__':"
        )


def _models(home: Path, uri: str | None, *, live: bool) -> Models:
    """Return the registry's models; ``live``: for a change of a service that answers callers meanwhile."""
    if live and "mlflow" not in sys.modules:
        from scanflow.knowledge.aside import AsideModels

        return AsideModels(home, uri)
    from scanflow.knowledge.cached import ModelCache

    return ModelCache(home / "models", lambda: open_knowledge(home, uri))


def _tracker_of(home: Path, name: str) -> str | None:
    """Return the tracker of the application that a service was deployed from, if it named one."""
    from scanflow.backends.local.services.layout import ServicesHome
    from scanflow.backends.local.services.stored import read_stored

    stored = read_stored(ServicesHome(home / "services").service(name))
    return None if stored is None else stored.definition.tracker_uri


def _news(path: Path, positions: dict[Path, int]) -> Iterator[bytes]:
    """Yield what was written since the last look."""
    place = positions.setdefault(path, 0)
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(place)
        while block := file.read(_BLOCK):
            positions[path] += len(block)
            yield block


def _shape(text: str | None) -> Shape | None:
    """Return the shape that was remembered; None also where somebody else has written the tag."""
    from scanflow.backends.service_records import Shape

    try:
        return None if text is None else Shape.model_validate_json(text)
    except ValueError:
        return None
