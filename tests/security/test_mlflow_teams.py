"""Two teams behind one server, with a real MLflow: what is another team's is as if it were not there."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from scanflow.http.home_token import make_step_token, read_home_token
from scanflow.knowledge.mlflow.server_address import find_server_socket, is_listening
from scanflow.knowledge.step_environment import get_sqlite_path, locate_tracker
from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.context import make_context
from scanflow_server.mlflow_access import classify_request
from scanflow_server.settings import ServerSettings
from scanflow_server.store.migrations import migrate
from tests.asking import http_client
from tests.server import bearer
from tests.unit.server.answering import answering
from tests.waiting import patient, until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
API = "/api/2.0/mlflow"


class Mlflow:
    """MLflow through the server, for one caller."""

    def __init__(self, url: str, client: httpx.Client, headers: dict[str, str]) -> None:
        self._url, self._client, self._headers = url, client, headers

    def send(self, method: str, path: str, **content: Any) -> httpx.Response:
        whole = (
            path
            if path.startswith(
                ("/api/", "/ajax-api/", "/graphql", "/get-artifact", "/model-versions/get-artifact", "/v1/")
            )
            else API + path
        )
        return self._client.request(method, self._url + whole, headers=self._headers, **content)

    def do(self, method: str, path: str, **content: Any) -> Any:
        reply = self.send(method, path, **content)
        assert reply.status_code == 200, (path, reply.text)
        return reply.json()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def callers(home: Path) -> Iterator[dict[str, Mlflow]]:
    place = locate_tracker(home)
    environment = {**os.environ, "SCANFLOW_HOME": str(home)}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "scanflow_server.mlflow_server"], env=environment, stderr=log)
    context = make_context(ServerSettings(library=Settings(home=home, slots=2)))
    try:
        until(lambda: (path := find_server_socket(place)) is not None and is_listening(path), "MLflow listens")
        migrate(context.store)
        register_home(context)
        token = str(read_home_token(home))
        with answering(context) as url, http_client(timeout=patient(60)) as client:
            headers = {"owner": bearer(token), "step": bearer(make_step_token(token, "shop", "alpha"))}
            for name, role, team in (
                ("alpha", "editor", "alpha"),
                ("beta", "editor", "beta"),
                ("viewer", "viewer", "beta"),
                ("default", "editor", "default"),
            ):
                body = {"name": name, "role": role, "team": team}
                made = client.post(f"{url}/api/v1/tokens", json=body, headers=headers["owner"])
                headers[name] = bearer(made.json()["token"])
            yield {name: Mlflow(f"{url}/mlflow", client, mine) for name, mine in headers.items()}
    finally:
        context.store.close()
        process.send_signal(signal.SIGTERM)
        process.wait(patient(60))


@pytest.fixture(scope="module")
def things(callers: dict[str, Mlflow]) -> dict[str, str]:
    """Return the names of something of each kind of the team alpha."""
    alpha = callers["alpha"]
    experiment = alpha.do("POST", "/experiments/create", json={"name": "alpha-work"})["experiment_id"]
    run = alpha.do("POST", "/runs/create", json={"experiment_id": experiment, "start_time": 1})["run"]["info"]
    alpha.do("POST", "/runs/log-metric", json={"run_id": run["run_id"], "key": "m", "value": 1, "timestamp": 1})
    folder = run["artifact_uri"].removeprefix("mlflow-artifacts:").strip("/")
    alpha.send("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{folder}/secret.txt", content=b"alpha's").raise_for_status()
    alpha.do("POST", "/registered-models/create", json={"name": "alpha-model"})
    source = f"runs:/{run['run_id']}/model"
    body = {"name": "alpha-model", "source": f"{run['artifact_uri']}/secret.txt", "run_id": run["run_id"]}
    alpha.do("POST", "/model-versions/create", json=body)
    alpha.do("POST", "/registered-models/alias", json={"name": "alpha-model", "alias": "champion", "version": "1"})
    logged = alpha.do("POST", "/logged-models", json={"experiment_id": experiment, "name": "alpha-logged"})
    trace = alpha.do("POST", "/traces", json={"experiment_id": experiment, "timestamp_ms": 1})["trace_info"]
    data = alpha.do(
        "POST", "/api/3.0/mlflow/datasets/create", json={"name": "alpha-data", "experiment_ids": [experiment]}
    )
    return {
        "experiment_id": experiment, "experiment_name": "alpha-work", "run_id": run["run_id"],
        "run_uuid": run["run_id"],
        "name": "alpha-model", "source": source, "place": run["artifact_uri"], "folder": folder,
        "model_id": logged["model"]["info"]["model_id"], "request_id": trace["request_id"],
        "trace_id": trace["request_id"], "dataset_id": data["dataset"]["dataset_id"],
    }  # fmt: skip


def test_each_sees_its_own(callers: dict[str, Mlflow], things: dict[str, str]) -> None:
    for name in ("alpha", "step", "owner"):
        assert callers[name].do("GET", "/runs/get", params={"run_id": things["run_id"]})["run"]["data"]["metrics"]
        assert callers[name].do("GET", "/registered-models/get", params={"name": "alpha-model"})
        path = f"/api/2.0/mlflow-artifacts/artifacts/{things['folder']}/secret.txt"
        assert callers[name].send("GET", path).content == b"alpha's"


@pytest.mark.parametrize("name", ["beta", "viewer", "default"])
def test_lists_and_searches_hold_nothing_of_another_team(
    callers: dict[str, Mlflow], things: dict[str, str], name: str
) -> None:
    other, experiments = callers[name], [things["experiment_id"]]
    for method, path, content in (
        ("POST", "/experiments/search", {"json": {"max_results": 100}}),
        ("POST", "/runs/search", {"json": {"experiment_ids": experiments}}),
        ("GET", "/registered-models/search", {}),
        ("GET", "/model-versions/search", {}),
        ("GET", "/model-versions/search", {"params": {"filter": f"run_id = '{things['run_id']}'"}}),
        ("POST", "/logged-models/search", {"json": {"experiment_ids": experiments}}),
        ("GET", "/traces", {"params": {"experiment_ids": experiments}}),
        ("POST", "/api/3.0/mlflow/datasets/search", {"json": {}}),
        ("POST", "/experiments/search-datasets", {"json": {"experiment_ids": experiments}}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts", {"params": {"path": ""}}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts", {"params": {"path": things["folder"]}}),
    ):
        reply = other.send(method, path, **content)
        assert reply.status_code in {200, 400, 403, 404, 405}, (path, reply.text)
        assert "alpha" not in reply.text, path
        assert reply.status_code == 404 or things["run_id"] not in reply.text, path


def list_routes() -> list[tuple[str, str]]:
    """Return every route of MLflow that a token may reach: method and path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what MLflow imports
        from mlflow.server import app
        from mlflow.server.fastapi_app import create_fastapi_app

    routes = [(method, rule.rule) for rule in app.url_map.iter_rules() for method in rule.methods or ()]
    for route in create_fastapi_app(app).routes:
        path = re.sub(r"{(\w+)(?::path)?}", r"<\1>", getattr(route, "path", ""))
        routes += [(method, path) for method in getattr(route, "methods", None) or ()]
    sent = {(method, rule) for method, rule in routes if method not in {"OPTIONS", "HEAD"}}
    return sorted((method, rule) for method, rule in sent if classify_request(method, re.sub(r"<.*?>", "x", rule)))


def read_rows(home: Path) -> dict[str, set[tuple[Any, ...]]]:
    """Return all rows of MLflow's database, by table."""
    path = get_sqlite_path(locate_tracker(home).tracking_uri)
    assert path is not None
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: set(database.execute(f'SELECT * FROM "{name}"')) for name in names}


UNSCOPED = re.compile(r"/|/version|/health|/static-files/.*|.*/server-info|/graphql")


def test_no_route_answers_with_or_changes_what_is_another_team_s(
    callers: dict[str, Mlflow], things: dict[str, str], home: Path
) -> None:
    """Every route that MLflow registers is sent all names that there are of another team's things."""
    extra = {
        "experiment_ids": [things["experiment_id"]], "run_ids": [things["run_id"]], "metric_key": "m", "key": "m",
        "value": "stolen", "alias": "champion", "version": "1", "new_name": "stolen", "path": "secret.txt",
        "tags": [{"key": "k", "value": "stolen"}], "artifact_path": "secret.txt", "stage": "Production",
    }  # fmt: skip
    names = {**things, **extra}
    before, shown, attacked = read_rows(home), [], 0
    secrets = {"alpha-", "alpha's", *(things[key] for key in ("run_id", "model_id", "trace_id", "dataset_id"))}
    for method, rule in list_routes():
        if UNSCOPED.fullmatch(rule):
            continue
        path = re.sub(
            r"<(?:path:)?(\w+)>", lambda match: str(names.get(match[1], f"{things['folder']}/secret.txt")), rule
        )
        content = {"params": {**things, **extra, "tags": ""}} if method == "GET" else {"json": names}
        reply = callers["beta"].send(method, path, **content)
        attacked += 1
        if reply.status_code == 200 and any(secret in reply.text for secret in secrets):
            shown.append((method, rule, reply.text))
    assert shown == []
    assert attacked > 100, attacked
    after = read_rows(home)
    changed = {name: rows - after[name] for name, rows in before.items() if rows - after[name]}
    assert changed == {}
    made = {name: rows - before[name] for name, rows in after.items()}
    assert [row for rows in made.values() for row in rows if secrets & set(map(str, row))] == []
    path = f"/api/2.0/mlflow-artifacts/artifacts/{things['folder']}/secret.txt"
    assert callers["alpha"].send("GET", path).content == b"alpha's"


GRAPH_QUERIES = (
    'query {{ mlflowGetExperiment(input: {{experimentId: "{experiment_id}"}}) {{ experiment {{ name }} }} }}',
    'query {{ mlflowGetRun(input: {{runId: "{run_id}"}}) {{ run {{ info {{ runUuid artifactUri }} }} }} }}',
    'query {{ mlflowSearchRuns(input: {{experimentIds: ["{experiment_id}"]}}) {{ runs {{ info {{ runUuid }} }} }} }}',
    'query {{ mlflowListArtifacts(input: {{runId: "{run_id}"}}) {{ files {{ path }} }} }}',
    "query {{ mlflowSearchModelVersions(input: {{}}) {{ modelVersions {{ name source }} }} }}",
)


@pytest.mark.parametrize("query", GRAPH_QUERIES)
def test_graph_queries_answer_with_the_team_s_own(
    callers: dict[str, Mlflow], things: dict[str, str], query: str
) -> None:
    body = {"query": query.format(**things)}
    own, other = (callers[name].send("POST", "/graphql", json=body).text for name in ("alpha", "beta"))
    assert any(secret in own for secret in ("alpha-", things["run_id"], "secret.txt")), own
    assert not any(secret in other for secret in ("alpha-", "secret.txt", things["folder"])), other


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_streamed_files_of_another_team_are_not_there(
    callers: dict[str, Mlflow], things: dict[str, str], method: str
) -> None:
    path = "/api/2.0/mlflow-artifacts/artifacts"
    named = (f"{path}/{things['folder']}/secret.txt", f"{path}/{things['folder']}/%2573ecret.txt")
    assert [callers["beta"].send(method, name).status_code for name in named] == [404, 404]
    listed = callers["beta"].send("GET", path, params={"path": things["folder"]})
    assert (listed.status_code, "secret" in listed.text) == (404, False)


def test_no_place_or_owner_of_another_team_is_taken(callers: dict[str, Mlflow], things: dict[str, str]) -> None:
    beta = callers["beta"]
    own = beta.do("POST", "/experiments/create", json={"name": "beta-work"})["experiment_id"]
    run = beta.do("POST", "/runs/create", json={"experiment_id": own})["run"]["info"]
    trace = beta.do("POST", "/traces", json={"experiment_id": own, "timestamp_ms": 1})["trace_info"]["request_id"]
    beta.do("POST", "/registered-models/create", json={"name": "beta-model"})
    version = {"name": "beta-model", "run_id": run["run_id"]}
    place, other, logged = things["place"], things["run_id"], things["model_id"]
    inside = f"{run['artifact_uri']}/../../../{things['folder']}/secret.txt"
    for path, body in (
        ("/experiments/create", {"name": "b2", "artifact_location": place}),
        ("/model-versions/create", {"name": "beta-model", "source": place}),
        ("/model-versions/create", {"name": "beta-model", "source": place, "run_id": other}),
        ("/model-versions/create", {"name": "beta-model", "source": things["source"]}),
        ("/model-versions/create", {"name": "beta-model", "source": things["source"], "run_id": other}),
        ("/model-versions/create", {"name": "beta-model", "source": f"models:/{logged}"}),
        ("/model-versions/create", {"name": "beta-model", "source": "models:/alpha-model/1"}),
        ("/model-versions/create", {"name": "beta-model", "source": "models:/alpha-model@champion"}),
        ("/model-versions/create", {"name": "beta-model", "source": "s3://bucket/x"}),
        ("/model-versions/create", {**version, "source": place}),
        ("/model-versions/create", {**version, "source": things["source"]}),
        ("/model-versions/create", {**version, "source": inside}),
        ("/model-versions/create", {**version, "source": run["artifact_uri"], "model_id": logged}),
        ("/model-versions/create", {"name": "alpha-model", "source": run["artifact_uri"], "run_id": run["run_id"]}),
        ("/experiments/set-experiment-tag", {"experiment_id": own, "key": "scanflow.team", "value": "alpha"}),
        ("/registered-models/set-tag", {"name": "beta-model", "key": "scanflow.team", "value": "alpha"}),
        ("/experiments/create", {"name": "b3", "tags": [{"key": "scanflow.team", "value": "alpha"}]}),
        ("/runs/create", {"experiment_id": things["experiment_id"]}),
    ):
        reply = beta.send("POST", path, json=body)
        assert reply.status_code in {400, 403, 404, 422}, reply.text
    unknown = "m-" + "0" * 32
    replies = [
        beta.send(
            "POST", "/model-versions/create", json={"name": "beta-model", "source": f"models:/{id}", "model_id": id}
        )
        for id in (logged, unknown)
    ]
    assert replies[0].text.replace(logged, unknown) == replies[1].text
    assert {reply.status_code for reply in replies} == {404}
    location = {"key": "mlflow.artifactLocation", "value": place}
    assert beta.send("PATCH", f"/traces/{trace}/tags", json=location).status_code in {400, 403, 404, 422}
    experiments = beta.do("POST", "/experiments/search", json={"max_results": 9})["experiments"]
    assert {"b2", "b3"}.isdisjoint(experiment["name"] for experiment in experiments)
    assert beta.do("GET", "/model-versions/search") == {}


def test_a_version_of_the_team_s_own_is_made_and_read(callers: dict[str, Mlflow], things: dict[str, str]) -> None:
    alpha = callers["alpha"]
    for source in (things["source"], "models:/alpha-model/1", f"{things['place']}/model"):
        body = {"name": "alpha-model", "source": source}
        body |= {} if source.startswith("models:") else {"run_id": things["run_id"]}
        alpha.do("POST", "/model-versions/create", json=body)


def test_what_says_no_team_is_the_default_team_s(callers: dict[str, Mlflow]) -> None:
    made = callers["owner"].do("POST", "/experiments/create", json={"name": "of-nobody"})["experiment_id"]
    statuses = [
        callers[name].send("GET", "/experiments/get", params={"experiment_id": made}).status_code
        for name in ("default", "alpha", "viewer")
    ]
    assert statuses == [200, 404, 404]


def test_a_header_of_the_sender_s_own_changes_nothing(callers: dict[str, Mlflow], things: dict[str, str]) -> None:
    beta = callers["beta"]
    for value in ("alpha", ""):
        forged = Mlflow(beta._url, beta._client, {**beta._headers, "x-scanflow-team": value})
        assert forged.send("GET", "/runs/get", params={"run_id": things["run_id"]}).status_code == 404
