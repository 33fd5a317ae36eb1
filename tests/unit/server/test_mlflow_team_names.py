"""What of a team's requests is looked at before MLflow's own authorization."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.http.security import Receive, Scope, Send
from scanflow_server.mlflow_access import ArtifactAddresses
from scanflow_server.mlflow_teams import TeamRequests

API, FILES = "/api/2.0/mlflow", "/api/2.0/mlflow-artifacts/artifacts"
ROOT = Path("/srv/artifacts")
PLACES = {"alpha": "1/run", "beta": "2/run"}
OTHERS = f"{ROOT.as_uri()}/{PLACES['alpha']}/model"


@dataclass
class Mlflow:
    """Stands in for MLflow and for what the database says."""

    status: int = 200
    requests: list[tuple[str, str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        team = dict(scope["headers"]).get(b"x-scanflow-team", b"-").decode()
        self.requests.append((scope["path"], team, json.loads(body) if body else None))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"Permission denied"})

    def owns_place(self, team: str, path: str) -> bool:
        return path.startswith(PLACES[team]) and ".." not in path

    def find_owner(self, table: str, name: str) -> str | None:
        return {("experiments", "work"): "alpha", ("registered_models", "net"): "alpha"}.get((table, name))


@pytest.fixture
def mlflow() -> Mlflow:
    return Mlflow()


def ask(mlflow: Mlflow, method: str, path: str, *, team: str | None = "beta", **content: Any) -> httpx2.Response:
    async def send() -> httpx2.Response:
        app = TeamRequests(mlflow, access=mlflow, addresses=ArtifactAddresses(ROOT))
        headers = {} if team is None else {"x-scanflow-team": team}
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://t", headers=headers
        ) as client:
            return await client.request(method, path, **content)

    return asyncio.run(send())


def test_a_request_of_no_team_is_passed_on_as_it_is(mlflow: Mlflow) -> None:
    body = {"name": "work", "artifact_location": OTHERS, "tags": [{"key": "scanflow.team", "value": "alpha"}]}
    assert ask(mlflow, "POST", f"{API}/experiments/create", team=None, json=body).status_code == 200
    assert ask(mlflow, "GET", f"{FILES}/1/run/model", team=None).status_code == 200
    assert mlflow.requests == [(f"{API}/experiments/create", "-", body), (f"{FILES}/1/run/model", "-", None)]


@pytest.mark.parametrize("path", ["2/run/model", "1/run/model", "2/run/%252e%252e/1/run", ""])
def test_files_are_the_team_s_own_by_their_folder(mlflow: Mlflow, path: str) -> None:
    status = 200 if path == "2/run/model" else 404
    for method in ("GET", "PUT", "DELETE"):
        if path:
            assert ask(mlflow, method, f"{FILES}/{path}").status_code == status
    assert ask(mlflow, "GET", FILES, params={"path": path}).status_code == status
    # MLflow's own rule knows an experiment's folder by its number alone, and is not asked
    assert {team for _, team, _ in mlflow.requests} <= {"-"}


def test_what_is_made_gets_its_owner(mlflow: Mlflow) -> None:
    own = {"key": "scanflow.team", "value": "beta"}
    for tags in ([], [{"key": "a", "value": "b"}], [own]):
        for kind in ("experiments", "registered-models"):
            assert ask(mlflow, "POST", f"{API}/{kind}/create", json={"name": "new", "tags": tags}).status_code == 200
            others = [tag for tag in tags if tag != own]
            assert mlflow.requests[-1] == (f"{API}/{kind}/create", "beta", {"name": "new", "tags": [*others, own]})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/experiments/create", {"name": "work"}),
        ("/registered-models/create", {"name": "net"}),
        ("/experiments/create", {"name": "new", "artifact_location": f"{ROOT.as_uri()}/{PLACES['beta']}"}),
        ("/experiments/create", {"name": "new", "artifactLocation": f"{ROOT.as_uri()}/{PLACES['beta']}"}),
        ("/experiments/create", {"name": "new", "tags": [{"key": "scanflow.team", "value": "alpha"}]}),
        ("/experiments/create", {"name": "new", "tags": "text"}),
        ("/experiments/set-experiment-tag", {"key": "scanflow.team", "value": "alpha"}),
        ("/experiments/delete-experiment-tag", {"key": "scanflow.team"}),
        ("/registered-models/set-tag", {"name": "n", "key": "scanflow.team", "value": ""}),
        ("/model-versions/set-tag", {"name": "n", "version": "1", "key": "scanflow.team", "value": "alpha"}),
        ("/model-versions/create", {"name": "n", "tags": [{"key": "scanflow.team", "value": "alpha"}]}),
        ("/logged-models", {"info": {"tags": {"scanflow.team": "alpha"}}}),
        ("/runs/log-batch", ["no", "object"]),
    ],
)
def test_a_name_a_place_or_an_owner_of_another_team_is_refused(mlflow: Mlflow, path: str, body: Any) -> None:
    reply = ask(mlflow, "POST", f"{API}{path}", json=body)
    assert (reply.status_code, reply.json()["error_code"], mlflow.requests) == (422, "INVALID_PARAMETER_VALUE", [])


def test_the_owner_is_not_removed_by_a_query_either(mlflow: Mlflow) -> None:
    query = {"name": "net", "key": "scanflow.team"}
    assert ask(mlflow, "DELETE", f"{API}/registered-models/delete-tag", params=query).status_code == 422
    assert mlflow.requests == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/model-versions/create", {"name": "n", "source": OTHERS}),
        ("PATCH", "/traces/t/tags", {"key": "mlflow.artifactLocation", "value": OTHERS}),
        ("PATCH", "/traces/t/tags", {"key": "mlflow.trace.archiveLocation", "value": OTHERS}),
        ("POST", "/traces", {"tags": {"mlflow.trace.archiveLocation": OTHERS}}),
    ],
)
def test_a_version_s_and_a_trace_s_files_are_the_team_s_own(
    mlflow: Mlflow, method: str, path: str, body: dict[str, Any]
) -> None:
    assert ask(mlflow, method, f"{API}{path}", json=body).status_code == 404
    own = json.loads(json.dumps(body).replace(PLACES["alpha"], PLACES["beta"]))
    assert ask(mlflow, method, f"{API}{path}", json=own).status_code == 200
    assert [request[0] for request in mlflow.requests] == [f"{API}{path}"]


def test_what_mlflow_refuses_is_as_if_it_were_not_there(mlflow: Mlflow) -> None:
    mlflow.status = 403
    reply = ask(mlflow, "GET", f"{API}/runs/get", params={"run_id": "r"})
    assert (reply.status_code, reply.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")
    assert "The team 'beta' has nothing by this name" in reply.json()["message"]
