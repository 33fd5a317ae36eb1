"""One application, kept in memory as a store keeps it: as text, with a revision for each change; and its runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import PrimitiveCall
from scanflow.agent.primitive_context import PrimitiveContext, PrimitiveResult, SavedApplication
from scanflow.app.application import Application
from scanflow.app.application_files import dump_json, load_json
from scanflow.backends.backend_port import JobPlanner
from scanflow.backends.run_records import RunRecord, RunStarted
from scanflow.deployer import Deployer, EmbeddedDeployer, RunRequest
from scanflow.errors import NotFoundError
from scanflow_server.primitives import carry_out, require_job_planner


class Remembered:
    def __init__(self, application: Application, source: Path | None = None) -> None:
        self.application = load_json(dump_json(application))
        self.source = source
        self.revision = 1

    def get(self, app: str, team: str) -> SavedApplication:
        if (app, team) != (self.application.name, self.application.team):
            raise NotFoundError(f"There is no application {app!r}.")
        return SavedApplication(application=self.application, source=self.source, revision=self.revision)

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> SavedApplication:
        changed = make(self.get(app, team).application)
        if changed != self.application:
            self.application = load_json(dump_json(changed))
            self.revision += 1
        return self.get(app, team)


class InlineRuns:
    """Runs driven by the caller, to their end, and remembered by their keys for as long as this process lives."""

    def __init__(self, deployer: Deployer) -> None:
        self._deployer = deployer
        self._names: dict[str, str] = {}

    def find_run(self, key: str) -> RunRecord | None:
        return self._deployer.show(self._names[key]) if key in self._names else None

    def begin(self, request: RunRequest, *, key: str) -> RunRecord:
        if (run := self.find_run(key)) is not None:
            return run
        return self._deployer.run(request, observe=lambda event: self._record_event(key, event))

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        return self._deployer.stop(run, task)

    def show(self, run: str) -> RunRecord:
        return self._deployer.show(run)

    def get_job_planner(self) -> JobPlanner:
        assert isinstance(self._deployer, EmbeddedDeployer)
        return require_job_planner(self._deployer.batch)

    def find_full_run(self, *, app: str, team: str, workflow: str) -> RunRecord | None:
        assert isinstance(self._deployer, EmbeddedDeployer)
        return self._deployer.find_full_run(app=app, team=team, workflow=workflow)

    def list_newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        records = self._deployer.runs(limit=limit)
        return [record for record in records if (record.app, record.team, record.workflow) == (app, team, workflow)]

    def _record_event(self, key: str, event: object) -> None:
        if key and isinstance(event, RunStarted):
            self._names[key] = event.run


def do(
    deployer: Deployer, applications: Any, call: PrimitiveCall, *, runs: Any = None, **options: Any
) -> PrimitiveResult:
    """Carry out one call; without ``runs``, they are driven here, to their end."""
    return carry_out(call, PrimitiveContext(deployer, applications, runs or InlineRuns(deployer), **options))


class Doing:
    """What an engine does for the application that is kept; ``always`` are arguments of each call."""

    def __init__(self, deployer: EmbeddedDeployer, applications: Remembered, **always: Any) -> None:
        self.deployer, self.applications, self.always = deployer, applications, always
        self.runs: InlineRuns = InlineRuns(deployer)
        self.notes: list[PrimitiveCall] = []

    def __call__(
        self, primitive: str, key: str = "k", noted: PrimitiveCall | None = None, **arguments: Any
    ) -> PrimitiveResult:
        call = PrimitiveCall(primitive=primitive, arguments={**self.always, **arguments})
        return self.call(call, key=key, noted=noted)

    def call(
        self,
        call: PrimitiveCall,
        *,
        key: str = "k",
        noted: PrimitiveCall | None = None,
        notes: list[PrimitiveCall] | None = None,
    ) -> PrimitiveResult:
        note, app = (self.notes if notes is None else notes).append, self.applications.application
        fields: dict[str, Any] = {"app": app.name, "team": app.team, "key": key, "noted": noted, "note": note}
        return do(self.deployer, self.applications, call, runs=self.runs, **fields)

    def undo(self, done: PrimitiveResult, key: str = "undo") -> PrimitiveResult:
        assert done.inverse is not None
        return self.call(done.inverse, key=key)
