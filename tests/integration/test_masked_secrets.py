"""No secret leaves a server, whoever asks, nor is one printed; the step that needs it gets it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.agent.agent_records import JSON, Event, Sample
from scanflow.app.application_files import dump_document, dump_json, load_document
from scanflow.application_loading import load_application
from scanflow.backends.log_reader import LogPage, LogPart
from scanflow.backends.run_records import FINAL_STATES
from scanflow.backends.service_records import Explanation
from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.primitives import ApplicationStore
from scanflow_server.routes import agent_routes
from scanflow_server.server_context import ServerContext, make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store import agent_store, application_store, event_store, intent_store
from scanflow_server.store.migrations import migrate
from scanflow_server.store.tables import events as event_table
from tests.conftest import Cli
from tests.http_requests import http_client
from tests.server import bearer
from tests.unit.server.answering import a_service, answering
from tests.unit.server.server_rows import make_action_row, make_request_row
from tests.waiting import patient, wait_until

CANARY = re.compile(r"canary-[a-z]+-[0-9]")
"""Each secret below has a name of its own in it, so that a failure says which one is shown."""

FOR_OPERATORS = {"/metrics", "/api/v1/audit", "/api/v1/tokens"}

STEP = """
import argparse, json, os, pathlib, sys
parser = argparse.ArgumentParser()
for name in ("password", "database", "place"):
    parser.add_argument(f"--{name}")
given = vars(parser.parse_args())
pathlib.Path("given.json").write_text(json.dumps({**given, "MODE": os.environ["MODE"], "KEY": os.environ["API_KEY"]}))
print("with", json.dumps(given), os.environ["MODE"], flush=True)
raise RuntimeError(f"{given['password']} refused at {given['place']} for {given['database']} in {os.environ['MODE']}")
"""

APP = """
import scanflow as sf

login = sf.Executor(
    name="login",
    mainfile="login.py",
    parameters={
        "password": "canary-parameter-1",
        "database": {"user": "ada", "token": "canary-nested-2"},
        "place": "postgresql://ada:canary-address-3@localhost/data?sslkey=x&api_key=canary-query-4",
    },
    env={"MODE": "canary-variable-5", "API_KEY": "canary-named-6"},
)
tell = sf.Executor(name="tell", mainfile="tell.py", env=login.env)
app = sf.Application(name="masked", team="tests", workflows=[sf.Workflow(name="w", nodes=[tell, login])])
"""

TELL = """
import os
import scanflow as sf
sf.output("said", f"I know {os.environ['MODE']}")
sf.output("tokens", ["a", "b"])
"""

WHOLE_APP: dict[str, Any] = {
    "schema": "scanflow/v1",
    "name": "whole",
    "team": "tests",
    "tracker": {"uri": "http://ada:canary-tracker-1@localhost:5000/?ticket=canary-ticket-2"},
    "notify": [{"url": "https://hooks.localhost/services/canary-webhook-3/canary-webhook-4"}],
    "workflows": [
        {
            "name": "batch",
            "type": "batch",
            "nodes": [
                {
                    "kind": "executor",
                    "name": "step",
                    "mainfile": "step.py",
                    "parameters": {"deep": [{"api_key": "canary-list-5"}], "note": "use canary-variable-6 here"},
                    "env": {"MODE": "canary-variable-6"},
                }
            ],
        },
        {
            "name": "digits",
            "type": "online",
            "nodes": [
                {
                    "kind": "service",
                    "name": "m",
                    "implementation": "model.py:M",
                    "parameters": {"access_key": "canary-service-7"},
                }
            ],
            "serving": {"env": {"MODE": "canary-serving-8"}},
        },
        {
            "name": "job",
            "type": "mpi",
            "nodes": [
                {
                    "kind": "mpi",
                    "name": "job",
                    "mainfile": "a.out",
                    "n_tasks": 1,
                    "args": ["--token", "canary-option-9"],
                    "parameters": {"password": "canary-mpi-9"},
                }
            ],
        },
    ],
    "agents": [{"name": "watch", "modules": ["watch.py"], "parameters": {"chat_token": "canary-agent-0"}}],
}

ALL_SECRETS = " ".join(sorted(set(CANARY.findall(json.dumps(WHOLE_APP)))))


class PiecewiseLog:
    """A log that is read three bytes at a time."""

    def __init__(self, text: str) -> None:
        self._rest = text.encode()

    def read(self) -> LogPage:
        part, self._rest = self._rest[:3], self._rest[3:]
        return LogPage((LogPart("digits-0", part),) if part else (), ended=not part)

    def close(self) -> None:
        """Hold nothing."""


@contextmanager
def serve_home(home: Path, *, control: bool) -> Iterator[tuple[ServerContext, httpx2.Client]]:
    settings = ServerSettings.model_validate({"library": Settings(home=home, slots=2)})
    settings.folder.mkdir(parents=True)
    context = make_context(settings)
    migrate(context.store)
    token = register_home(context)
    with (
        answering(context, control=control) as url,
        http_client(base_url=f"{url}/api/v1", headers=bearer(token), timeout=patient(60)) as client,
    ):
        yield context, client
    context.store.close()


def make_tokens(client: httpx2.Client) -> list[str]:
    """Return the tokens of a viewer and of the owner."""
    viewer = client.post("/tokens", json={"name": "eve", "role": "viewer", "team": "tests"}).json()["token"]
    return [viewer, client.headers["authorization"].removeprefix("Bearer ")]


def list_get_paths(client: httpx2.Client, values: dict[str, dict[str, str]]) -> list[str]:
    """Return every path of the API's description that can be read, with the names in it replaced."""
    paths = []
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        if "get" in methods:
            family = path.removeprefix("/api/v1").split("/")[1]
            for name in re.findall(r"{(\w+)}", path):
                path = path.replace(f"{{{name}}}", values[family][name])
            paths.append(path)
    return paths


def read_all(client: httpx2.Client, paths: list[str], token: str, pages: tuple[str, ...] = ("/",)) -> dict[str, str]:
    """Return the bodies of all paths and pages, of streams as far as they go now."""
    root = str(client.base_url).removesuffix("/api/v1/")
    bodies = {}
    with http_client(base_url=root, headers=bearer(token), timeout=patient(60)) as reader:
        for path in paths:
            page = reader.get(path)
            is_refused = path in FOR_OPERATORS or (path.endswith("/values") and "contain a secret" in page.text)
            assert page.status_code == 200 or is_refused, (path, page.text)
            bodies[path] = join_log(page.text) if path.startswith("/api/v1/services") and "logs" in path else page.text
        last = reader.get("/api/v1/events/newest").json()["id"]
        with reader.stream("GET", "/api/v1/events", headers={"accept": "text/event-stream"}) as reply:
            lines: list[str] = []
            for line in reply.iter_lines():
                if not line and f"id: {last}" in lines:
                    break  # the newest event was the last
                lines.append(line)
            bodies["event stream"] = "\n".join(lines)
    with http_client(base_url=root, follow_redirects=True, timeout=patient(60)) as browser:
        assert browser.post("/login", data={"token": token}, headers={"origin": root}).status_code == 200
        for path in pages:
            bodies[f"page {path}"] = browser.get(path).raise_for_status().text
    return bodies


def join_log(text: str) -> str:
    """Return the log of a service's instances from the lines of JSON that it is sent as."""
    return "".join(base64.b64decode(json.loads(line)["text"]).decode() for line in text.splitlines())


def assert_no_canary(bodies: dict[str, str]) -> None:
    shown = {name: sorted(set(CANARY.findall(body))) for name, body in bodies.items() if CANARY.search(body)}
    assert shown == {}


def store_as_earlier_versions_did(context: ServerContext) -> dict[str, Any]:
    """Store an application with plain secrets, which is refused today, and return its document."""
    sent = {**WHOLE_APP, "app_dir": str(context.settings.home)}
    with context.store.write() as connection:
        application_store.keep(connection, load_document(sent), None, at=1.0)
    return sent


def plant_everywhere(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store an application full of secrets, and have them repeated by all that may: agents, services, operations."""
    sent = store_as_earlier_versions_did(context)
    own = {"workflow": "batch", "parameters": {"password": "canary-intent-1", "url": "http://a:canary-intent-2@b/"}}
    value: dict[str, JSON] = {"token": "canary-sample-3", "text": ALL_SECRETS, "evidence": {"why": ALL_SECRETS}}
    sample = Sample(id="s", agent="watch", sensor="count", at=1.0, value=value, cause="call:1", error=ALL_SECRETS)
    about = {"app": "whole", "target": "workflow/batch", "agent": "watch", "sample": sample, "rule": ALL_SECRETS}
    row = make_action_row("i1", "pending", "approve", primitive="run_workflow", arguments=own, **about)
    action = row.action.model_copy(
        update={
            "decision": row.action.decision.model_copy(update={"reason": f"{ALL_SECRETS} canary-intent-1"}),
            "error": f"{ALL_SECRETS} canary-intent-2",
            "result": {"text": ALL_SECRETS, "password": "canary-result-4"},
        }
    )
    problem = {"type": "about:blank", "title": "x", "status": 422, "detail": f"It says {ALL_SECRETS}."}
    record = a_service("digits", "ready").model_copy(
        update={
            "app": "whole",
            "team": "tests",
            "error": ALL_SECRETS,
            "tracker": WHOLE_APP["tracker"]["uri"],
            "explanation": Explanation(
                service="digits",
                at=1.0,
                metric="rps",
                sample=None,
                target=1.0,
                up=1.0,
                down=1.0,
                instances=1,
                wanted=1,
                formula="1",
                decision="stay",
            ),
        }
    )
    operation = make_request_row(
        "deploy-0123456789ab",
        "deploy",
        state="failed",
        app="whole",
        request={"application": sent},
        progress=(ALL_SECRETS,),
        record=record.model_dump(mode="json"),
        problem=problem,
    )
    event_row: dict[str, Any] = {"at": 2.0, "type": "drift.found", "app": "whole", "subject": "run/x"}
    data: dict[str, JSON] = {"api_key": "canary-event-5", "run": ALL_SECRETS, "columns": [ALL_SECRETS]}
    with context.store.write() as connection:
        intent_store.add(connection, row.model_copy(update={"action": action}))
        intent_store.append_trail(connection, "i1", 2.0, f"tried {ALL_SECRETS} canary-intent-1")
        intent_store.add(connection, operation)
        agent_store.put(connection, app="whole", name="watch", team="tests", document=sent, source=None)
        # The first as an earlier version has left it.
        connection.execute(event_table.insert().values(**event_row, team="tests", data=data))
        event_store.append(connection, [Event(**event_row, data=data)], team="tests")
    monkeypatch.setattr(type(context.deployer), "services", lambda _: [record])
    monkeypatch.setattr(type(context.deployer), "service", lambda _, name: record)
    monkeypatch.setattr(type(context.deployer), "log_reader", lambda *_: PiecewiseLog(f"{ALL_SECRETS}\n"))
    entries: list[dict[str, Any]] = [{"kind": "sample", "value": value, "error": ALL_SECRETS}]
    monkeypatch.setattr(agent_routes, "fetch_journal", lambda *_, **__: entries)
    process = context.agents.show("whole", "tests", "watch")
    monkeypatch.setattr(type(context.agents), "show", lambda *_: replace(process, failure=ALL_SECRETS))


def test_no_route_page_or_stream_shows_a_secret_of_an_application(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_home(home, control=False) as (context, client):
        plant_everywhere(context, monkeypatch)
        values = {
            "applications": {"app": "whole"},
            "agents": {"app": "whole", "agent": "watch"},
            "services": {"name": "digits"},
            "operations": {"id": "deploy-0123456789ab"},
            "intents": {"id": "i1"},
            "logins": {"id": "none"},
            "runs": {"run": "none", "step": "none", "task": "none"},
        }
        paths = [path for path in list_get_paths(client, values) if "/none" not in path]  # runs: see below
        for token in make_tokens(client):
            bodies = read_all(client, paths, token, ("/", "/reports/whole", "/labels"))
            assert_no_canary(bodies)
            assert "postgresql" not in bodies["/api/v1/status"]
            shown = json.loads(bodies["/api/v1/applications/whole"])["application"]
            assert shown["tracker"]["uri"].startswith("http://***@localhost:5000/")
            assert bodies["/api/v1/services/digits/logs"].split() == ["***"] * len(ALL_SECRETS.split())
            assert shown["notify"][0]["url"] == "https://hooks.localhost/***"
            assert shown["workflows"][0]["nodes"][0]["env"] == {"MODE": "***"}
            assert json.loads(bodies["/api/v1/intents/i1"])["intent"]["arguments"]["workflow"] == "batch"


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/applications/whole"), ("PUT", "/agents/whole/watch"), ("POST", "/services")]
)
def test_a_plain_secret_is_refused_by_every_route_that_stores_an_application(
    home: Path, method: str, path: str
) -> None:
    with serve_home(home, control=False) as (context, client):
        sent = {**WHOLE_APP, "app_dir": str(context.settings.home)}
        more = {"workflow": "digits"} if path == "/services" else {}
        refused = client.request(method, path, json={"application": sent, **more})
        assert refused.status_code == 422, refused.text
        assert "is a plain value under the name of a secret" in refused.json()["detail"]
        assert "Write sf.secret('env:API_KEY')" in refused.json()["detail"]
        assert_no_canary({"detail": refused.text})
        assert client.get("/applications").json() == []
        assert_no_canary({file.name: file.read_bytes().decode("latin-1") for file in home.rglob("*") if file.is_file()})


def test_an_agent_that_refers_to_a_secret_that_is_not_there_is_refused(home: Path) -> None:
    with serve_home(home, control=False) as (context, client):
        agent = {"name": "watch", "modules": ["watch.py"], "parameters": {"chat": {"$secret": "env:NOT_SET_ANYWHERE"}}}
        sent = {"schema": "scanflow/v1", "name": "whole", "team": "tests", "agents": [agent]}
        sent["app_dir"] = str(context.settings.home)
        refused = client.put("/agents/whole/watch", json={"application": sent})
        assert refused.status_code == 422
        assert (
            "Agent 'watch': There is no secret in 'env:NOT_SET_ANYWHERE'. Set the variable" in refused.json()["detail"]
        )
        assert client.get("/agents").json() == []


def test_a_masked_value_that_is_sent_back_is_refused(home: Path) -> None:
    with serve_home(home, control=False) as (context, client):
        store_as_earlier_versions_did(context)
        shown = client.get("/applications/whole").json()["application"]
        refused = client.put("/applications/whole", json={"application": shown})
        assert (refused.status_code, "is masked; send the value itself" in refused.json()["detail"]) == (422, True)
        application = ApplicationStore(context).get("whole", "tests").application
        assert set(CANARY.findall(dump_json(application))) == set(CANARY.findall(json.dumps(WHOLE_APP)))


def write_app(folder: Path) -> Path:
    (folder / "app.py").write_text(APP)
    (folder / "login.py").write_text(STEP)
    (folder / "tell.py").write_text(TELL)
    return folder / "app.py"


def assert_step_got_its_secrets(folder: Path) -> None:
    assert json.loads((folder / "given.json").read_text()) == {
        "password": "canary-parameter-1",
        "database": '{"user": "ada", "token": "canary-nested-2"}',
        "place": "postgresql://ada:canary-address-3@localhost/data?sslkey=x&api_key=canary-query-4",
        "MODE": "canary-variable-5",
        "KEY": "canary-named-6",
    }


def test_a_run_shows_no_secret_and_its_step_gets_all(home: Path, tmp_path: Path) -> None:
    path = write_app(tmp_path)
    app, _, _ = load_application(str(path))
    with serve_home(home, control=True) as (context, client):
        body = {"application": dump_document(app), "source": str(path), "parameters": {}}
        run = client.post("/runs", json=body).raise_for_status().json()["name"]
        wait_until(lambda: client.get(f"/runs/{run}").json()["state"] in FINAL_STATES, "the run ends")
        wait_until(lambda: client.get("/events", params={"type": "run.failed"}).json(), "its end is recorded")
        values = {"runs": {"run": run, "step": "tell", "task": "login"}, "applications": {"app": "masked"}}
        paths = [path for path in list_get_paths(client, _Any(values)) if "/runs/" in path or "masked" in path]
        with client.stream("GET", f"/runs/{run}/tasks/login/logs", params={"stream": "stderr"}) as reply:
            trace = reply.read().decode()
        assert "RuntimeError: *** refused at" in trace
        for token in make_tokens(client):
            assert_no_canary(read_all(client, paths, token) | {"stderr": trace})
        outputs = client.get(f"/runs/{run}/steps/tell/outputs").json()
        assert outputs == {"said": "I know ***", "tokens": ["a", "b"]}
        failure = next(task for task in client.get(f"/runs/{run}").json()["tasks"] if task["task"] == "login")[
            "failure"
        ]
        assert "*** refused at postgresql://***@localhost/data" in failure["cause"]
        drivers = "".join(log.read_text() for log in context.settings.folder.glob("runs/**/log"))
        assert_no_canary({"logs of drivers": drivers})
    assert_step_got_its_secrets(tmp_path)


class _Any(dict[str, dict[str, str]]):
    """Names for all families of paths, of which only some are read."""

    def __missing__(self, key: str) -> Any:
        return _AnyName()


class _AnyName(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "none"


@pytest.mark.parametrize("words", [["show", "--json"], ["runs", "--json"], ["logs"], ["show"]])
def test_no_command_prints_a_secret_of_a_run(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    write_app(tmp_path)
    ran = cli("run", "app.py", "--json")
    assert ran.returncode == 1
    printed = cli(*words)
    assert printed.returncode == 0
    assert_no_canary({"run": ran.stdout + ran.stderr, " ".join(words): printed.stdout + printed.stderr})
    assert_step_got_its_secrets(tmp_path)


@pytest.mark.parametrize("words", [["plan", "app.py", "--json"], ["check", "app.py", "--json"], ["run", "app.py"]])
def test_no_command_prints_a_secret_of_an_application(
    quick_cli: Cli, cli: Cli, tmp_path: Path, words: list[str]
) -> None:
    write_app(tmp_path)
    printed = (cli if words[0] == "run" else quick_cli)(*words)
    assert_no_canary({" ".join(words): printed.stdout + printed.stderr})
