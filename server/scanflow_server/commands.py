"""Changes of services: those that people request and those of agents' actions, one after the other for each service.

A person's command is an intent of the highest priority. It is arbitrated, recorded and explained as those of agents,
and carried out by the operation of the same id; what an agent's action does to a service is an operation, too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from itertools import count, takewhile
from typing import Any

from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.agent.primitives.serving import summary_of
from scanflow.agent.records import Intent
from scanflow.app.files import dump_json
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.problems import error_of
from scanflow_server.context import ServerContext
from scanflow_server.store import keys, operations
from scanflow_server.store.operations import Kind, OperationRow

PRIORITY = 1_000_001
"""Of what a person requests; an agent's strategy has at most a million."""

_POLL_S = 1.0
_ALL = ("running", "replicas", "resource", "affinity", "model", "traffic", "scaling", "backup")
_FIELDS = {
    "instances": "replicas",
    "scaling": "scaling",
    "cores": "resource",
    "memory_bytes": "resource",
    "threads": "resource",
    "affinity": "affinity",
    "backup": "backup",
}


def new_id(kind: Kind) -> str:
    return f"{kind}-{secrets.token_hex(6)}"


def intent_of(operation: OperationRow, *, by: str) -> Intent:
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
        fields=_fields(operation),
        priority=PRIORITY,
        key=f"person/{operation.id}",
        at=operation.created,
    )


def carry_out(context: ServerContext, id: str) -> PrimitiveResult:
    """Let an operation begin, and return what it did once it has ended.

    UsageError: it failed; as a person requested it, it is not tried again. UnavailableError: the server ends first.
    """
    with context.store.write() as connection:
        operations.release(connection, id)
    context.work.notify()
    one = _ended(context, id)
    if one.problem is not None:
        raise UsageError(str(one.problem["detail"]))
    return PrimitiveResult({} if one.result is None else summary_of(ServiceRecord.model_validate(one.result)))


class QueuedDeployer(EmbeddedDeployer):
    """Makes changes of services by operations, for an agent's action that is carried out at this moment."""

    def __init__(self, context: ServerContext, key: str, *, team: str) -> None:
        """``key``: of the action. Asked for again with the same key, what has begun or is done is not done again.
        ``team``: whose action it is, for which no other team's services are there."""
        super().__init__(context.settings.library, backend=context.deployer.backend)
        self._context, self._key, self._team = context, key, team

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:
        return [one for one in super().services(instances=instances) if one.team == self._team]

    def service(self, name: str) -> ServiceRecord:
        check_there(name, self.services())
        return super().service(name)

    def deploy(
        self,
        deployment: Deployment,
        *,
        key: str | None = None,  # noqa: ARG002  the action's own key is used
        observe: ServiceObserver = lambda _: None,  # noqa: ARG002  nobody watches an action
    ) -> ServiceRecord:
        app, sizing = deployment.app, deployment.sizing
        check_free(deployment.online.name, super().services(), team=self._team)
        request = {
            "application": json.loads(dump_json(app)),
            "source": None if deployment.source is None else str(deployment.source),
            "sizing": None if sizing is None or not sizing.given else sizing.model_dump(mode="json"),
            "port": deployment.port,
        }
        return self._made("deploy", deployment.online.name, app.name, request)

    def change(
        self,
        name: str,
        change: ServiceChange,
        *,
        key: str | None = None,  # noqa: ARG002  as above
        observe: ServiceObserver = lambda _: None,  # noqa: ARG002
    ) -> ServiceRecord:
        app = self.service(name).app
        return self._made("change", name, app, change.model_dump(mode="json", exclude_none=True))

    def delete(self, name: str, *, observe: ServiceObserver = lambda _: None) -> None:  # noqa: ARG002
        self._operation("delete", name, self.service(name).app, {})

    def _made(self, kind: Kind, service: str, app: str, request: dict[str, Any]) -> ServiceRecord:
        return ServiceRecord.model_validate(self._operation(kind, service, app, request).result)

    def _operation(self, kind: Kind, service: str, app: str, request: dict[str, Any]) -> OperationRow:
        """Have a change made, and return it once it has ended well; what has failed is tried anew."""
        mark = keys.fingerprint({"kind": kind, "service": service, "request": request})
        with self._context.store.write() as connection:
            made = (keys.find_own(connection, f"{self._key}/{mark[:16]}/{number}") for number in count())
            ids = list(takewhile(lambda id: id is not None, made))
            tries = [operations.get(connection, str(id)) for id in ids]
            found = next((one for one in tries if one is not None and one.problem is None), None)
            if found is None:
                at, id = self._context.clock(), new_id(kind)
                found = OperationRow(
                    id=id, kind=kind, service=service, app=app, team=self._team, request=request, created=at
                )
                operations.add(connection, found)
                keys.record(connection, f"{self._key}/{mark[:16]}/{len(ids)}", "operation", mark, target=id, at=at)
        self._context.work.notify()
        one = _ended(self._context, found.id)
        if one.problem is not None:
            raise error_of(int(one.problem["status"]), json.dumps(one.problem).encode())
        return one


def check_there(name: str, services: Iterable[ServiceRecord]) -> None:
    """Refuse a service that is not among those; another team's is not told from one that is not there at all."""
    if all(one.name != name for one in services):
        raise NotFoundError(f"There is no service {name!r}. See which there are: scanflow services")


def check_free(name: str, services: Iterable[ServiceRecord], *, team: str) -> None:
    if any(one.name == name and one.team != team for one in services):
        raise name_taken(name)


def name_taken(name: str) -> InvalidError:
    """Return the error for the name of another team's service, of which no more is told."""
    return InvalidError(
        f"The name {name!r} of a service is taken. Names of services are shared by all teams: rename this workflow."
    )


def _ended(context: ServerContext, id: str) -> OperationRow:
    while True:
        since = context.news.changes
        with context.store.read() as connection:
            one = operations.get(connection, id)
        if one is None:
            raise UsageError(f"The change {id!r} was forgotten before its end was noted.")
        if one.state in {"succeeded", "failed"}:
            return one
        if context.ending.is_set():
            raise UnavailableError("The server ends; the change goes on, and the next server notes how it ends.")
        context.news.wait(since, _POLL_S)


def _fields(operation: OperationRow) -> tuple[str, ...]:
    """Return what of the service an operation writes: a later command that writes all of it supersedes it."""
    if operation.kind != "change":
        return _ALL
    given: Mapping[str, Any] = operation.request
    if given.get("rollback"):
        return _ALL[1:]
    sized = {_FIELDS[name] for name in given if name in _FIELDS}
    return tuple(sorted(sized)) or ("model", "traffic")
