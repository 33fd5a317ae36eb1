"""A server that acts on a cluster: what agents want is sent to it as their strategies send it."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import httpx2

from scanflow.agent.agent_records import Action
from scanflow.agent.decide import build_intent
from scanflow.agent.primitive_model import Act
from scanflow.app.application import Application
from scanflow.app.application_files import dump_document, load_json
from tests.permissions import permit_strategies_at
from tests.server import ServerProcess, bearer
from tests.waiting import wait_until

PATIENCE_S = 200.0
"""For one action: a change of a service may replace all of its pods."""


class Acting:
    """One server, which acts for one application, and the agent that asks it."""

    def __init__(self, folder: Path, app: Application, **environ: str) -> None:
        self.app, self._count = app, itertools.count(1)
        self.server = ServerProcess(folder / "server", environ={"SCANFLOW_BACKEND": "kubernetes", **environ})

    def __enter__(self) -> Acting:
        try:
            self.server.start()
            self._put()
            permit_strategies_at(self.server.home, "tests", app=self.app.name, team=self.app.team)
            body = {"name": "planner", "role": "agent", "team": self.app.team}
            token = self._people("POST", "/tokens", json=body)["token"]
            self._agent = httpx2.Client(base_url=self.server.api.base_url, headers=bearer(token), timeout=60)
        except BaseException:
            self.server.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.close()
        self.server.close()

    def _put(self) -> None:
        self._people("PUT", f"/applications/{self.app.name}", json={"application": dump_document(self.app)})

    @property
    def current_app(self) -> Application:
        """The application as it is wanted now."""
        return load_json(json.dumps(self._people("GET", f"/applications/{self.app.name}")["application"]))

    def ask(self, act: Act) -> Action:
        """Send what an agent wants, and return how it ended."""
        fields: dict[str, Any] = {"agent": "planner", "strategy": "tests", "at": time.time()}
        key = f"planner/tests/{next(self._count)}"
        wanted = build_intent(act, app=self.app.name, team=self.app.team, key=key, **fields)
        response = self._agent.post("/intents", json=wanted.model_dump(mode="json"))
        assert (response.status_code, response.json().get("verdict")) == (200, "act"), response.text
        wait_until(lambda: self.action(wanted.id).ended is not None, f"{act} is over", patience_s=PATIENCE_S)
        return self.action(wanted.id)

    def do(self, act: Act) -> Action:
        """Have an agent do it, and return how it was done."""
        done = self.ask(act)
        assert (done.state, done.error) == ("succeeded", None), f"{act}: {done.error}"
        return done

    def begin(self, act: Act) -> tuple[Action, str]:
        """Have an agent begin a run, and return how that was done and the run's name."""
        done = self.do(act)
        assert isinstance(done.result, dict)
        return done, str(done.result["run"])

    def refusal(self, act: Act) -> str:
        """Return why an agent's wish could not be carried out."""
        done = self.ask(act)
        assert done.state == "failed", f"{act}: {done.state}"
        return done.error or ""

    def take_back(self, done: Action) -> None:
        """Undo it, as a person does."""
        back = self._people("POST", f"/intents/{done.id}/revert", json={"reason": "the test"}, timeout=PATIENCE_S)
        wait_until(
            lambda: self.action(done.id).state == "reverted" or self.action(done.id).error,
            f"{done.intent.primitive} is taken back ({back['state']})",
            patience_s=PATIENCE_S,
        )
        assert self.action(done.id).error is None, self.action(done.id).error

    def action(self, id: str) -> Action:
        return Action.model_validate(self._people("GET", f"/intents/{id}"))

    def run(self, name: str) -> dict[str, Any]:
        """Return a run as it stands."""
        return self._people("GET", f"/runs/{name}")

    def log(self, run: str, task: str) -> str:
        """Return what a task has printed."""
        return self.server.api.get(f"/runs/{run}/tasks/{task}/logs").text

    def _people(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        answer = self.server.api.request(method, path, **request)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        document: dict[str, Any] = answer.json()
        return document
