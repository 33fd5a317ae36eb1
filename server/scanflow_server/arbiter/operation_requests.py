"""Requests of changes of services, stored first so that they are fulfilled whatever happens to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scanflow.app.application import Application
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.commands import build_intent, make_id
from scanflow_server.context import ServerContext
from scanflow_server.store import applications, keys, operations
from scanflow_server.store.keys import IdempotentRequest
from scanflow_server.store.operations import Kind, OperationRow


def request_operation(
    context: ServerContext,
    engine: ArbiterEngine,
    kind: Kind,
    service: str,
    *,
    find_owner: Callable[[], tuple[str, str]],
    request: dict[str, Any],
    by: str,
    key: str | None = None,
    keep: Application | None = None,
) -> str:
    """Request a change of a service, and return the id of its operation and intent.

    ``find_owner`` returns the service's application and team, or refuses what cannot be changed; it is not called if
    the key was used before. ``keep``: the application to store with the request.
    """
    once = IdempotentRequest(
        "operation", key, keys.compute_fingerprint({"kind": kind, "service": service, "request": request})
    )
    if (operation_id := once.find_earlier_target(context.store)) is not None:
        return operation_id
    app, team = find_owner()
    operation = OperationRow(
        id=make_id(kind),
        kind=kind,
        service=service,
        app=app,
        team=team,
        request=request,
        created=context.get_unique_time(),
        state="queued",
    )
    intent = build_intent(operation, by=by)
    seen = engine.intents.look(intent)
    with context.store.write() as connection:
        if (operation_id := once.find(connection)) is not None:
            return operation_id
        operations.add(connection, operation)
        engine.intents.admit(connection, intent, seen)
        once.keep(connection, operation.id, at=operation.created)
        if keep is not None:
            applications.keep(connection, keep, request["source"], at=operation.created)
    engine.wake()
    return operation.id


def list_pending_operations(context: ServerContext, service: str) -> list[OperationRow]:
    with context.store.read() as connection:
        return [operation for operation in operations.list_open(connection) if operation.service == service]
