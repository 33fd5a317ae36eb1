"""Applications in a server's store, as a run, a deployment or an agent would have left them there."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.application import Application
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store


def keep_application(context: ServerContext, app: Application, *, source: Path | None = None) -> None:
    with context.store.write() as connection:
        application_store.keep(connection, app, None if source is None else str(source), at=context.clock())
