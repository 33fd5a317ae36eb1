"""A stand-in for what serves on this machine: it keeps records, and starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import (
    Explanation,
    InstanceRecord,
    Judgement,
    Progress,
    RevisionRecord,
    ServiceObserver,
    ServiceRecord,
    Shape,
)
from scanflow.backends.shapes import changed_shape, shape_of
from scanflow.errors import NotFoundError, UsageError, did_you_mean

__all__ = ["StandIn"]


class StandIn:
    """Says yes to everything, and keeps what it was asked in ``asked``."""

    def __init__(self, folder: Path, url: str = "http://127.0.0.1:9") -> None:
        self.folder = folder
        self.url = url
        self.records: dict[str, ServiceRecord] = {}
        self.asked: list[dict[str, Any]] = []

    def check(self, app: Application, workflow: Workflow) -> None:
        self.asked.append({"check": workflow.name, "app": app.name})

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
        self.asked.append({"deploy": workflow.name, "shape": shape, "port": port})
        wanted = shape or shape_of(workflow)
        for number in range(1, wanted.instances + 1):
            observe(Progress(service=workflow.name, text=f"instance {number} is ready on core {number - 1} (0.9 s)"))
        return self._keep(
            ServiceRecord(
                name=workflow.name,
                app=app.name,
                team=app.team,
                state="ready",
                url=self.url,
                folder=str(self.folder),
                generation=1,
                shape=wanted,
                source=None if source is None else str(source),
                instances=_instances(wanted),
                revisions=(RevisionRecord(id="r1", models={node.name: str(node.model) for node in workflow.services}),),
            )
        )

    def services(self) -> list[ServiceRecord]:
        return [self.records[name] for name in sorted(self.records)]

    def service(self, name: str) -> ServiceRecord:
        if name not in self.records:
            raise NotFoundError(f"There is no service {name!r}.{did_you_mean(name, self.records)}")
        return self.records[name]

    def scale(
        self,
        name: str,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        observe: ServiceObserver,
    ) -> ServiceRecord:
        record = self.service(name)
        shape = changed_shape(record.shape, instances=instances, cores=cores, affinity=affinity)
        observe(Progress(service=name, text="rolling"))
        return self._keep(record.model_copy(update={"shape": shape, "instances": _instances(shape)}))

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
        record = self.service(name)
        self.asked.append({"traffic": model, "node": node, "weight": weight, "shadow": shadow, "judgement": judgement})
        observe(Progress(service=name, text=f"{model} is loaded"))
        canary = RevisionRecord(
            id="r2", models={"cnn": model}, weight=weight, shadow=shadow, role="shadow" if shadow else "canary"
        )
        return self._keep(record.model_copy(update={"revisions": (record.revisions[0], canary)}))

    def promote(
        self,
        name: str,
        model: str | None = None,
        *,
        node: str | None = None,  # noqa: ARG002
        observe: ServiceObserver,  # noqa: ARG002
    ) -> ServiceRecord:
        record = self.service(name)
        if model is None and len(record.revisions) == 1:
            raise UsageError(f"The service {name!r} has no version on trial. Name one: scanflow promote {name} MODEL")
        current = RevisionRecord(id="r3", models={"cnn": model} if model else record.revisions[-1].models)
        return self._keep(record.model_copy(update={"revisions": (current,), "previous": True}))

    def rollback(self, name: str, *, observe: ServiceObserver) -> ServiceRecord:  # noqa: ARG002
        record = self.service(name)
        return self._keep(record.model_copy(update={"revisions": record.revisions[:1]}))

    def explain(self, name: str) -> Explanation:
        self.service(name)
        return Explanation(
            service=name,
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

    def logs(self, name: str, instance: str | None) -> list[tuple[str, Path]]:
        record = self.service(name)
        names = [one.instance for one in record.instances if instance in {None, one.instance}]
        return [(one, self.folder / f"{one}.log") for one in names]

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        observe(Progress(service=name, text="draining"))
        del self.records[self.service(name).name]

    def _keep(self, record: ServiceRecord) -> ServiceRecord:
        self.records[record.name] = record
        return record


def _instances(shape: Shape) -> tuple[InstanceRecord, ...]:
    return tuple(
        InstanceRecord(instance=str(number), state="ready", cpus=(number - 1,))
        for number in range(1, shape.instances + 1)
    )
