"""Changes of services, by people's commands and agents' actions, serialized for each service.

A person's command is an intent of the highest priority. It is arbitrated, recorded and explained like agents' intents,
and carried out by the operation of the same id; an agent's action on a service is an operation, too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from itertools import count, takewhile
from typing import Any

from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.agent.primitives.serving import summarize_service
from scanflow.agent.records import Intent
from scanflow.app.files import dump_document
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.http.problems import parse_error
from scanflow_server.context import ServerContext
from scanflow_server.store import keys, operations
from scanflow_server.store.operations import Kind, OperationRow

PRIORITY = 1_000_001
"""The priority of a person's command; an agent's strategy has at most a million."""

_POLL_S = 1.0
_ALL_FIELDS = ("running", "replicas", "resource", "affinity", "model", "traffic", "scaling", "backup")
_FIELDS = {
    "instances": "replicas",
    "scaling": "scaling",
    "cores": "resource",
    "memory_bytes": "resource",
    "threads": "resource",
    "affinity": "affinity",
    "backup": "backup",
}


def make_id(kind: Kind) -> str:
    return f"{kind}-{secrets.token_hex(6)}"


def build_intent(operation: OperationRow, *, by: str) -> Intent:
    request = {name: value for name, value in operation.request.items() if name not in {"application", "source"}}
    return Intent(
        id=operation.id,
        app=operation.app,
        team=operation.team,
        agent=by,
        strategy="command",
        source="person",
        primitive=operation.kind,
        arguments={"service": operation.service, **request},
        target=f"service/{operation.service}",
        fields=_list_written_fields(operation),
        priority=PRIORITY,
        key=f"person/{operation.id}",
        at=operation.created,
    )


def carry_out(context: ServerContext, id: str) -> PrimitiveResult:
    """Release an operation, wait for its end, and return its result.

    UsageError: it failed; a person's command is not retried. UnavailableError: the server ends first.
    """
    with context.store.write() as connection:
        operations.release(connection, id)
    context.work_notifier.notify()
    operation = _wait_until_ended(context, id)
    if operation.problem is not None:
        raise UsageError(str(operation.problem["detail"]))
    return PrimitiveResult(
        {} if operation.result is None else summarize_service(ServiceRecord.model_validate(operation.result))
    )


class QueuedDeployer(EmbeddedDeployer):
    """Changes services by operations, on behalf of an agent's action."""

    def __init__(self, context: ServerContext, key: str, *, team: str) -> None:
        """``key``: the action's idempotency key. ``team``: the action's team, which sees no other team's services."""
        super().__init__(context.settings.library, backend=context.deployer.backend)
        self._context, self._key, self._team = context, key, team

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        return [service for service in super().services(instances=instances) if service.team == self._team]

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
        check_name_free(deployment.online.name, super().services(), team=self._team)
        request = {
            "application": dump_document(app),
            "source": None if deployment.source is None else str(deployment.source),
            "sizing": None if sizing is None or not sizing.given else sizing.model_dump(mode="json"),
            "port": deployment.port,
        }
        return self._change_service("deploy", deployment.online.name, app.name, request)

    def change(
        self,
        name: str,
        change: ServiceChange,
        *,
        key: str | None = None,  # noqa: ARG002  as above
        observe: ServiceObserver = lambda _: None,  # noqa: ARG002
    ) -> ServiceRecord:
        app = self.service(name).app
        return self._change_service("change", name, app, change.model_dump(mode="json", exclude_none=True))

    def delete(self, name: str, *, observe: ServiceObserver = lambda _: None) -> None:  # noqa: ARG002
        self._run_operation("delete", name, self.service(name).app, {})

    def _change_service(self, kind: Kind, service: str, app: str, request: dict[str, Any]) -> ServiceRecord:
        return ServiceRecord.model_validate(self._run_operation(kind, service, app, request).result)

    def _run_operation(self, kind: Kind, service: str, app: str, request: dict[str, Any]) -> OperationRow:
        """Request a change and return its operation once it has succeeded; a failed one is requested again."""
        mark = keys.compute_fingerprint({"kind": kind, "service": service, "request": request})
        with self._context.store.write() as connection:
            targets = (keys.find_own(connection, f"{self._key}/{mark[:16]}/{number}") for number in count())
            ids = list(takewhile(lambda id: id is not None, targets))
            attempts = [operations.get(connection, str(id)) for id in ids]
            operation = next((attempt for attempt in attempts if attempt is not None and attempt.problem is None), None)
            if operation is None:
                at, id = self._context.clock(), make_id(kind)
                operation = OperationRow(
                    id=id, kind=kind, service=service, app=app, team=self._team, request=request, created=at
                )
                operations.add(connection, operation)
                keys.record(connection, f"{self._key}/{mark[:16]}/{len(ids)}", "operation", mark, target=id, at=at)
        self._context.work_notifier.notify()
        ended = _wait_until_ended(self._context, operation.id)
        if ended.problem is not None:
            raise parse_error(int(ended.problem["status"]), json.dumps(ended.problem).encode())
        return ended


def check_service_exists(name: str, services: Iterable[ServiceRecord]) -> None:
    """Refuse a service that is not among ``services``; another team's is indistinguishable from a missing one."""
    if all(service.name != name for service in services):
        raise NotFoundError(f"There is no service {name!r}. List the services: scanflow services")


def check_name_free(name: str, services: Iterable[ServiceRecord], *, team: str) -> None:
    if any(service.name == name and service.team != team for service in services):
        raise make_name_conflict(name)


def make_name_conflict(name: str) -> InvalidError:
    """Return the error for a service name that another team uses, without details."""
    return InvalidError(
        f"The service name {name!r} is taken. Service names are shared by all teams: rename this workflow."
    )


def _wait_until_ended(context: ServerContext, id: str) -> OperationRow:
    while True:
        since = context.store_notifier.changes
        with context.store.read() as connection:
            operation = operations.get(connection, id)
        if operation is None:
            raise UsageError(f"The record of the change {id!r} was deleted before the change ended.")
        if operation.state in {"succeeded", "failed"}:
            return operation
        if context.shutdown.is_set():
            raise UnavailableError(
                "The server is shutting down. The change continues, and the next server records its result."
            )
        context.store_notifier.wait(since, _POLL_S)


def _list_written_fields(operation: OperationRow) -> tuple[str, ...]:
    """Return the service's fields that an operation writes: a later command that writes all of them supersedes it."""
    if operation.kind != "change":
        return _ALL_FIELDS
    request: Mapping[str, Any] = operation.request
    if request.get("rollback"):
        return _ALL_FIELDS[1:]
    sized = {_FIELDS[name] for name in request if name in _FIELDS}
    return tuple(sorted(sized)) or ("model", "traffic")
