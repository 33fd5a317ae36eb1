"""One application, kept in memory as a store keeps it: as text, with a revision for each change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.files import dump_json, load_json
from scanflow.errors import NotFoundError
from scanflow_server.primitives.action_context import KeptApplication


class Remembered:
    def __init__(self, application: Application, source: Path | None = None) -> None:
        self.application = load_json(dump_json(application))
        self.source = source
        self.revision = 1

    def get(self, app: str, team: str) -> KeptApplication:
        if (app, team) != (self.application.name, self.application.team):
            raise NotFoundError(f"There is no application {app!r}.")
        return KeptApplication(application=self.application, source=self.source, revision=self.revision)

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> KeptApplication:
        changed = make(self.get(app, team).application)
        if changed != self.application:
            self.application = load_json(dump_json(changed))
            self.revision += 1
        return self.get(app, team)
