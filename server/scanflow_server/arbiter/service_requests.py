"""People's requests of changes of services: actions of the highest priority, stored first, so that they are carried out
whatever happens to the server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from scanflow.agent.agent_records import Intent
from scanflow.app.application import Application
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.server_context import ServerContext
from scanflow_server.service_drivers import Kind
from scanflow_server.store import application_store, intent_store, keys
from scanflow_server.store.keys import IdempotentRequest

PRIORITY = 1_000_001
"""The priority of a person's request; an agent's strategy has at most a million."""

_ALL_FIELDS = ("running", "replicas", "resource", "affinity", "model", "traffic", "scaling", "backup")
_FIELDS = {
    "instances": "replicas",
    "scaling": "scaling",
    "cores": "resource",
    "memory_bytes": "resource",
    "gpu": "resource",
    "gpu_memory_bytes": "resource",
    "threads": "resource",
    "affinity": "affinity",
    "backup": "backup",
}


def request_change(
    context: ServerContext,
    engine: ArbiterEngine,
    kind: Kind,
    service: str,
    *,
    get_owner: Callable[[], tuple[str, str]],
    request: dict[str, Any],
    by: str,
    key: str | None = None,
    keep: Application | None = None,
) -> str:
    """Request a change of a service, and return the id of its action.

    ``get_owner`` returns the service's application and team, or refuses what cannot be changed; it is not called if
    the key was used before. ``keep``: the application to store with the request.
    """
    once = IdempotentRequest(
        "operation", key, keys.compute_fingerprint({"kind": kind, "service": service, "request": request})
    )
    if (earlier := once.find_earlier_target(context.store)) is not None:
        return earlier
    app, team = get_owner()
    id, at = f"{kind}-{secrets.token_hex(6)}", context.get_unique_time()
    arguments = {name: value for name, value in request.items() if name not in {"application", "source"}}
    intent = Intent(
        id=id,
        app=app,
        team=team,
        agent=by,
        strategy="command",
        source="person",
        primitive=kind,
        arguments={"service": service, **arguments},
        target=f"service/{service}",
        fields=_list_written_fields(kind, request),
        priority=PRIORITY,
        key=f"person/{id}",
        at=at,
    )
    seen = engine.intents.look(intent)
    with context.store.write() as connection:
        if (earlier := once.find(connection)) is not None:
            return earlier
        engine.intents.admit(connection, intent, seen, request=request)
        once.keep(connection, id, at=at)
        if keep is not None:
            application_store.keep(connection, keep, request["source"], at=at)
    engine.wake()
    return id


def list_pending_changes(context: ServerContext, service: str) -> list[Intent]:
    """Return the changes of a service that are requested or being made, whoever's it is, the first first."""
    with context.store.read() as connection:
        pending = [row.intent for row in intent_store.list_open_changes(connection)]
    return [intent for intent in pending if intent.target == f"service/{service}"]


def _list_written_fields(kind: Kind, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the service's fields that a request writes: a later one that writes all of them supersedes it."""
    if kind != "change":
        return _ALL_FIELDS
    if request.get("rollback"):
        return _ALL_FIELDS[1:]
    sized = {_FIELDS[name] for name in request if name in _FIELDS}
    return tuple(sorted(sized)) or ("model", "traffic")
