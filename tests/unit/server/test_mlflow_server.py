"""MLflow's server in a cluster: it asks every request for a token, and is loaded by the first that has one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from scanflow.http.home_token import make_step_token
from scanflow.http.security import App, Receive, Scope, Send
from scanflow_server.mlflow_server import LazyApp, TokenCheck

KEY = "scanflow_key"
POD = make_step_token(KEY, "shop", "data")


class Mlflow:
    """Stands in for MLflow, and keeps what it is asked."""

    def __init__(self) -> None:
        self.loaded, self.requests = 0, list[tuple[str, str, bytes]]()
        self.teams: list[bytes | None] = []

    def load(self) -> App:
        self.loaded += 1
        return self.answer

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = int(dict(scope["headers"]).get(b"content-length", b"0"))
        body = (await receive())["body"][:length]  # as a WSGI application reads it
        self.requests.append((scope["method"], scope["path"], body))
        teams = [value for name, value in scope["headers"] if name.replace(b"_", b"-") == b"x-scanflow-team"]
        self.teams.append(b",".join(teams) or None)  # as WSGI has them
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def ask(mlflow: Mlflow, *requests: tuple[str, str, str | None, Any], **headers: str) -> list[int]:
    """Send requests (method, path, token, document) at once, and return the statuses."""

    async def send_all() -> list[int]:
        transport = httpx2.ASGITransport(TokenCheck(LazyApp(mlflow.load), KEY))
        async with httpx2.AsyncClient(transport=transport, base_url="http://tracker") as client:
            replies = await asyncio.gather(
                *(
                    client.request(
                        method,
                        path,
                        json=document,
                        headers={**headers, **({} if token is None else {"authorization": f"Bearer {token}"})},
                    )
                    for method, path, token, document in requests
                )
            )
        return [reply.status_code for reply in replies]

    return asyncio.run(send_all())


CREATE = "/api/2.0/mlflow/experiments/create"


@pytest.mark.parametrize("token", [None, "", "scanflow_wrong", make_step_token("another", "shop", "data"), POD[:-1]])
def test_without_its_token_nothing_is_reached_and_nothing_loaded(token: str | None) -> None:
    mlflow = Mlflow()
    assert ask(mlflow, ("GET", "/", token, None), ("POST", CREATE, token, {"name": "n"})) == [401, 401]
    assert mlflow.loaded == 0
    assert ask(mlflow, ("GET", "/health", token, None)) == [200], "for probes, without MLflow"
    assert mlflow.loaded == 0


def test_mlflow_is_loaded_once_however_many_ask_at_first() -> None:
    mlflow = Mlflow()
    assert ask(mlflow, *[("GET", "/", KEY, None)] * 5) == [200] * 5
    assert (mlflow.loaded, len(mlflow.requests)) == (1, 5)


def test_pods_track_and_register_and_do_nothing_else() -> None:
    mlflow = Mlflow()
    assert ask(
        mlflow,
        ("POST", "/api/2.0/mlflow/runs/create", POD, {"experiment_id": "1"}),
        ("POST", CREATE, POD, {"name": "n", "artifact_location": "mlflow-artifacts:/n"}),
        ("POST", "/api/2.0/mlflow/webhooks", POD, {}),
        ("POST", "/ajax-api/3.0/jobs/", POD, {}),
        ("POST", CREATE, POD, {"name": "n", "artifact_location": "file:///etc"}),
        ("POST", "/api/2.0/mlflow/webhooks", KEY, {}),
    ) == [200, 200, 404, 404, 422, 200]
    sent = {path: json.loads(body) for _, path, body in mlflow.requests}
    assert sent[CREATE] == {"name": "n", "artifact_location": "mlflow-artifacts:/n"}


def test_a_pod_is_of_the_team_of_its_token_and_the_server_says_which_a_request_is_of() -> None:
    mlflow, path = Mlflow(), "/api/2.0/mlflow/runs/get"
    header = {"x-scanflow-team": "another"}
    underscores = {"x_scanflow_team": "another"}
    assert ask(mlflow, ("GET", path, POD, None), ("GET", path, POD, None), **header) == [200, 200]
    assert ask(mlflow, ("GET", path, POD, None), **underscores) == [200]
    assert ask(mlflow, ("GET", path, POD, None), ("GET", path, KEY, None)) == [200, 200]
    assert ask(mlflow, ("GET", path, KEY, None), **header) == [200]
    assert mlflow.teams == [b"data", b"data", b"data", b"data", None, b"another"]
