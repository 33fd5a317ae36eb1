"""A stand-in for what serves on this machine: it keeps records, and starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import OnlineBackend
from scanflow.backends.local.local import Local
from scanflow.backends.local.services.spec.builder import plan_online
from scanflow.backends.log_files import FileLogs
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import (
    Explanation,
    InstanceRecord,
    Progress,
    RevisionRecord,
    ServiceObserver,
    ServiceRecord,
    Shape,
)
from scanflow.backends.shapes import apply_sizing, compute_shape
from scanflow.errors import NotFoundError, UsageError, did_you_mean
from scanflow.settings import Settings


class Place(Local):
    """This machine for runs, and something else for services."""

    def __init__(self, settings: Settings, online: OnlineBackend) -> None:
        super().__init__(settings, lambda _tracker: pytest.fail("No model was to be fetched."))
        self._online = online

    def online(self, tracker: str | None = None) -> OnlineBackend:  # type: ignore[override]  # noqa: ARG002
        return self._online


EXPLANATION = Explanation(
    service="digits",
    at=0.0,
    metric="rps",
    sample=31.0,
    target=20,
    up=20,
    down=16,
    instances=2,
    wanted=4,
    formula="ceil(2 x 31.0 / 20.0) = 4",
    decision="add 2",
)


class StandIn:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = "http://127.0.0.1:9"
        self.records: dict[str, ServiceRecord] = {}
        self.asked: list[dict[str, Any]] = []

    def check(self, app: Application, workflow: Workflow) -> None:
        self.asked.append({"check": workflow.name, "app": app.name})

    def deploy(
        self,
        deployment: Deployment,
        *,
        key: str | None,  # noqa: ARG002
        observe: ServiceObserver,
    ) -> ServiceRecord:
        app, workflow, sizing = deployment.app, deployment.online, deployment.sizing
        self.asked.append({"deploy": workflow.name, "sizing": sizing, "port": deployment.port})
        wanted = compute_shape(workflow) if sizing is None else apply_sizing(compute_shape(workflow), sizing)
        for number in range(1, wanted.instances + 1):
            observe(Progress(service=workflow.name, text=f"instance {number} is ready on core {number - 1} (0.9 s)"))
        return self._keep(
            ServiceRecord(
                name=workflow.name,
                app=app.name,
                team=app.team,
                state="ready",
                url=self.url,
                generation=1,
                shape=wanted,
                source=None if deployment.source is None else str(deployment.source),
                ready=wanted.instances,
                instances=_instances(wanted),
                revisions=(RevisionRecord(id="r1", models={node.name: str(node.model) for node in workflow.services}),),
            )
        )

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:  # noqa: ARG002
        return [self.records[name] for name in sorted(self.records)]

    def reconcile(self, _record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:  # noqa: ARG002
        return None

    def service(self, name: str) -> ServiceRecord:
        if name not in self.records:
            raise NotFoundError(f"There is no service {name!r}.{did_you_mean(name, self.records)}")
        return self.records[name].model_copy(update={"explanation": EXPLANATION})

    def change(
        self,
        name: str,
        change: ServiceChange,
        *,
        key: str | None,  # noqa: ARG002
        observe: ServiceObserver,
    ) -> ServiceRecord:
        record = self.service(name)
        self.asked.append({"change": change})
        if change.rollback:
            return self._keep(record.model_copy(update={"revisions": record.revisions[:1]}))
        if change.sizing is not None:
            shape = apply_sizing(record.shape, change.sizing)
            observe(Progress(service=name, text="rolling"))
            return self._keep(record.model_copy(update={"shape": shape, "instances": _instances(shape)}))
        if change.is_canary:
            observe(Progress(service=name, text=f"{change.model} is loaded"))
            canary = RevisionRecord(
                id="r2",
                models={"cnn": str(change.model)},
                weight=change.weight or 0.0,
                shadow=bool(change.shadow),
                role="shadow" if change.shadow else "canary",
            )
            return self._keep(record.model_copy(update={"revisions": (record.revisions[0], canary)}))
        if change.promote and len(record.revisions) == 1:
            raise UsageError(f"The service {name!r} has no canary. Name one: scanflow promote {name} MODEL")
        models = {"cnn": change.model} if change.model else record.revisions[-1].models
        current = RevisionRecord(id="r3", models=models)
        return self._keep(record.model_copy(update={"revisions": (current,), "previous": True}))

    def plan(self, app: Application, workflow: Workflow) -> Plan:  # noqa: ARG002
        return plan_online(self.folder, workflow)

    def client(self, name: str) -> None:
        """Services are at their address, where nobody listens."""

    def logs(self, name: str, instance: str | None = None) -> FileLogs:
        def look() -> tuple[list[tuple[str, Path]], bool]:
            record = self.service(name)
            names = [entry.instance for entry in record.instances if instance in {None, entry.instance}]
            return [(label, self.folder / f"{label}.log") for label in names], False

        return FileLogs(look)

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        observe(Progress(service=name, text="draining"))
        del self.records[self.service(name).name]

    def _keep(self, record: ServiceRecord) -> ServiceRecord:
        self.records[record.name] = record
        return record


def _instances(shape: Shape) -> tuple[InstanceRecord, ...]:
    return tuple(
        InstanceRecord(instance=str(number), state="ready").with_details(cpus=[number - 1])
        for number in range(1, shape.instances + 1)
    )
