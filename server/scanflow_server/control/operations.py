"""The controllers of services: changes that were asked for are made, one after the other for each service, and what is
due for one is done where no supervisor does it."""

from __future__ import annotations

import json
import logging
from typing import Any

from scanflow.backends.service_records import Progress, ServiceRecord
from scanflow.errors import InternalError, ScanflowError
from scanflow.problems import problem_of
from scanflow.processes.jobs import Job, Lines
from scanflow.processes.starts import MOST_STARTS, Processes
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.context import ServerContext, driver_command
from scanflow_server.control.loop import IDLE_S, LOOK_S, OUTSIDE_S, ErrorIsolation
from scanflow_server.requests import request_operation
from scanflow_server.store import events, operations
from scanflow_server.store.operations import OperationRow

_log = logging.getLogger(__name__)

_CONTROLLER = "services"
"""Who asks for changes that are due, as told of them."""

_SERVICES_S = 1.0
"""Until services are looked at again: nobody is told when an instance falls ill."""

_UNWELL = frozenset({"degraded", "backup", "failed"})


class OperationsController:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._processes, self._isolation = Processes(context.work.notify), ErrorIsolation()

    def tick(self) -> float:
        with self._context.store.read() as connection:
            running = operations.list_open(connection)
        busy: set[str] = set()
        for one in running:
            if one.service in busy or one.state == "queued":
                continue  # an earlier change of that service comes first
            busy.add(one.service)
            with self._isolation.of(f"The change {one.id!r} of a service"):
                self._look(one, self._context.operation_job(one.id))
        return LOOK_S if running else IDLE_S

    def _look(self, one: OperationRow, job: Job) -> None:
        if job.alive:
            return
        if (result := job.result) is not None:
            self._note(one, job, result)
        elif job.starts >= MOST_STARTS:
            error = InternalError(f"The process that should {one.kind} {one.service!r} died. See its log: {job.log}")
            job.end_unheld({"result": None, "problem": problem_of(error)[1]})
        else:
            job.prepare(self._order(one))
            self._processes.start(job, self._context.environ, command=driver_command(job))

    def _order(self, one: OperationRow) -> dict[str, Any]:
        return {
            "what": "operation",
            "id": one.id,
            "kind": one.kind,
            "service": one.service,
            "team": one.team,
            "request": one.request,
            "settings": self._context.child_settings,
        }

    def _note(self, one: OperationRow, job: Job, result: dict[str, Any]) -> None:
        record, problem = result.get("result"), result.get("problem")
        data: dict[str, Any] = {"operation": one.id, "kind": one.kind}
        if problem is not None:
            data["error"] = problem["detail"]
        elif record is not None:
            data |= {"generation": record["generation"], "instances": record["shape"]["instances"]}
        at = self._context.clock()
        with self._context.store.write() as connection:
            progress = progress_of(job)
            if operations.end(connection, one.id, at=at, progress=progress, result=record, problem=problem):
                type = "service.changed" if problem is None else "service.unchanged"
                events.record(connection, type, f"service/{one.service}", at=at, app=one.app, team=one.team, data=data)
        self._processes.forget(job)


class ServicesController:
    def __init__(self, context: ServerContext, engine: ArbiterEngine) -> None:
        self._context, self._engine = context, engine
        self._states: dict[str, str] = {}
        self._isolation = ErrorIsolation()

    def tick(self) -> float:
        found: dict[str, str] = {}
        for record in self._context.deployer.services():
            before = self._states.get(record.name)
            if before is not None:
                found[record.name] = before  # as long as nothing else is told
            with self._isolation.of(f"The service {record.name!r}"):
                one = self._supervised(record)
                self._tell(one, before)
                found[record.name] = one.state
            with self._isolation.of(f"What is due for the service {record.name!r}"):
                self._reconcile(record)
        self._states = found
        return _SERVICES_S if found else OUTSIDE_S

    def _reconcile(self, record: ServiceRecord) -> None:
        """Have done what is due, as a change like everyone's; one that is due longer is asked for once."""

        def mended(progress: Progress) -> None:
            _log.warning("The service %r: %s", record.name, progress.text)
            at, data = self._context.clock(), {"text": progress.text}
            with self._context.store.write() as connection:
                subject, app, team = f"service/{record.name}", record.app, record.team
                events.record(connection, "service.mended", subject, at=at, app=app, team=team, data=data)

        if (due := self._context.deployer.reconcile(record, observe=mended)) is not None:
            request_operation(
                self._context,
                self._engine,
                "change",
                record.name,
                of=lambda: (record.app, record.team),
                request=due.model_dump(mode="json", exclude_none=True),
                by=_CONTROLLER,
                key=f"due-{record.name}-{record.created:.6f}-{record.generation}",
            )

    def _supervised(self, record: ServiceRecord) -> ServiceRecord:
        if record.state == "unsupervised":
            try:
                return self._context.deployer.service(record.name)  # whoever asks for it, gives it a supervisor
            except ScanflowError as error:
                _log.warning("The service %r has no supervisor: %s", record.name, error)
        return record

    def _tell(self, record: ServiceRecord, before: str | None) -> None:
        if record.state == before or (record.state not in _UNWELL and before not in _UNWELL):
            return
        type = "service.unready" if record.state in _UNWELL else "service.ready"
        data: dict[str, Any] = {"state": record.state, "before": before, "error": record.error}
        at = self._context.clock()
        with self._context.store.write() as connection:
            events.record(
                connection, type, f"service/{record.name}", at=at, app=record.app, team=record.team, data=data
            )


def progress_of(job: Job) -> list[str]:
    return [str(json.loads(line)["text"]) for line in Lines(job.lines).fresh()]
