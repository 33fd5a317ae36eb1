"""Applications in a server's store, as a run, a deployment or an agent would have left them there."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.application import Application
from scanflow_server import requests
from scanflow_server.context import ServerContext
from scanflow_server.store import applications


def keep_application(context: ServerContext, app: Application, *, source: Path | None = None) -> None:
    document, written = requests.to_document(app), None if source is None else str(source)
    with context.store.write() as connection:
        applications.put(
            connection, name=app.name, team=app.team, document=document, source=written, at=context.clock()
        )
