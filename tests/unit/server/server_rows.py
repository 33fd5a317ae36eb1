"""What tests of the server's lists put into its journal and its store."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from scanflow.agent.agent_records import Action, Decision
from scanflow.backends.journal import Journal
from scanflow.backends.local.layout import Home
from scanflow_server.server_context import ServerContext
from scanflow_server.store import intent_store
from scanflow_server.store.base import Store
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.store.run_store import DriveRequest, RequestedRun
from tests.unit.server.arbiter.intent_builders import intent

_Kept = TypeVar("_Kept")


class Api(httpx2.Client):
    """A client of a server in this process, and that server's parts."""

    context: ServerContext


def enter_run(
    context: ServerContext, *, app: str = "mnist", team: str = "data", workflow: str, definition: str = "{}"
) -> str:
    with closing(Journal(Home(context.settings.home).journal)) as journal:
        run = journal.create_run(
            app=app,
            team=team,
            workflow=workflow,
            parent=Path("/"),
            source=None,
            definition=definition,
            rng=random.Random(1),
        )
    return run.record.name


def make_action_row(id: str, state: Any = "refused", verdict: Any = "refuse", **changes: Any) -> ActionRow:
    wanted = intent(id, **changes)
    decision = Decision(intent=id, verdict=verdict, reason="So it was.", at=5.0)
    began = 5.0 if state in {"running", "succeeded", "failed"} else None
    return ActionRow(action=Action(id=id, intent=wanted, state=state, decision=decision, began=began, ended=None))


def make_request_row(
    id: str, kind: str = "change", service: str = "digits", state: Any = "running", **changes: Any
) -> ActionRow:
    """Return a person's change of a service; ``changes`` of its row and its intent."""
    row_names = ("request", "progress", "drivers", "record", "problem")
    row = {name: changes.pop(name) for name in row_names if name in changes}
    about = {"primitive": kind, "target": f"service/{service}", "source": "person", "arguments": {"service": service}}
    action = make_action_row(id, state, "act", **{**about, "key": f"person/{id}", **changes})
    return action.replace(tries=1, **{"request": {}, **row})


def end_change(
    store: Store, id: str, *, at: float = 2.0, problem: dict[str, Any] | None = None, **changes: Any
) -> None:
    """Record that a change of a service has ended, as the engine does."""
    error = None if problem is None else problem["detail"]
    ended = {"state": "succeeded" if problem is None else "failed", "began": at, "ended": at, "error": error}
    with store.write() as connection:
        row = intent_store.get(connection, id).replace(action=ended, problem=problem, drivers=(id,), **changes)
        intent_store.put(connection, row)


def read_from_store(store: Store, get: Callable[..., _Kept | None], *key: object) -> _Kept:
    with store.read() as connection:
        row = get(connection, *key)
    assert row is not None
    return row


ONLINE: dict[str, Any] = {
    "schema": "scanflow/v1",
    "name": "mnist",
    "team": "ml",
    "workflows": [
        {"name": "digits", "type": "online", "nodes": [{"name": "m", "kind": "service", "model": "models:/m/1"}]}
    ],
}


def deploy_service(api: Api, **changes: Any) -> httpx2.Response:
    return api.post("/services", json={"application": {**ONLINE, "app_dir": str(api.context.settings.home), **changes}})


def a_run(name: str, **more: Any) -> RequestedRun:
    asked: dict[str, Any] = {"created": 1.0, "asked": DriveRequest(action="run"), **more}
    return RequestedRun(name=name, app="a", team="t", workflow="w", **asked)
