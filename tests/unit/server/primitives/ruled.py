"""A backend without processes that keeps the real one's rules: what it refuses is refused, and the rest is at once."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.local.services import changes
from scanflow.backends.local.services.definition import Definition, nodes_of
from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.local.services.report import record_of
from scanflow.backends.local.services.stored import Stored
from scanflow.backends.service_records import Explanation, Judgement, ServiceObserver, ServiceRecord, Shape
from scanflow.backends.shapes import changed_shape, shape_of
from scanflow.errors import NotFoundError
from scanflow.wire import ModelFiles, Revision

__all__ = ["KilledError", "Ruled"]


class KilledError(BaseException):
    """The process is killed at this instant."""


class Ruled:
    """See :class:`~scanflow.deployer.services.ServiceBackend`."""

    def __init__(self, folder: Path) -> None:
        self.folders = ServicesHome(folder)
        self.stored: dict[str, Stored] = {}
        self.aliases: dict[str, int] = {"champion": 1, "challenger": 2}
        self.killed_after_next = False

    def fetch(self, uri: str) -> ModelFiles:
        name, _, version = uri.removeprefix("models:/").replace("@", "/@").partition("/")
        number = self.aliases[version[1:]] if version.startswith("@") else int(version)
        return ModelFiles(name=name, version=number, path="")

    def check(self, app: Application, workflow: Workflow) -> None:
        """Let all pass."""

    def deploy(
        self,
        app: Application,
        workflow: Workflow,
        *,
        source: Path | None,  # noqa: ARG002
        shape: Shape | None,
        port: int | None,
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        definition = Definition(
            app=app.name,
            team=app.team,
            workflow=workflow.name,
            app_dir=".",
            deployment=1,
            serves=1,
            shape=shape or shape_of(workflow),
            revisions=(Revision(id="r1", nodes=nodes_of(app, workflow, self.fetch)),),
            scaling=next((one.scaling for one in workflow.services if one.scaling is not None), None),
            python="python",
        )
        before = self.stored.get(workflow.name)
        if before is None:
            made = Stored(name=workflow.name, port=port or 46700, created=1.0, definition=definition)
            return self._keep(made)
        return self._keep(before.asked(definition, replaces=True))

    def services(self) -> list[ServiceRecord]:
        return [self.service(name) for name in sorted(self.stored)]

    def service(self, name: str) -> ServiceRecord:
        stored = self._stored(name)
        return record_of(stored, self.folders.service(name), count=stored.definition.shape.instances)

    def scale(
        self,
        name: str,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        stored = self._stored(name)
        shape = changed_shape(stored.definition.shape, instances=instances, cores=cores, affinity=affinity)
        return self._keep(changes.reshaped(stored, shape, _complete))

    def traffic(
        self,
        name: str,
        model: str,
        *,
        node: str | None,
        weight: float,
        shadow: bool,
        judgement: Judgement | None,
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        files = self.fetch(model)
        share = {"weight": weight, "shadow": shadow, "judgement": judgement}
        return self._keep(changes.tried(self._stored(name), files, node=node, **share))  # type: ignore[arg-type]

    def promote(
        self,
        name: str,
        model: str | None = None,
        *,
        node: str | None = None,
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        if model is None:
            return self._keep(changes.promoted(self._stored(name)))
        return self._keep(changes.swapped(self._stored(name), self.fetch(model), node))

    def rollback(self, name: str, *, observe: ServiceObserver) -> ServiceRecord:  # noqa: ARG002
        return self._keep(changes.rolled_back(self._stored(name), lambda _name, _version: None, _complete))

    def explain(self, name: str) -> Explanation:
        raise NotImplementedError(name)

    def logs(self, name: str, instance: str | None) -> list[tuple[str, Path]]:
        raise NotImplementedError(name, instance)

    def delete(self, name: str, *, observe: ServiceObserver) -> None:  # noqa: ARG002
        del self.stored[self._stored(name).name]
        self._die()

    def _stored(self, name: str) -> Stored:
        if name not in self.stored:
            raise NotFoundError(f"There is no service {name!r}.")
        return self.stored[name]

    def _keep(self, stored: Stored) -> ServiceRecord:
        self.stored[stored.name] = stored.settle()
        self._die()
        return self.service(stored.name)

    def _die(self) -> None:
        if self.killed_after_next:
            self.killed_after_next = False
            raise KilledError


def _complete(_: Definition, shape: Shape) -> Shape:
    return shape
