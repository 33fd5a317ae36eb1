"""Online workflows in this process: requests are answered in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, quantiles
from time import perf_counter
from typing import Any

from scanflow.app.application import Application
from scanflow.app.plan import Plan, PlannedInstance, plan_graph
from scanflow.app.scaling import Scaling
from scanflow.app.secrets import iterate_secrets
from scanflow.app.workflow import Workflow
from scanflow.arrays import make_array
from scanflow.backends.gpu_scaling import check_gpu_scaling
from scanflow.backends.memory.memory_graph import InferenceGraph, check_files
from scanflow.backends.memory.memory_logs import Log, MemoryLogs
from scanflow.backends.service_change import CanaryPolicy, Deployment, ServiceChange
from scanflow.backends.service_records import (
    InstanceRecord,
    Progress,
    RevisionRecord,
    ServiceObserver,
    ServiceRecord,
    Shape,
)
from scanflow.backends.service_spec import find_scaling, refuse_clients
from scanflow.backends.shapes import apply_sizing, compute_shape
from scanflow.errors import (
    InvalidError,
    NotFoundError,
    ScanflowError,
    ServiceFailedError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from scanflow.files.closing import Closing


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    outputs: Mapping[str, Any]
    instance: str
    revision: str


@dataclass(slots=True)
class _Revision:
    id: str
    graph: InferenceGraph
    weight: float = 1.0
    shadow: bool = False
    credit: float = 0.0
    seconds: list[float] = field(default_factory=list)
    errors: int = 0

    def record(self, role: Any) -> RevisionRecord:
        return RevisionRecord(
            id=self.id,
            models=self.graph.versions,
            weight=self.weight,
            shadow=self.shadow,
            role=role,
            requests=len(self.seconds),
            errors=self.errors,
            p50_s=_compute_quantile(self.seconds, 50),
            p95_s=_compute_quantile(self.seconds, 95),
        )

    def compute_metric(self, name: str) -> float:
        if name == "errors":
            return self.errors / max(1, len(self.seconds))
        return fmean(self.seconds) if name == "mean" else _compute_quantile(self.seconds, 95) or 0.0


@dataclass(frozen=True, slots=True)
class _Definition:
    app: Application
    workflow: Workflow
    source: str | None
    shape: Shape
    scaling: Scaling | None
    versions: Mapping[str, str]


@dataclass(slots=True)
class _Service:
    definition: _Definition
    created: float
    current: _Revision
    canary: _Revision | None = None
    policy: CanaryPolicy | None = None
    previous: _Definition | None = None
    generation: int = 1
    answered: int = 0
    keys: set[str] = field(default_factory=set)
    logs: dict[str, Log] = field(default_factory=dict)


class MemoryOnline:
    """See :class:`~scanflow.backends.backend_port.OnlineBackend`. Nothing scales by itself; instances share their
    objects."""

    def __init__(self, models: Mapping[str, Any], *, clock: Callable[[], float]) -> None:
        self._models, self._clock = models, clock
        self._services: dict[str, _Service] = {}

    def check(self, app: Application, workflow: Workflow) -> None:
        if workflow.type != "online":
            raise UsageError(f"Workflow {workflow.name!r} is of type {workflow.type!r}: it is run, not served.")
        if (secret := next(iterate_secrets([workflow.serving, workflow.services]), None)) is not None:
            raise UnsupportedError(
                f"Workflow {workflow.name!r}: the backend 'memory' does not support {secret!r}: it starts no "
                "processes, so that what a service prints could not be masked. Use another backend."
            )
        refuse_clients(workflow, "memory")
        _check_scaling(workflow.name, find_scaling(workflow), compute_shape(workflow))
        check_files(app, workflow)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        self.check(app, workflow)
        shape = compute_shape(workflow)
        instances = tuple(
            PlannedInstance(name=name, cores=shape.cores or 1.0, cpus=(), memory_nodes=(), threads=1)
            for name in _list_instances(shape)
        )
        return plan_graph(
            workflow, instances, memory_bytes=shape.memory_bytes, machine_cores=1, machine_memory_bytes=2**63 - 1
        )

    def deploy(self, deployment: Deployment, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        app, workflow = deployment.app, deployment.online
        self.check(app, workflow)
        existing = self._services.get(workflow.name)
        if existing is not None and (existing.definition.app.name, existing.definition.app.team) != (
            app.name,
            app.team,
        ):
            owner = existing.definition.app
            raise InvalidError(
                f"A service {workflow.name!r} is already deployed, by the application {owner.name!r} of team "
                f"{owner.team!r}. Rename this workflow, or delete that service."
            )
        if existing is not None and key in existing.keys:
            return self._record(existing)
        shape = compute_shape(workflow)
        definition = _Definition(
            app,
            workflow,
            None if deployment.source is None else str(deployment.source),
            shape if deployment.sizing is None else apply_sizing(shape, deployment.sizing),
            find_scaling(workflow),
            {node.name: node.model for node in workflow.services if node.model is not None},
        )
        log = Log()
        graph = self._load_graph(definition, log)
        if existing is None:
            service = _Service(definition, self._clock(), _Revision("r1", graph))
            self._services[workflow.name] = service
        else:
            service = existing
            service.generation += 1
            self._replace(service, definition, graph)
        self._settle(service, key, observe, log)
        return self._record(service)

    def change(self, name: str, change: ServiceChange, *, key: str | None, observe: ServiceObserver) -> ServiceRecord:
        service = self._get_service(name)
        if key in service.keys:
            return self._record(service)
        log = next(iter(service.logs.values()), Log())
        if change.rollback:
            self._roll_back(service, log)
        elif change.promote:
            if service.canary is None:
                raise UsageError(f"{name!r} has no canary. Name the version to serve: scanflow promote {name} MODEL")
            self._promote(service, service.canary)
        elif change.model is not None:
            self._change_model(service, change, log)
        else:
            self._resize(service, change)
        service.generation += 1
        self._settle(service, key, observe, log)
        return self._record(service)

    def reconcile(self, _record: ServiceRecord, /, *, observe: ServiceObserver) -> ServiceChange | None:  # noqa: ARG002
        return None

    def delete(self, name: str, *, observe: ServiceObserver) -> None:
        service = self._get_service(name)
        for other in self._services.values():
            if _find_backup(other.definition.workflow) == name:
                raise UsageError(
                    f"{name!r} is the backup of {other.definition.workflow.name!r}. Delete that service first."
                )
        service.generation += 1
        del self._services[name]
        observe(Progress(service=name, text="deleted"))

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:  # noqa: ARG002  they are in memory
        return [self._record(self._services[name]) for name in sorted(self._services)]

    def service(self, name: str) -> ServiceRecord:
        return self._record(self._get_service(name))

    def logs(self, name: str, instance: str | None = None) -> MemoryLogs:
        service = self._get_service(name)
        if instance is not None and instance not in service.logs:
            raise NotFoundError(f"{name!r} has no instance {instance!r}.{did_you_mean(instance, service.logs)}")

        def look() -> tuple[list[tuple[str, Log]], bool]:
            logs = [
                (instance_name, log) for instance_name, log in service.logs.items() if instance in {None, instance_name}
            ]
            return logs, self._services.get(name) is not service

        return MemoryLogs(look)

    def client(self, name: str) -> MemoryClient:
        self._get_service(name)
        return MemoryClient(self, name)

    def infer(self, name: str, model: str, inputs: Mapping[str, Any]) -> MemoryAnswer:
        service = self._get_service(name)
        node = None if model == name else model
        value = next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs)
        instances = list(service.logs)
        service.answered += 1
        instance = instances[service.answered % len(instances)] if instances else "1"
        revision = _choose_revision(service)
        shadow = service.canary if service.canary is not None and service.canary.shadow else None
        with service.logs.setdefault(instance, Log()).capture():
            if shadow is not None:
                try:
                    _measure_prediction(shadow, value, node)
                except ScanflowError:
                    pass  # counted; the caller gets the other revision's answer
            try:
                result = _measure_prediction(revision, value, node)
            except ServiceFailedError as error:
                raise ServiceFailedError(f"The service {name!r} answered 500: {error}") from error
            finally:
                self._analyse_canary(service)
        outputs = result if isinstance(result, Mapping) else {"output": result}
        return MemoryAnswer({key: _to_array(output) for key, output in outputs.items()}, instance, revision.id)

    def describe(self, name: str, model: str) -> dict[str, Any]:
        nodes = [node.name for node in self._get_service(name).definition.workflow.services]
        if model not in {name, *nodes}:
            raise NotFoundError(f"There is no model {model!r}.{did_you_mean(model, nodes)}")
        return {"name": model, "platform": "python", "inputs": [], "outputs": []}

    def _get_service(self, name: str) -> _Service:
        if name not in self._services:
            raise NotFoundError(f"There is no service {name!r}.{did_you_mean(name, self._services)}")
        return self._services[name]

    def _load_graph(self, definition: _Definition, log: Log) -> InferenceGraph:
        with log.capture():
            return InferenceGraph(definition.app, definition.workflow, self._models, definition.versions)

    def _replace(self, service: _Service, definition: _Definition, graph: InferenceGraph) -> None:
        service.previous, service.definition = service.definition, definition
        service.current, service.canary = _Revision(f"r{service.generation}", graph), None

    def _roll_back(self, service: _Service, log: Log) -> None:
        if service.canary is not None:
            service.canary, service.current.weight = None, 1.0
            return
        previous = service.previous
        if previous is None:
            raise UsageError("It has no earlier definition to roll back to: it was deployed once and not changed.")
        self._replace(service, previous, self._load_graph(previous, log))

    def _promote(self, service: _Service, revision: _Revision) -> None:
        service.previous = service.definition
        service.definition = replace(service.definition, versions=revision.graph.versions)
        revision.weight, revision.shadow = 1.0, False
        service.current, service.canary, service.policy = revision, None, None

    def _change_model(self, service: _Service, change: ServiceChange, log: Log) -> None:
        served = dict(service.definition.versions)
        node = change.node or (next(iter(served)) if len(served) == 1 else None)
        if node is None or node not in served:
            raise UsageError(f"It is ambiguous which node should get {change.model!r}: {', '.join(served) or 'none'}.")
        versions = {**served, node: str(change.model)}
        canary = service.canary
        same = canary is not None and canary.graph.versions == versions
        if change.removes_canary:
            if not same:
                raise UsageError(f"{change.model} already gets no requests. Give it a weight, or shadow.")
            service.canary, service.current.weight = None, 1.0
            return
        if versions == served:
            raise UsageError(f"{change.model} is already served. Name another version.")
        graph = self._load_graph(replace(service.definition, versions=versions), log)
        revision = canary if same and canary is not None else _Revision(f"r{service.generation + 1}", graph)
        if not change.is_canary:
            self._promote(service, revision)
            return
        weight = change.weight or 0.0
        revision.shadow = bool(change.shadow)
        revision.weight = 1.0 if revision.shadow else weight
        service.current.weight = 1.0 if revision.shadow else 1.0 - weight
        service.canary, service.policy = revision, change.policy or (service.policy if same else None)

    def _resize(self, service: _Service, change: ServiceChange) -> None:
        definition = service.definition
        scaling = definition.scaling if change.scaling is None else None if change.scaling == "off" else change.scaling
        shape = definition.shape if change.sizing is None else apply_sizing(definition.shape, change.sizing)
        if scaling is not None:
            bounded = min(max(shape.instances, scaling.min), scaling.max)
            if change.instances not in {None, bounded}:
                raise UsageError(
                    f"Its scaling allows {scaling.min} to {scaling.max} instances: change the scaling as well."
                )
            shape = shape.model_copy(update={"instances": bounded})
        _check_scaling(definition.workflow.name, scaling, shape)
        if change.backup is not None:
            raise UnsupportedError("The backend 'memory' cannot change the backup of a service. Deploy it again.")
        service.definition = replace(definition, shape=shape, scaling=scaling)

    def _settle(self, service: _Service, key: str | None, observe: ServiceObserver, log: Log) -> None:
        names = _list_instances(service.definition.shape)
        service.logs = {name: service.logs.get(name, log) for name in names}
        if key is not None:
            service.keys.add(key)
        for name in names:
            observe(Progress(service=service.definition.workflow.name, text=f"instance {name} is ready"))

    def _analyse_canary(self, service: _Service) -> None:
        """Promote or remove a canary by its policy, once it has answered enough requests."""
        canary, policy = service.canary, service.policy
        if canary is None or policy is None or len(canary.seconds) < policy.after_requests:
            return
        limit = service.current.compute_metric(policy.metric) * policy.ratio + policy.slack
        if canary.compute_metric(policy.metric) <= limit:
            self._promote(service, canary)
        else:
            service.canary, service.policy, service.current.weight = None, None, 1.0
        service.generation += 1

    def _record(self, service: _Service) -> ServiceRecord:
        definition, canary = service.definition, service.canary
        revisions = [service.current.record("current")]
        if canary is not None:
            revisions.append(canary.record("shadow" if canary.shadow else "canary"))
        tracker = definition.app.tracker
        return ServiceRecord(
            name=definition.workflow.name,
            app=definition.app.name,
            team=definition.app.team,
            state="ready" if service.logs else "idle",
            url=f"memory://{definition.workflow.name}",
            generation=service.generation,
            settled=service.generation,
            shape=definition.shape,
            previous=service.previous is not None or canary is not None,
            previous_models=dict(
                definition.versions
                if canary is not None
                else service.previous.versions
                if service.previous is not None
                else {}
            ),
            tracker=None if tracker is None else tracker.uri,
            backup=_find_backup(definition.workflow),
            ready=len(service.logs),
            instances=tuple(InstanceRecord(instance=name, state="ready") for name in service.logs),
            revisions=tuple(revisions),
            policy=service.policy,
            scaling=definition.scaling,
            source=definition.source,
            created=service.created,
        )


class MemoryClient(Closing):
    def __init__(self, online: MemoryOnline, name: str) -> None:
        self._online, self._name = online, name

    def infer(self, model: str, inputs: Any, *, dtype: str | None = None, binary: bool = True) -> MemoryAnswer:  # noqa: ARG002
        import numpy as np

        named = inputs if isinstance(inputs, Mapping) else {"input": inputs}
        numpy_dtype = None if dtype is None else dtype.lower()
        return self._online.infer(
            self._name, model, {str(name): np.asarray(value, dtype=numpy_dtype) for name, value in named.items()}
        )

    def document(self, path: str) -> dict[str, Any]:
        return self._online.describe(self._name, path.rpartition("/")[2])

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:  # noqa: ARG002
        raise UnsupportedError("A service of the backend 'memory' accepts arrays only: it has no HTTP server.")

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _check_scaling(name: str, scaling: Scaling | None, shape: Shape) -> None:
    try:
        if scaling is not None:
            check_gpu_scaling(scaling, shape)
    except UsageError as error:
        raise type(error)(f"Workflow {name!r}: {error}") from error


def _list_instances(shape: Shape) -> list[str]:
    return [str(number) for number in range(1, shape.instances + 1)]


def _find_backup(workflow: Workflow) -> str | None:
    return None if workflow.serving is None else workflow.serving.backup


def _choose_revision(service: _Service) -> _Revision:
    """Choose the revision of the next request by smooth weighted round robin."""
    revisions = [
        revision for revision in (service.current, service.canary) if revision is not None and not revision.shadow
    ]
    for revision in revisions:
        revision.credit += revision.weight
    best = max(revisions, key=lambda revision: revision.credit)
    best.credit -= sum(revision.weight for revision in revisions)
    return best


def _measure_prediction(revision: _Revision, value: Any, node: str | None) -> Any:
    began = perf_counter()
    try:
        return revision.graph.predict(value, node)
    except ServiceFailedError:
        revision.errors += 1
        raise
    finally:
        revision.seconds.append(perf_counter() - began)


def _compute_quantile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _to_array(value: Any) -> Any:
    array = make_array(value)
    return array.astype(object) if array.dtype.kind in "US" else array
