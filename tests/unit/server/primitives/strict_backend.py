"""A backend without processes that keeps the real one's rules: what it refuses is refused, and the rest is at once."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.local.services.supervisor.service_report import build_record
from scanflow.backends.log_reader import LogReader
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import ServiceObserver, ServiceRecord, Shape
from scanflow.backends.service_spec import ServiceSpec, build_nodes
from scanflow.backends.service_transitions import apply_change
from scanflow.backends.shapes import apply_sizing, compute_shape
from scanflow.errors import NotFoundError
from scanflow.instance_messages import ModelFiles, Revision


class KilledError(BaseException):
    """The process is killed at this instant."""


class Ruled:
    """See :class:`~scanflow.deployer.services.ServiceBackend`."""

    def __init__(self, folder: Path) -> None:
        self.folders = ServicesHome(folder)
        self.stored: dict[str, DesiredState] = {}
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
        deployment: Deployment,
        *,
        key: str | None,  # noqa: ARG002
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        app, workflow, sizing = deployment.app, deployment.online, deployment.sizing
        definition = ServiceSpec(
            app=app.name,
            team=app.team,
            workflow=workflow.name,
            app_dir=".",
            deployment=1,
            serves=1,
            shape=compute_shape(workflow) if sizing is None else apply_sizing(compute_shape(workflow), sizing),
            revisions=(Revision(id="r1", nodes=build_nodes(app, workflow, self.fetch)),),
            scaling=next((service.scaling for service in workflow.services if service.scaling is not None), None),
            python="python",
        )
        before = self.stored.get(workflow.name)
        if before is None:
            state = DesiredState(name=workflow.name, port=deployment.port or 46700, created=1.0, definition=definition)
            return self._keep(state)
        return self._keep(before.request_definition(definition, replaces=True))

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:  # noqa: ARG002
        return [self.service(name) for name in sorted(self.stored)]

    def reconcile(self, _record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:  # noqa: ARG002
        return None

    def service(self, name: str) -> ServiceRecord:
        stored = self._get_state(name)
        return build_record(stored, self.folders.service(name), count=stored.definition.shape.instances)

    def change(
        self,
        name: str,
        change: ServiceChange,
        *,
        key: str | None,  # noqa: ARG002
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        files = None if change.model is None else self.fetch(change.model)
        return self._keep(apply_change(self._get_state(name), change, files, lambda _name, _version: None, _complete))

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        raise NotImplementedError(workflow.name)

    def client(self, name: str) -> None:
        raise NotImplementedError(name)

    def logs(self, name: str, instance: str | None = None) -> LogReader:
        raise NotImplementedError(name, instance)

    def delete(self, name: str, *, observe: ServiceObserver) -> None:  # noqa: ARG002
        del self.stored[self._get_state(name).name]
        self._die()

    def _get_state(self, name: str) -> DesiredState:
        if name not in self.stored:
            raise NotFoundError(f"There is no service {name!r}.")
        return self.stored[name]

    def _keep(self, stored: DesiredState) -> ServiceRecord:
        self.stored[stored.name] = stored.settle()
        self._die()
        return self.service(stored.name)

    def _die(self) -> None:
        if self.killed_after_next:
            self.killed_after_next = False
            raise KilledError


def _complete(_: ServiceSpec, shape: Shape) -> Shape:
    return shape
