"""A server with a bit of everything of one team, and nothing of another."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import httpx2
import numpy as np

from scanflow.drift.thumbnail import encode_thumbnail
from scanflow.http.home_token import read_home_token
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, application_store, event_store, intent_store, label_store, run_store
from scanflow_server.store.label_store import LabelCandidate
from tests.http_requests import http_client
from tests.server import bearer
from tests.unit.server.answering import a_service
from tests.unit.server.server_rows import make_action_row, make_request_row
from tests.waiting import patient

PNG = encode_thumbnail(np.arange(784).reshape(28, 28))
assert PNG is not None
PICTURE = base64.b64encode(PNG).decode()
HTTP = http_client(timeout=patient(60))

APP: dict[str, Any] = {
    "schema": "scanflow/v1",
    "name": "alpha-app",
    "team": "alpha",
    "app_dir": "/nowhere",
    "workflows": [
        {"name": "alpha-work", "nodes": [{"kind": "executor", "name": "fit", "mainfile": "fit.py"}]},
        {
            "name": "alpha-service",
            "type": "online",
            "nodes": [{"kind": "service", "name": "m", "model": "models:/alpha-model/1"}],
        },
    ],
    "agents": [{"name": "alpha-agent", "template": "tracker"}],
}
INTENT = {
    "id": "i9", "app": "alpha-app", "team": "alpha", "agent": "a", "strategy": "s", "primitive": "run_workflow",
    "arguments": {"workflow": "alpha-work"}, "target": "workflow/alpha-work", "fields": ["running"], "key": "k9",
    "at": 5.0,
}  # fmt: skip
SENT: Mapping[str, Any] = {
    "POST /events": [{"at": 1.0, "type": "x", "app": "alpha-app", "subject": "s"}],
    "POST /intents": INTENT,
    "POST /labels": {"app": "alpha-app", "team": "alpha", "items": [{"id": "alpha-sample"}]},
    "POST /labels/{id}": {"label": 3},
    "PATCH /labels": {"labels": [{"id": "alpha-sample", "label": 3}]},
    "POST /agents/{app}/{agent}/heartbeat": {"url": "http://127.0.0.1:9", "pid": 5},
    "PUT /agents/{app}/{agent}/strategies": [],
    "POST /runs": {"application": APP, "workflow": "alpha-work"},
    "POST /runs/plan": {"application": APP, "workflow": "alpha-work"},
    "POST /runs/{run}/spin": {"step": "fit"},
    "POST /functions": {"pickled": "AAAA", "python": "0", "cloudpickle": "0", "scanflow": "0"},
    "POST /services": {"application": APP, "workflow": "alpha-service"},
    "PATCH /services/{name}": {"instances": 2},
    "PUT /applications/{app}": {"application": APP},
    "PUT /agents/{app}/{agent}": {"application": APP},
    "POST /intents/{id}/approve": {},
    "POST /intents/{id}/refuse": {},
    "POST /intents/{id}/revert": {},
    "POST /tokens": {"name": "eve", "team": "alpha"},
}


def batch(app: str, team: str) -> dict[str, Any]:
    step = {"kind": "executor", "name": "fit", "function": "math:sqrt", "parameters": {"x": 1}}
    return {**APP, "name": app, "team": team, "workflows": [{"name": "alpha-work", "nodes": [step]}], "agents": []}


class Two:
    """A server with a bit of everything of the team alpha, and nothing of the team beta."""

    def __init__(self, context: ServerContext, url: str) -> None:
        self.context, self.url, self.root = context, url, url.removesuffix("/api/v1")
        self.home = bearer(str(read_home_token(context.settings.home)))
        self._fill()

    def token(self, team: str | None, role: str, **more: Any) -> dict[str, str]:
        body = {"name": f"{team or 'all'}-{role}", "team": team, "role": role, **more}
        response = HTTP.post(f"{self.url}/tokens", json=body, headers=self.home)
        assert response.status_code in {201, 503, 409}, response.text
        return bearer(response.json()["token"])

    def enter_run(self, team: str, app: str) -> str:
        """Return the name of a run that was asked for, and that no controller drives."""
        response = HTTP.post(f"{self.url}/runs", json={"application": batch(app, team)}, headers=self.home)
        assert response.status_code == 201, response.text
        return str(response.json()["name"])

    def ask(self, route: str, headers: dict[str, str], names: Mapping[str, str], **more: Any) -> httpx2.Response:
        method, _, path = route.partition(" ")
        for name in re.findall(r"{(\w+)}", path):
            path = path.replace(f"{{{name}}}", names[f"{path.split('/')[1]}.{name}"])
        address = self.root + path if path == "/metrics" else self.url + path
        sent = {"json": SENT[route]} if route in SENT else {}
        return HTTP.request(method, address, headers=headers, **{**sent, **more})

    @property
    def alphas(self) -> dict[str, str]:
        return {
            "runs.run": self.run, "runs.step": "fit", "runs.task": "fit", "services.name": "alpha-service",
            "operations.id": "deploy-aaaaaaaaaaaa", "applications.app": "alpha-app", "agents.app": "alpha-app",
            "agents.agent": "alpha-agent", "intents.id": "alpha-intent", "labels.id": "alpha-sample",
            "tokens.name": "alpha-viewer", "logins.id": "alpha-login",
        }  # fmt: skip

    @property
    def nobodys(self) -> dict[str, str]:
        """Names of nothing: what is asked of them is to be answered as what is asked of the alphas'."""
        others = {name: value.replace("alpha", "omega") for name, value in self.alphas.items()}
        return others | {"runs.run": "x" * len(self.run), "operations.id": "deploy-bbbbbbbbbbbb"}

    def count_rows(self) -> list[int]:
        """Return how many rows there are of everything that could be changed or made."""
        with self.context.store.read() as connection:
            return [
                len(rows)
                for rows in (
                    run_store.list_active(connection),
                    intent_store.list_open_changes(connection),
                    application_store.list_all(connection),
                    agent_store.list_all(connection),
                    intent_store.list_actions(connection),
                    label_store.list_labels(connection, state="wanted"),
                    event_store.list_after(connection, 0, team="alpha"),
                )
            ]

    def _fill(self) -> None:
        context = self.context
        whose: dict[str, Any] = {"app": "alpha-app", "team": "alpha"}
        with context.store.write() as connection:
            agent_store.put(connection, app="alpha-app", name="alpha-agent", team="alpha", document=APP, source=None)
        self.run = self.enter_run("alpha", "alpha-app")
        service = a_service("alpha-service", "ready").model_copy(update=whose)
        context.deployer.services = lambda *_, **__: [service]  # type: ignore[method-assign]
        context.deployer.service = lambda name: service  # type: ignore[method-assign]
        with context.store.write() as connection:
            intent_store.add(connection, make_request_row("deploy-aaaaaaaaaaaa", "deploy", "alpha-service", **whose))
            application_store.put(connection, name="alpha-app", team="alpha", document=APP, source=None, at=1.0)
            intent_store.add(
                connection,
                make_action_row(
                    "alpha-intent",
                    "pending",
                    "approve",
                    **whose,
                    agent="alpha-agent",
                    target="service/alpha-service",
                    key="alpha",
                ),
            )
            label_store.enqueue(
                connection, "alpha-app", [LabelCandidate(id="alpha-sample", picture=PICTURE)], at=1.0, team="alpha"
            )
            label_store.enqueue(connection, "alpha-app", [LabelCandidate(id="alpha-other")], at=1.0)
            event_store.record(connection, "x", "alpha-thing", at=1.0, **whose, data={"alpha": 1})
            event_store.record(connection, "predictions.counted", "alpha-agent", at=1.0, **whose, data={"new": 1})
