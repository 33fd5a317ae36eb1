"""What primitives use inside a server: what it is asked for is written down, and done by processes of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.backends.records import RunRecord
from scanflow.errors import NotFoundError
from scanflow_server import requests
from scanflow_server.context import ServerContext
from scanflow_server.primitives.action_context import KeptApplication
from scanflow_server.store import applications
from scanflow_server.store.applications import ApplicationRow


class RequestedRuns:
    """Runs that the server drives: see :class:`~scanflow_server.primitives.action_context.Runs`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def begun(self, key: str) -> RunRecord | None:
        return requests.begun_run(self._context, key) if key else None

    def begin(
        self, app: Application, workflow: str, *, parameters: Mapping[str, Any], source: Path | None, key: str
    ) -> RunRecord:
        return requests.request_run(
            self._context, app, workflow, parameters=parameters, source=source, key=key or None, own=True
        )

    def spin(self, app: Application, step: str, *, run: str, parameters: Mapping[str, Any], key: str) -> RunRecord:
        return requests.request_spin(
            self._context, step, run=run, app=app, parameters=parameters, key=key or None, own=True
        )

    def stop(self, run: str) -> RunRecord:
        return requests.request_stop(self._context, run)

    def show(self, run: str) -> RunRecord:
        return requests.show_run(self._context, run)

    def newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        return requests.list_runs(self._context, limit=limit, app=app, team=team, workflow=workflow)


class ApplicationStore:
    """Applications in the server's database. See :class:`~scanflow_server.primitives.action_context.Applications`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def get(self, app: str, team: str) -> KeptApplication:
        with self._context.store.read() as connection:
            found = applications.get(connection, app, team)
        return _kept(_known(found, app, team))

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> KeptApplication:
        with self._context.store.write() as connection:
            found = _known(applications.get(connection, app, team), app, team)
            before = _kept(found)
            after = make(before.application)
            if after == before.application:
                return before
            document = requests.document_of(after)
            at = self._context.clock()
            return _kept(
                applications.put(connection, name=app, team=team, document=document, source=found.source, at=at)
            )


def _known(found: ApplicationRow | None, app: str, team: str) -> ApplicationRow:
    if found is None:
        raise NotFoundError(
            f"The application {app!r} of the team {team!r} is not known here. It is kept from its first run, "
            "deployment or agent on."
        )
    return found


def _kept(found: ApplicationRow) -> KeptApplication:
    source = None if found.source is None else Path(found.source)
    return KeptApplication(application=load_json(json.dumps(found.document)), source=source, revision=found.revision)
