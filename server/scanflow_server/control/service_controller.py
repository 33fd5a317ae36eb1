"""The controller of services: records their states and versions, and requests what is due for those without a
supervisor."""

from __future__ import annotations

import logging
from typing import Any

from scanflow.backends.service_records import Progress, ServiceRecord, Shape
from scanflow.errors import ScanflowError
from scanflow.reports.service_periods import RESTARTED
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.arbiter.service_requests import request_change
from scanflow_server.control.served_versions import ServedVersions
from scanflow_server.controller_loop import EXTERNAL_POLL_S, ErrorIsolation
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store

_log = logging.getLogger(__name__)

_CONTROLLER = "services"
"""The author of changes that are due, in events."""

_SERVICES_INTERVAL_S = 1.0
"""The interval between checks of services, in seconds: nothing notifies of an unhealthy instance."""

_UNHEALTHY = frozenset({"degraded", "backup", "failed"})


class ServicesController:
    def __init__(self, context: ServerContext, engine: ArbiterEngine) -> None:
        self._context, self._engine = context, engine
        self._states: dict[str, str] = {}
        self._restarts: dict[str, dict[str, int]] = {}
        """How often each instance of each service had restarted, when they were last listed."""

        self._shapes: dict[str, Shape] = {}
        """The shapes for which what waits for a person was looked at, by the places of services."""

        self._isolation, self._versions = ErrorIsolation(), ServedVersions(context)

    def tick(self) -> float:
        states: dict[str, str] = {}
        records = self._context.deployer.services()
        now = self._context.clock()
        self._context.service_history.observe(records, now)
        for record in records:
            before = self._states.get(record.name)
            if before is not None:
                states[record.name] = before  # until its new state is recorded
            with self._isolation.isolate(f"The service {record.name!r}"):
                current = self._ensure_supervised(record)
                self._record_restarts(current, now)
                self._record_state(current, before)
                states[record.name] = current.state
            with self._isolation.isolate(f"The version of the service {record.name!r}"):
                self._versions.observe(record)
            with self._isolation.isolate(f"The due change of the service {record.name!r}"):
                self._reconcile(record)
        self._states = states
        self._restarts = {name: counts for name, counts in self._restarts.items() if name in states}
        self._versions.forget_others({*states})
        self._withdraw_needless({f"service/{record.team}/{record.name}": record.shape for record in records})
        return _SERVICES_INTERVAL_S if states else EXTERNAL_POLL_S

    def _withdraw_needless(self, shapes: dict[str, Shape]) -> None:
        """Withdraw what waits for a person, where a service came to be as it requests: by whomever, or while the server
        was down."""
        for place in {*shapes, *self._shapes}:
            if shapes.get(place) != self._shapes.get(place):
                with self._isolation.isolate(f"What is requested of {place!r}"):
                    self._engine.intents.withdraw_needless(place)
                    self._shapes |= {place: shapes[place]} if place in shapes else {}
        self._shapes = {place: shape for place, shape in self._shapes.items() if place in shapes}

    def _reconcile(self, record: ServiceRecord) -> None:
        """Request what is due as an ordinary change, once."""

        def record_repair(progress: Progress) -> None:
            _log.warning("The service %r: %s", record.name, progress.text)
            self._record("service.mended", record, self._context.clock(), {"text": progress.text})

        if (due := self._context.deployer.reconcile(record, observe=record_repair)) is not None:
            request_change(
                self._context,
                self._engine,
                "change",
                record.name,
                get_owner=lambda: (record.app, record.team),
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
        self._record(type, record, self._context.clock(), data)

    def _record_restarts(self, record: ServiceRecord, now: float) -> None:
        """Record each restart of an instance that was listed before, also one that was over within an interval."""
        before = self._restarts.get(record.name, {})
        for instance in record.instances:
            for count in range(before.get(instance.instance, instance.restarts), instance.restarts):
                data = {"instance": instance.instance, "restarts": count + 1, "error": instance.error}
                self._record(RESTARTED, record, now, data)
        if record.instances:  # a backend may list none while all are ready
            self._restarts[record.name] = {instance.instance: instance.restarts for instance in record.instances}

    def _record(self, type: str, record: ServiceRecord, at: float, data: dict[str, Any]) -> None:
        subject, app, team = f"service/{record.name}", record.app, record.team
        with self._context.store.write() as connection:
            event_store.record(connection, type, subject, at=at, app=app, team=team, data=data)
