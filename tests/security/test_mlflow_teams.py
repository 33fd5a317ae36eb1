"""Two teams behind one server, with a real MLflow: what is another team's is as if it were not there."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import scanflow as sf
from scanflow.app.application_files import dump_json
from scanflow_server.mlflow_access import classify_request
from tests.conftest import home_in
from tests.databases import private_postgres
from tests.security.mlflow_teams import ARTIFACTS, TeamsServer, do_work, see, serve_teams
from tests.server import bearer

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.filterwarnings("default")]
OTHERS = ("beta", "viewer", "default")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def teams_server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[TeamsServer]:
    with home_in(tmp_path_factory.mktemp(f"teams-{request.param}")) as home:
        if request.param == "sqlite":
            with serve_teams(home, None) as served:
                yield served
        else:
            with private_postgres() as postgres:
                database = postgres.new_database().replace("postgresql:", "postgresql+psycopg:")
                with serve_teams(home, database) as served:
                    yield served


def make_things(door: TeamsServer, team: str, number: int = 2) -> dict[str, str]:
    """Return the names of something of each kind of a team."""

    def do(method: str, path: str, **body: Any) -> Any:
        return door.do(team, method, path, json=body)

    name = f"{team}-model-{number}"
    experiment = do("POST", "/experiments/create", name=f"{team}-work-{number}")["experiment_id"]
    run = do("POST", "/runs/create", experiment_id=experiment, start_time=1)["run"]["info"]
    do("POST", "/runs/log-metric", run_id=run["run_id"], key="m", value=1, timestamp=1)
    folder = run["artifact_uri"].removeprefix("mlflow-artifacts:").strip("/")
    door.send(team, "PUT", f"{ARTIFACTS}/{folder}/secret.txt", content=f"{team}'s".encode()).raise_for_status()
    do("POST", "/registered-models/create", name=name)
    do("POST", "/model-versions/create", name=name, run_id=run["run_id"], source=run["artifact_uri"])
    do("POST", "/registered-models/alias", name=name, alias="champion", version="1")
    logged = do("POST", "/logged-models", experiment_id=experiment, name=f"{team}-logged-{number}")
    trace = do("POST", "/traces", experiment_id=experiment, timestamp_ms=1)["trace_info"]["request_id"]
    data = do("POST", "/api/3.0/mlflow/datasets/create", name=f"{team}-data", experiment_ids=[experiment])
    return {
        "experiment_id": experiment, "experiment_name": f"{team}-work-{number}", "run_id": run["run_id"],
        "run_uuid": run["run_id"], "name": name, "source": f"runs:/{run['run_id']}/model",
        "place": run["artifact_uri"], "folder": folder, "model_id": logged["model"]["info"]["model_id"],
        "request_id": trace, "trace_id": trace, "dataset_id": data["dataset"]["dataset_id"],
    }  # fmt: skip


@pytest.fixture(scope="module")
def things(teams_server: TeamsServer) -> dict[str, str]:
    return make_things(teams_server, "alpha")


def test_what_a_team_makes_is_its_own_and_what_it_sees_is_what_a_home_without_teams_shows(
    teams_server: TeamsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # where a client of a database writes files
    alone = MlflowClient(f"sqlite:///{tmp_path / 'alone.db'}")
    callers = ("alpha", *OTHERS)
    for team in ("alpha", "default"):
        shown = {}
        for caller in callers:
            with teams_server.client(caller) as client:
                shown[caller] = see(client)
        before = see(alone)
        do_work(alone, team, tmp_path)
        with teams_server.client(team) as client:
            do_work(client, team, tmp_path)
        for caller in callers:
            with teams_server.client(caller) as client:
                now = see(client)
            if caller == team:
                new = {kind: subtract(now[kind], shown[caller][kind]) for kind in now}
                expected = see(alone)
                assert new == {kind: subtract(expected[kind], before[kind]) for kind in expected}
                assert all(new.values())
            else:
                assert now == shown[caller], caller


def subtract(rows: list[Any], others: list[Any]) -> list[Any]:
    rest = list(rows)
    for row in others:
        rest.remove(row)
    return rest


def test_what_was_there_before_teams_is_the_team_s_that_it_names_or_the_default_team_s(
    teams_server: TeamsServer,
) -> None:
    shown = {}
    for caller in ("alpha", "beta", "default"):
        with teams_server.client(caller) as client:
            names = {experiment.name for experiment in client.search_experiments()}
            models = {model.name for model in client.search_registered_models()}
            shown[caller] = {name for name in names | models if name.startswith(("old", "scanflow-", "Default"))}
    assert shown == {
        "alpha": {"scanflow-shop-alpha", "old-of-run", "old-of-version"},
        "beta": set(),
        "default": {"Default", "old-work", "old-model"},
    }


def test_the_team_s_viewers_steps_and_admins_of_all_teams_see_it(
    teams_server: TeamsServer, things: dict[str, str]
) -> None:
    for caller in ("alpha", "step", "owner"):
        assert teams_server.do(caller, "GET", "/runs/get", params={"run_id": things["run_id"]})["run"]["data"][
            "metrics"
        ]
        assert teams_server.do(caller, "GET", "/registered-models/get", params={"name": things["name"]})
        assert teams_server.send(caller, "GET", f"{ARTIFACTS}/{things['folder']}/secret.txt").content == b"alpha's"


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


def read_rows(database: str) -> dict[str, set[str]]:
    """Return all rows of MLflow's database, by table."""
    engine = sa.create_engine(database)
    try:
        with engine.connect() as connection:
            names = sa.inspect(connection).get_table_names()
            return {
                name: {str(row) for row in connection.execute(sa.text(f'SELECT * FROM "{name}"'))} for name in names
            }
    finally:
        engine.dispose()


UNSCOPED = re.compile(r"/|/version|/health|/static-files/.*|.*/server-info|/graphql")


def test_no_route_answers_with_or_changes_what_is_another_team_s(
    teams_server: TeamsServer, things: dict[str, str]
) -> None:
    """Every route that MLflow registers is sent all names that there are of another team's things."""
    extra = {
        "experiment_ids": [things["experiment_id"]], "run_ids": [things["run_id"]], "metric_key": "m", "key": "m",
        "value": "stolen", "alias": "champion", "version": "1", "new_name": "stolen", "path": "secret.txt",
        "tags": [{"key": "k", "value": "stolen"}], "artifact_path": "secret.txt", "stage": "Production",
    }  # fmt: skip
    names = {**things, **extra}
    before, shown, attacked = read_rows(teams_server.database), [], 0
    secrets = {"alpha's", *(things[key] for key in ("run_id", "model_id", "trace_id", "dataset_id"))}
    for method, rule in list_routes():
        if UNSCOPED.fullmatch(rule):
            continue
        path = re.sub(
            r"<(?:path:)?(\w+)>", lambda match: str(names.get(match[1], f"{things['folder']}/secret.txt")), rule
        )
        content = {"params": {**things, **extra, "tags": ""}} if method == "GET" else {"json": names}
        reply = teams_server.send("beta", method, path, **content)
        attacked += 1
        if reply.status_code == 200 and any(secret in reply.text for secret in {"alpha-", *secrets}):
            shown.append((method, rule, reply.text))
    assert shown == []
    assert attacked > 100, attacked
    after = read_rows(teams_server.database)
    assert {name: rows - after[name] for name, rows in before.items() if rows - after[name]} == {}
    new_rows = [row for name, rows in after.items() for row in rows - before[name]]
    assert [row for row in new_rows if any(secret in row for secret in secrets)] == []
    assert teams_server.send("alpha", "GET", f"{ARTIFACTS}/{things['folder']}/secret.txt").content == b"alpha's"


REFERENCES: Mapping[str, Callable[[dict[str, str]], Any]] = {
    **{key: itemgetter(key) for key in ("experiment_id", "run_id", "model_id", "trace_id", "dataset_id", "source")},
    "run_uuid": itemgetter("run_id"), "request_id": itemgetter("trace_id"), "source_run_id": itemgetter("run_id"),
    "experiment_ids": lambda entry: [entry["experiment_id"]], "run_ids": lambda entry: [entry["run_id"]],
    "trace_ids": lambda entry: [entry["trace_id"]], "request_ids": lambda entry: [entry["trace_id"]],
    "models": lambda entry: [{"model_id": entry["model_id"], "step": 1}],
    "metrics": lambda entry: [{"key": "q", "value": 1, "timestamp": 1, "step": 0, "model_id": entry["model_id"]}],
    "items": lambda entry: [{"item_id": entry["trace_id"], "item_type": "TRACE"}],
}  # fmt: skip
"""The fields by which one thing names another, and their values for a team's things."""


@pytest.mark.parametrize("key", REFERENCES)
def test_what_is_the_team_s_own_takes_nothing_of_another_team(
    teams_server: TeamsServer, things: dict[str, str], key: str, request: pytest.FixtureRequest
) -> None:
    """Every route is sent names of the team's own things, and one of another team's."""
    own = make_things(teams_server, "beta", 10 + [*REFERENCES].index(key) + request.session.testscollected)
    extra = {"metric_key": "m", "key": "k", "value": "1", "alias": "new", "version": "1", "timestamp": 5, "path": "a"}
    names: dict[str, Any] = {**extra, "name": own["name"], **{name: of(own) for name, of in REFERENCES.items()}}
    names[key] = REFERENCES[key](things)
    before, shown, answered = read_rows(teams_server.database), [], 0
    ids = [things[name] for name in ("run_id", "model_id", "trace_id", "dataset_id")]
    ends = re.compile(r".*(delete|remove|rename|abort).*")
    routes = [route for route in list_routes() if not UNSCOPED.fullmatch(route[1]) and "/ajax-api/2" not in route[1]]
    for method, rule in sorted(routes, key=lambda route: (route[0] == "DELETE" or bool(ends.match(route[1])), route)):
        path = re.sub(r"<(?:path:)?(\w+)>", lambda match: str(names.get(match[1], f"{own['folder']}/a")), rule)
        content = {"params": names} if method == "GET" else {"json": names}
        reply = teams_server.send("beta", method, path, **content)
        answered += reply.status_code == 200
        if reply.status_code == 200 and ("alpha-" in reply.text or "alpha's" in reply.text):
            shown.append((method, rule, reply.text))
    assert shown == []
    assert answered > 20, answered
    after = read_rows(teams_server.database)
    gone = [row for name, rows in before.items() for row in rows - after[name]]
    assert [row for row in gone if "alpha" in row or any(id in row for id in ids)] == []
    # MLflow keeps the name of an issue's run without looking at it: a text, by which nothing is read
    new_rows = [row for name, rows in after.items() if name != "issues" for row in rows - before[name]]
    assert [row for row in new_rows if any(id in row for id in ids)] == []


def build_spans(trace: str) -> bytes:
    """Return a request of OpenTelemetry's protocol with a span of a trace, by its id of 32 hexadecimal digits."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = bytes.fromhex(trace), b"\x02" * 8, "stolen"
    span.start_time_unix_nano, span.end_time_unix_nano = 1, 2
    return request.SerializeToString()


def test_a_trace_s_id_which_its_sender_chooses_leads_to_no_other_team_s_trace(
    teams_server: TeamsServer, things: dict[str, str]
) -> None:
    def send_spans(caller: str, trace: str, experiment: str, run: str = "") -> int:
        headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": experiment}
        headers |= {"x-mlflow-run-id": run} if run else {}
        return teams_server.send(caller, "POST", "/v1/traces", content=build_spans(trace), headers=headers).status_code

    def start_trace(trace: str) -> int:
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": own["experiment_id"]}}
        info = {"trace_id": trace, "trace_location": location, "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
        body = {"trace": {"trace_info": info}}
        return teams_server.send("beta", "POST", "/api/3.0/mlflow/traces", json=body).status_code

    own, trace = make_things(teams_server, "beta", 3), "01" * 16
    assert send_spans("alpha", trace, things["experiment_id"]) == 200
    before = read_rows(teams_server.database)
    assert send_spans("beta", trace, things["experiment_id"]) == 404
    assert send_spans("beta", trace, own["experiment_id"]) == 404
    assert start_trace(things["trace_id"]) == start_trace(f"tr-{trace}") == 404
    assert read_rows(teams_server.database) == before
    assert send_spans("beta", "02" * 16, own["experiment_id"], things["run_id"]) == 200
    assert start_trace("tr-" + "03" * 16) == 200
    after = read_rows(teams_server.database)
    assert [row for name in after for row in after[name] - before[name] if things["run_id"] in row] == []


GRAPH_QUERIES = (
    'query {{ mlflowGetExperiment(input: {{experimentId: "{experiment_id}"}}) {{ experiment {{ name }} }} }}',
    'query {{ mlflowGetRun(input: {{runId: "{run_id}"}}) {{ run {{ info {{ runUuid artifactUri }} }} }} }}',
    'query {{ mlflowSearchRuns(input: {{experimentIds: ["{experiment_id}"]}}) {{ runs {{ info {{ runUuid }} }} }} }}',
    'query {{ mlflowListArtifacts(input: {{runId: "{run_id}"}}) {{ files {{ path }} }} }}',
    "query {{ mlflowSearchModelVersions(input: {{}}) {{ modelVersions {{ name source }} }} }}",
)


@pytest.mark.parametrize("query", GRAPH_QUERIES)
def test_graph_queries_answer_with_the_team_s_own(
    teams_server: TeamsServer, things: dict[str, str], query: str
) -> None:
    body = {"query": query.format(**things)}
    own, other = (teams_server.send(caller, "POST", "/graphql", json=body).text for caller in ("alpha", "beta"))
    assert any(secret in own for secret in ("alpha-", things["run_id"], "secret.txt")), own
    assert not any(secret in other for secret in ("alpha-", "secret.txt", things["folder"])), other


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_streamed_files_of_another_team_are_not_there(
    teams_server: TeamsServer, things: dict[str, str], method: str
) -> None:
    named = (f"{ARTIFACTS}/{things['folder']}/secret.txt", f"{ARTIFACTS}/{things['folder']}/%2573ecret.txt")
    assert [teams_server.send("beta", method, name).status_code for name in named] == [404, 404]
    listed = teams_server.send("beta", "GET", ARTIFACTS, params={"path": things["folder"]})
    assert (listed.status_code, "secret.txt" in listed.text) == (404, False)
    assert teams_server.send("beta", "GET", ARTIFACTS).status_code == 404


def test_no_name_place_or_owner_of_another_team_is_taken(teams_server: TeamsServer, things: dict[str, str]) -> None:
    own = teams_server.do("beta", "POST", "/experiments/create", json={"name": "beta-work-2"})["experiment_id"]
    run = teams_server.do("beta", "POST", "/runs/create", json={"experiment_id": own})["run"]["info"]
    new = {"experiment_id": own, "timestamp_ms": 1}
    trace = teams_server.do("beta", "POST", "/traces", json=new)["trace_info"]["request_id"]
    teams_server.do("beta", "POST", "/registered-models/create", json={"name": "beta-model-2"})
    model, version = {"name": "beta-model-2"}, {"name": "beta-model-2", "run_id": run["run_id"]}
    place, other, logged = things["place"], things["run_id"], things["model_id"]
    inside = f"{run['artifact_uri']}/../../../{things['folder']}/secret.txt"
    team = {"key": "scanflow.team", "value": "alpha"}
    for path, body in (
        ("/experiments/create", {"name": "b2", "artifact_location": place}),
        ("/experiments/create", {"name": "b2", "artifactLocation": f"{run['artifact_uri']}/mine"}),
        ("/experiments/create", {"name": things["experiment_name"]}),
        ("/registered-models/create", {"name": things["name"]}),
        ("/model-versions/create", {**model, "source": place}),
        ("/model-versions/create", {**model, "source": place, "run_id": other}),
        ("/model-versions/create", {**model, "source": things["source"]}),
        ("/model-versions/create", {**model, "source": things["source"], "run_id": other}),
        ("/model-versions/create", {**model, "source": f"models:/{logged}"}),
        ("/model-versions/create", {**model, "source": f"models:/{logged}", "model_id": logged}),
        ("/model-versions/create", {**model, "source": f"models:/{things['name']}/1"}),
        ("/model-versions/create", {**model, "source": f"models:/{things['name']}@champion"}),
        ("/model-versions/create", {**model, "source": "s3://bucket/x"}),
        ("/model-versions/create", {**version, "source": place}),
        ("/model-versions/create", {**version, "source": things["source"]}),
        ("/model-versions/create", {**version, "source": inside}),
        ("/model-versions/create", {**version, "source": run["artifact_uri"], "model_id": logged}),
        ("/model-versions/create", {**version, "name": things["name"], "source": run["artifact_uri"]}),
        ("/experiments/set-experiment-tag", {"experiment_id": own, **team}),
        ("/experiments/delete-experiment-tag", {"experiment_id": own, "key": "scanflow.team"}),
        ("/registered-models/set-tag", {**model, **team}),
        ("/experiments/create", {"name": "b3", "tags": [team]}),
        ("/runs/create", {"experiment_id": things["experiment_id"]}),
    ):
        reply = teams_server.send("beta", "POST", path, json=body)
        assert reply.status_code in {400, 404, 422}, (path, body, reply.text)
    for tag in ("mlflow.artifactLocation", "mlflow.trace.archiveLocation"):
        reply = teams_server.send("beta", "PATCH", f"/traces/{trace}/tags", json={"key": tag, "value": place})
        assert reply.status_code in {404, 422}
    for content in ({"json": {**model, "key": "scanflow.team"}}, {"params": {**model, "key": "scanflow.team"}}):
        assert teams_server.send("beta", "DELETE", "/registered-models/delete-tag", **content).status_code in {400, 422}
    with teams_server.client("beta") as client:
        assert {"b2", "b3"}.isdisjoint(experiment.name for experiment in client.search_experiments())
        assert client.search_model_versions("name = 'beta-model-2'") == []


def test_a_taken_name_is_refused_by_mlflow_s_client_too(
    teams_server: TeamsServer, things: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", teams_server.tokens["beta"])
    monkeypatch.setattr(mlflow, "get_tracking_uri", mlflow.get_tracking_uri)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"{teams_server.server.url}/mlflow")
    try:
        with pytest.raises(mlflow.MlflowException, match=f"The name '{things['experiment_name']}' is taken"):
            mlflow.set_experiment(things["experiment_name"])
        with pytest.raises(mlflow.MlflowException, match=f"The name '{things['name']}' is taken"):
            mlflow.register_model("runs:/x/model", things["name"])
    finally:
        mlflow.set_tracking_uri(before)


def test_a_version_of_the_team_s_own_is_made_and_read(teams_server: TeamsServer, things: dict[str, str]) -> None:
    for source in (things["source"], f"models:/{things['name']}/1", f"{things['place']}/model"):
        body = {"name": things["name"], "source": source}
        body |= {} if source.startswith("models:") else {"run_id": things["run_id"]}
        teams_server.do("alpha", "POST", "/model-versions/create", json=body)
    file = {"name": things["name"], "version": "1", "path": "secret.txt"}
    own, other = (
        teams_server.send(caller, "GET", "/model-versions/get-artifact", params=file) for caller in ("alpha", "beta")
    )
    assert (own.content, other.status_code) == (b"alpha's", 404)


@pytest.mark.parametrize("value", ["alpha", "", "*"])
def test_a_header_of_the_sender_s_own_changes_nothing(
    teams_server: TeamsServer, things: dict[str, str], value: str
) -> None:
    header = {"x-scanflow-team": value}
    reply = teams_server.send("beta", "GET", "/runs/get", params={"run_id": things["run_id"]}, headers=header)
    assert reply.status_code == 404


def test_a_deployment_of_another_team_s_model_fails_as_if_it_were_not_there(
    teams_server: TeamsServer, things: dict[str, str], tmp_path: Path
) -> None:
    for number, name in enumerate((f"{things['name']}@champion", "nonesuch@champion")):
        node = sf.Service(name="net", model=f"models:/{name}")
        workflow = sf.Workflow(name=f"net{number}", type="online", nodes=[node])
        app = sf.Application(name="b", team="beta", app_dir=tmp_path, workflows=[workflow], tracker=sf.Tracker())
        body = {"application": json.loads(dump_json(app))}
        begun = teams_server.server.api.post("/services", json=body, headers=bearer(teams_server.tokens["beta"]))
        ended = teams_server.server.operation(begun)
        model = name.partition("@")[0]
        assert f"There is no model '{model}' of the team 'beta'." in ended["problem"]["detail"]
