"""The controllers of services: carry out requested changes, serialized for each service, and what is due for services
without a supervisor."""

from __future__ import annotations

import json
import logging
from typing import Any

from scanflow.backends.service_records import Progress, ServiceRecord
from scanflow.errors import InternalError, ScanflowError
from scanflow.http.problems import build_problem
from scanflow.processes.jobs import Job, Lines
from scanflow.processes.restart_backoff import MAX_STARTS, Processes
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.arbiter.operation_requests import request_operation
from scanflow_server.context import ServerContext, make_driver_command
from scanflow_server.control.served_versions import ServedVersions
from scanflow_server.controller_loop import EXTERNAL_POLL_S, IDLE_S, POLL_S, ErrorIsolation
from scanflow_server.store import events, operations
from scanflow_server.store.operations import OperationRow

_log = logging.getLogger(__name__)

_CONTROLLER = "services"
"""The author of changes that are due, in events."""

_SERVICES_INTERVAL_S = 1.0
"""The interval between checks of services, in seconds: nothing notifies of an unhealthy instance."""

_UNHEALTHY = frozenset({"degraded", "backup", "failed"})


class OperationsController:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._processes, self._isolation = Processes(context.work_notifier.notify), ErrorIsolation()

    def tick(self) -> float:
        with self._context.store.read() as connection:
            running = operations.list_open(connection)
        busy: set[str] = set()
        for operation in running:
            if operation.service in busy or operation.state == "queued":
                continue  # an earlier change of that service comes first
            busy.add(operation.service)
            with self._isolation.isolate(f"The change {operation.id!r} of a service"):
                self._advance(operation, self._context.get_operation_job(operation.id))
        return POLL_S if running else IDLE_S

    def _advance(self, operation: OperationRow, job: Job) -> None:
        if job.alive:
            return
        if (result := job.result) is not None:
            self._record_end(operation, job, result)
        elif job.starts >= MAX_STARTS:
            error = InternalError(
                f"The process that was to {operation.kind} the service {operation.service!r} died. See its log: "
                f"{job.log}"
            )
            job.end_without_process({"result": None, "problem": build_problem(error)[1]})
        else:
            job.prepare(self._make_order(operation))
            self._processes.start(job, self._context.environ, command=make_driver_command(job))

    def _make_order(self, operation: OperationRow) -> dict[str, Any]:
        return {
            "what": "operation",
            "id": operation.id,
            "kind": operation.kind,
            "service": operation.service,
            "team": operation.team,
            "request": operation.request,
            "settings": self._context.child_settings,
        }

    def _record_end(self, operation: OperationRow, job: Job, result: dict[str, Any]) -> None:
        record, problem = result.get("result"), result.get("problem")
        data: dict[str, Any] = {"operation": operation.id, "kind": operation.kind}
        if problem is not None:
            data["error"] = problem["detail"]
        elif record is not None:
            data |= {"generation": record["generation"], "instances": record["shape"]["instances"]}
        at = self._context.clock()
        with self._context.store.write() as connection:
            progress = read_progress(job)
            if operations.end(connection, operation.id, at=at, progress=progress, result=record, problem=problem):
                type = "service.changed" if problem is None else "service.unchanged"
                events.record(
                    connection,
                    type,
                    f"service/{operation.service}",
                    at=at,
                    app=operation.app,
                    team=operation.team,
                    data=data,
                )
        self._processes.forget(job)


class ServicesController:
    def __init__(self, context: ServerContext, engine: ArbiterEngine) -> None:
        self._context, self._engine = context, engine
        self._states: dict[str, str] = {}
        self._isolation, self._versions = ErrorIsolation(), ServedVersions(context)

    def tick(self) -> float:
        states: dict[str, str] = {}
        for record in self._context.deployer.services():
            before = self._states.get(record.name)
            if before is not None:
                states[record.name] = before  # until its new state is recorded
            with self._isolation.isolate(f"The service {record.name!r}"):
                current = self._ensure_supervised(record)
                self._record_state(current, before)
                states[record.name] = current.state
            with self._isolation.isolate(f"The version of the service {record.name!r}"):
                self._versions.observe(record)
            with self._isolation.isolate(f"The due change of the service {record.name!r}"):
                self._reconcile(record)
        self._states = states
        self._versions.forget_others({*states})
        return _SERVICES_INTERVAL_S if states else EXTERNAL_POLL_S

    def _reconcile(self, record: ServiceRecord) -> None:
        """Request what is due as an ordinary change, once."""

        def record_repair(progress: Progress) -> None:
            _log.warning("The service %r: %s", record.name, progress.text)
            at, data = self._context.clock(), {"text": progress.text}
            with self._context.store.write() as connection:
                subject, app, team = f"service/{record.name}", record.app, record.team
                events.record(connection, "service.mended", subject, at=at, app=app, team=team, data=data)

        if (due := self._context.deployer.reconcile(record, observe=record_repair)) is not None:
            request_operation(
                self._context,
                self._engine,
                "change",
                record.name,
                find_owner=lambda: (record.app, record.team),
                request=due.model_dump(mode="json", exclude_none=True),
                by=_CONTROLLER,
                key=f"due-{record.name}-{record.created:.6f}-{record.generation}",
            )

    def _ensure_supervised(self, record: ServiceRecord) -> ServiceRecord:
        if record.state == "unsupervised":
            try:
                return self._context.deployer.service(record.name)  # reading it starts its supervisor
            except ScanflowError as error:
                _log.warning("The supervisor of the service %r could not be started: %s", record.name, error)
        return record

    def _record_state(self, record: ServiceRecord, before: str | None) -> None:
        if record.state == before or (record.state not in _UNHEALTHY and before not in _UNHEALTHY):
            return
        type = "service.unready" if record.state in _UNHEALTHY else "service.ready"
        data: dict[str, Any] = {"state": record.state, "before": before, "error": record.error}
        at = self._context.clock()
        with self._context.store.write() as connection:
            events.record(
                connection, type, f"service/{record.name}", at=at, app=record.app, team=record.team, data=data
            )


def read_progress(job: Job) -> list[str]:
    return [str(json.loads(line)["text"]) for line in Lines(job.lines).read_new()]
