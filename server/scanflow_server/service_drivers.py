"""Changes of services by driver processes, which outlive the server: those that actions of people and agents make.

How each ended is recorded on its action."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any, Literal

from scanflow.agent.agent_records import Intent
from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.agent.primitives.service_values import summarize_service
from scanflow.app.application_files import dump_document
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import InternalError, InvalidError, NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.http.problems import build_problem, parse_error
from scanflow.processes.background_jobs import MAX_STARTS, Job, Lines, Processes
from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.controller_loop import POLL_S, ErrorIsolation
from scanflow_server.server_context import ServerContext, make_driver_command
from scanflow_server.store import event_store, intent_store, keys

Kind = Literal["deploy", "change", "delete"]


class ShutdownError(UnavailableError):
    """The server is shutting down; the action stays as it is, and the next server continues it."""


class ServiceDrivers:
    """Makes changes of services, one at a time for each service, and waits for their ends. Thread-safe."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._ended, self._isolation = ChangeNotifier(), ErrorIsolation()
        self._processes = Processes(self._ended.notify)
        self._turns: dict[str, Lock] = defaultdict(Lock)

    def carry_out(self, intent: Intent) -> PrimitiveResult:
        """Make the change that a person requested. UsageError: it failed; a person's change is not retried."""
        with self._context.store.read() as connection:
            request = intent_store.get(connection, intent.id).request
        service = intent.target.partition("/")[2]
        before = self._read_values(intent, service)
        result = self.drive(intent, intent.primitive, service, request)
        if result["problem"] is not None:
            raise UsageError(str(result["problem"]["detail"]))
        record = result["result"]
        after = {} if record is None else summarize_service(ServiceRecord.model_validate(record))
        return PrimitiveResult(after | ({"before": before} if before else {}))

    def _read_values(self, intent: Intent, service: str) -> dict[str, Any]:
        """Return what a change of a service begins from; empty if there is no service yet, the change has begun, or it
        cannot be read."""
        with suppress(ScanflowError, OSError):
            if self._context.get_operation_job(intent.id, "").starts == 0:
                values = summarize_service(self._context.deployer.service(service))
                models = [*values["models"].values()]
                return values | ({"model": models[0]} if len(models) == 1 else {})
        return {}

    def drive(self, intent: Intent, kind: str, service: str, request: Any, *, part: str = "") -> dict[str, Any]:
        """Have a driver make an action's change, or find how it ended; return its result or problem.

        ``part`` tells changes of one action apart. ShutdownError: the server ends first.
        """
        job = self._context.get_operation_job(intent.id, part)
        order = {
            "what": "operation",
            "id": job.path.name,
            "kind": kind,
            "service": service,
            "team": intent.team,
            "request": request,
            "settings": self._context.child_settings,
        }
        with self._turns[service]:
            result = self._wait_for_result(job, order)
        self._record_end(intent, job, order, result)
        self._processes.forget(job)
        self._context.work_notifier.notify()  # of another state of the service
        return result

    def _wait_for_result(self, job: Job, order: dict[str, Any]) -> dict[str, Any]:
        while True:
            since = self._ended.changes
            with self._isolation.isolate(f"The change {job.path.name!r} of a service"):
                if (result := self._advance(job, order)) is not None:
                    return result
            if self._context.shutdown.is_set():
                raise ShutdownError(
                    "The server is shutting down. The change continues, and the next server records its result."
                )
            self._ended.wait(since, POLL_S)

    def _advance(self, job: Job, order: dict[str, Any]) -> dict[str, Any] | None:
        if job.alive:
            return None
        if (result := job.result) is not None or self._context.shutdown.is_set():
            return result
        if job.starts < MAX_STARTS:
            job.prepare(order)
            self._processes.start(job, self._context.environ, command=make_driver_command(job))
            return None
        error = InternalError(
            f"The process that was to {order['kind']} the service {order['service']!r} died. See its log: {job.log}"
        )
        job.end_without_process({"result": None, "problem": build_problem(error)[1]})
        return job.result

    def _record_end(self, intent: Intent, job: Job, order: dict[str, Any], result: dict[str, Any]) -> None:
        """Record on the action how a driver ended, with its event, once."""
        record, problem = result["result"], result["problem"]
        data: dict[str, Any] = {"operation": intent.id, "kind": order["kind"]}
        if problem is not None:
            data["error"] = problem["detail"]
        elif record is not None:
            data |= {"generation": record["generation"], "instances": record["shape"]["instances"]}
        with self._context.store.write() as connection:
            row = intent_store.get(connection, intent.id)
            if job.path.name in row.drivers:
                return
            drivers, progress = (*row.drivers, job.path.name), (*row.progress, *read_progress(job))
            ended = row.replace(drivers=drivers, progress=progress, record=record, problem=problem)
            intent_store.put(connection, ended)
            type = "service.changed" if problem is None else "service.unchanged"
            subject, at = f"service/{order['service']}", self._context.clock()
            event_store.record(connection, type, subject, at=at, app=intent.app, team=intent.team, data=data)


class TeamDeployer(EmbeddedDeployer):
    """Changes the services of a team by drivers, on behalf of an agent's action."""

    def __init__(self, context: ServerContext, drivers: ServiceDrivers, intent: Intent, key: str) -> None:
        """``key``: the idempotency key of the action, or of its inverse. Other teams' services are not visible."""
        super().__init__(context.settings.library, backend=context.deployer.backend)
        self._context, self._drivers, self._intent, self._key = context, drivers, intent, key

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        return [service for service in super().services(instances=instances) if service.team == self._intent.team]

    def service(self, name: str) -> ServiceRecord:
        check_service_exists(name, self.services())
        return super().service(name)

    def deploy(
        self,
        deployment: Deployment,
        *,
        key: str | None = None,  # noqa: ARG002  the action's own key is used
        observe: ServiceObserver = lambda _: None,  # noqa: ARG002  nobody watches an action
    ) -> ServiceRecord:
        app, sizing = deployment.app, deployment.sizing
        check_name_free(deployment.online.name, super().services(), team=self._intent.team)
        request = {
            "application": dump_document(app),
            "source": None if deployment.source is None else str(deployment.source),
            "sizing": None if sizing is None or not sizing.given else sizing.model_dump(mode="json"),
            "port": deployment.port,
        }
        return ServiceRecord.model_validate(self._make_change("deploy", deployment.online.name, request))

    def change(
        self,
        name: str,
        change: ServiceChange,
        *,
        key: str | None = None,  # noqa: ARG002  as above
        observe: ServiceObserver = lambda _: None,  # noqa: ARG002
    ) -> ServiceRecord:
        self.service(name)
        record = self._make_change("change", name, change.model_dump(mode="json", exclude_none=True))
        return ServiceRecord.model_validate(record)

    def delete(self, name: str, *, observe: ServiceObserver = lambda _: None) -> None:  # noqa: ARG002
        self.service(name)
        self._make_change("delete", name, {})

    def _make_change(self, kind: Kind, service: str, request: dict[str, Any]) -> Any:
        """Return the result of a change, made once for the action; one that failed before is made again."""
        change = {"kind": kind, "service": service, "request": request, "key": self._key, "at": self._intent.at}
        mark = keys.compute_fingerprint(change)[:16]
        number = 0
        while True:
            part = f"{mark}.{number}"
            has_ended_before = self._context.get_operation_job(self._intent.id, part).result is not None
            result = self._drivers.drive(self._intent, kind, service, request, part=part)
            if result["problem"] is None:
                return result["result"]
            if not has_ended_before:
                raise parse_error(int(result["problem"]["status"]), json.dumps(result["problem"]).encode())
            number += 1


def read_progress(job: Job) -> tuple[str, ...]:
    return tuple(str(json.loads(line)["text"]) for line in Lines(job.lines).read_new())


def check_service_exists(name: str, services: Iterable[ServiceRecord]) -> None:
    """Refuse a service that is not among ``services``; another team's is indistinguishable from a missing one."""
    if all(service.name != name for service in services):
        raise NotFoundError(
            f"There is no service {name!r}. List the services: scanflow services. What happened to one that is gone is "
            "among the events: scanflow events"
        )


def check_name_free(name: str, services: Iterable[ServiceRecord], *, team: str) -> None:
    if any(service.name == name and service.team != team for service in services):
        raise make_name_conflict(name)


def make_name_conflict(name: str) -> InvalidError:
    """Return the error for a service name that another team uses, without details."""
    return InvalidError(
        f"The service name {name!r} is taken. Service names are shared by all teams: rename this workflow."
    )
