"""The API of a server whose controllers rest: what is asked for is checked, written down, and told."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.agent.agent_records import Event
from scanflow.deployer import RunRequest
from scanflow.processes.background_jobs import Job
from scanflow_server.auth import get_home_owner
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, event_store, intent_store, run_store
from tests.http_requests import HTTP
from tests.permissions import permit_strategies
from tests.unit.server.server_rows import ONLINE, Api, deploy_service, end_change, make_action_row, read_from_store
from tests.waiting import PATIENCE_S, wait_until

BATCH: dict[str, Any] = {
    "schema": "scanflow/v1",
    "name": "mnist",
    "team": "ml",
    "workflows": [
        {
            "name": "train",
            "nodes": [{"kind": "executor", "name": "fit", "mainfile": "fit.py", "parameters": {"epochs": 3}}],
        }
    ],
    "agents": [{"name": "tracker", "template": "tracker"}],
}

HERE = {"url": "http://127.0.0.1:5000", "pid": 4242}


@pytest.fixture
def body(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "fit.py").write_text("print('fitted')")
    return {"application": {**BATCH, "app_dir": str(tmp_path)}, "source": None}


def problem(reply: httpx2.Response) -> tuple[int, str, str]:
    assert reply.headers["content-type"] == "application/problem+json"
    document = reply.json()
    assert document["status"] == reply.status_code
    return reply.status_code, document["type"].removeprefix("urn:scanflow:error:"), document["detail"]


def test_a_server_without_its_database_lives_and_is_not_ready(api: Api) -> None:
    root = str(api.base_url).removesuffix("/api/v1/")
    assert HTTP.get(f"{root}/readyz").json() == {"status": "ready"}
    with api.context.store.write() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME TO gone")
    assert HTTP.get(f"{root}/healthz").json() == {"status": "alive"}
    reply = HTTP.get(f"{root}/readyz", headers=api.headers)
    assert reply.headers["retry-after"] == "1"
    assert problem(reply)[:2] == (503, "UnavailableError")


def test_what_is_counted_is_reported_to_prometheus_by_route(api: Api, body: dict[str, Any]) -> None:
    api.post("/runs", json=body)
    api.get("/runs/nope")
    api.get("/nowhere/at/all")
    text = HTTP.get(str(api.base_url).removesuffix("api/v1/") + "metrics", headers=api.headers).text
    assert 'scanflow_http_requests_total{method="POST",route="/api/v1/runs",status="201"} 1.0' in text
    assert 'route="/api/v1/runs/{run}",status="404"} 1.0' in text
    assert 'scanflow_things{kind="runs_active"} 1.0' in text
    assert "nowhere" not in text


def test_the_status_tells_what_there_is_and_no_password(api: Api) -> None:
    answer = api.get("/status").json()
    assert answer["home"] == str(api.context.settings.home)
    assert answer["tracker"] == {"proxied": False, "url": None, "ready": False}
    assert answer["counts"] == {"runs_active": 0, "operations_running": 0, "agents": 0, "events": 0, "services": 0}


def test_a_run_is_known_and_running_as_soon_as_it_was_requested(api: Api, body: dict[str, Any]) -> None:
    reply = api.post("/runs", json={**body, "parameters": {"epochs": 5}})
    assert reply.status_code == 201
    record = reply.json()
    assert (record["state"], record["workflow"], record["team"]) == ("running", "train", "ml")
    assert [task["state"] for task in record["tasks"]] == ["pending"]
    assert api.get(f"/runs/{record['name']}").json() == api.get("/runs/@latest").json() == record
    assert [run["name"] for run in api.get("/runs").json()] == [record["name"]]
    assert api.context.deployer.batch.definition(record["name"]).workflow.by_name["fit"].parameters == {"epochs": 5}
    [event] = api.get("/events").json()
    assert (event["type"], event["data"]["by"]) == ("run.started", get_home_owner())
    assert api.get("/applications/mnist").json()["environment"] == "scanflow-mnist-ml"


def test_a_run_that_refreshes_the_cache_does_so_alone(api: Api, body: dict[str, Any]) -> None:
    [workflow] = body["application"]["workflows"]
    cached = {**workflow, "nodes": [{**workflow["nodes"][0], "cache": True}]}
    body = {**body, "application": {**body["application"], "workflows": [cached]}}

    def is_refreshed(**more: Any) -> bool:
        name = api.post("/runs", json={**body, **more}).json()["name"]
        return bool(api.context.deployer.batch.definition(name).workflow.steps[0].refresh_cache)

    assert is_refreshed(refresh_cache=True)
    assert "refresh_cache" not in api.get("/applications/mnist").text
    assert not is_refreshed()


def test_an_application_of_another_backend_is_refused(api: Api, body: dict[str, Any]) -> None:
    other = {**body, "application": {**body["application"], "backend": "kubernetes"}}
    for path in ("/runs", "/runs/plan", "/services"):
        assert "scanflow --backend kubernetes up" in problem(api.post(path, json=other))[2], path


def test_a_run_requested_twice_with_one_key_is_one_run(api: Api, body: dict[str, Any]) -> None:
    def ask(_: int) -> str:
        name: str = api.post("/runs", json=body, headers={"Idempotency-Key": "once"}).json()["name"]
        return name

    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(ask, range(8), timeout=PATIENCE_S))
    assert len(names) == 1
    assert len(api.get("/runs").json()) == 1
    other = api.post("/runs", json={**body, "parameters": {"epochs": 1}}, headers={"Idempotency-Key": "once"})
    assert problem(other)[:2] == (422, "InvalidError")
    own = api.post("/runs", json=body, headers={"Idempotency-Key": "intent/i1"})
    assert (own.status_code, "are reserved for the server" in own.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    ("change", "status", "kind", "words"),
    [
        ({"workflow": "trian"}, 404, "NotFoundError", "no workflow 'trian'. Did you mean 'train'?"),
        ({"parameters": {"epoch": 1}}, 404, "NotFoundError", "Did you mean 'epochs'?"),
        ({"application": {"name": "x"}}, 422, "InvalidError", "has no 'schema'"),
        ({"application": BATCH}, 422, "InvalidError", "app_dir '.' is relative"),
        ({"more": 1}, 422, "InvalidError", "more: Extra inputs are not permitted"),
        ({"parameters": {"epochs": float("inf")}}, 422, "InvalidError", "not a number in JSON"),
        ({"parameters": {"epochs": "\ud800"}}, 422, "InvalidError", "not valid JSON: unexpected end of hex escape"),
        ({"source": "/a\0b"}, 422, "InvalidError", "the null character"),
    ],
)
def test_a_run_that_cannot_be_is_refused_and_not_written_down(
    api: Api, body: dict[str, Any], change: dict[str, Any], status: int, kind: str, words: str
) -> None:
    content = json.dumps({**body, **change}).encode()
    reply = api.post("/runs", content=content, headers={"content-type": "application/json"})
    assert problem(reply)[:2] == (status, kind)
    assert words in problem(reply)[2]
    assert api.get("/runs").json() == []


def test_a_plan_runs_nothing_finds_a_relative_folder_and_misses_a_script_that_is_not_there(
    api: Api, body: dict[str, Any], tmp_path: Path
) -> None:
    for body_ in (body, {"application": {**BATCH, "app_dir": "."}, "source": str(tmp_path / "app.py")}):
        plan = api.post("/runs/plan", json=body_).json()
        assert [step["name"] for step in plan["steps"]] == ["fit"]
    (tmp_path / "fit.py").unlink()
    for path in ("/runs", "/runs/plan"):
        assert problem(api.post(path, json=body))[0] == 404
    assert api.get("/runs").json() == api.get("/events").json() == []


def test_a_stopped_run_can_be_resumed_and_a_key_resumes_once(api: Api, body: dict[str, Any]) -> None:
    name = api.post("/runs", json=body).json()["name"]
    assert problem(api.post(f"/runs/{name}/resume"))[:2] == (409, "AlreadyRunningError")
    status, _, detail = problem(api.post(f"/runs/{name}/spin", json={"step": "fti"}))
    assert (status, "Did you mean 'fit'?" in detail) == (404, True)
    assert api.post(f"/runs/{name}/stop").json()["name"] == name
    with api.context.store.write() as connection:  # as its controller would
        run_store.record_end(connection, name, 1, outcome="stopped")
    assert api.get(f"/runs/{name}").json()["state"] == "stopped"
    for _ in range(2):
        reply = api.post(f"/runs/{name}/resume", json={}, headers={"Idempotency-Key": "r"})
        assert (reply.status_code, reply.json()["state"]) == (200, "running")
    row = read_from_store(api.context.store, run_store.find, name)
    assert (row.drive, row.stop) == (2, False)


def test_what_is_not_there_and_what_is_no_name_is_a_problem_also_where_a_stream_was_requested(api: Api) -> None:
    missing = ("", "/events", "/steps/fit/outputs", "/tasks/fit/logs")
    for path in ("/services/nope", *(f"/runs/nope{more}" for more in missing)):
        assert problem(api.get(path))[:2] == (404, "NotFoundError"), path
    for path in ("/runs/UPPER", "/runs/@latest-12345678901234567890", "/services/..%00", "/runs?limit=0"):
        assert problem(api.get(path))[:2] == (422, "InvalidError"), path
    assert problem(api.get("/nowhere")) == (404, "about:blank", "Not Found")
    assert problem(api.put("/runs", json={}))[0] == 405


def test_a_defect_is_reported_without_its_message(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object, **__: object) -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr(api.context.deployer, "runs", raise_error)
    reply = api.get("/runs")
    assert problem(reply)[:2] == (500, "InternalError")
    assert "1234" not in reply.text


def test_events_are_reported_listed_and_numbered(api: Api) -> None:
    reports = [
        {"at": 1.0, "type": "sample", "app": "mnist", "subject": "agent/tracker", "data": {"value": n}} for n in (1, 2)
    ]
    assert [event["id"] for event in api.post("/events", json=reports).json()] == [1, 2]
    assert [event["data"] for event in api.get("/events", params={"after": 1}).json()] == [{"value": 2}]
    assert [event["id"] for event in api.get("/events", params={"limit": 1}).json()] == [1]
    assert api.get("/events", params={"type": "run.*"}).json() == []
    assert len(api.get("/events", params={"type": ["run.*", "sample"]}).json()) == 2


def test_an_event_that_cannot_be_kept_is_refused_with_all_that_came_with_it(api: Api) -> None:
    good = {"at": 1.0, "type": "sample"}
    for wrong in ({"type": ""}, {"type": "x" * 200}, {"app": "a\0"}, {"data": {"x": "\udc00"}}):
        content = json.dumps([good, {**good, **wrong}]).encode()
        reply = api.post("/events", content=content, headers={"content-type": "application/json"})
        assert problem(reply)[:2] == (422, "InvalidError"), wrong
    assert api.get("/events").json() == []


def test_a_stream_of_events_begins_after_the_last_one_known_and_goes_on(api: Api) -> None:
    def tell(number: int) -> None:
        with api.context.store.write() as connection:
            event_store.append(connection, [Event(at=1.0, type="sample", data={"n": number})])

    for number in range(3):
        tell(number)
    seen: list[str] = []
    begun = threading.Event()

    def read() -> None:
        headers = {"accept": "text/event-stream", "Last-Event-ID": "2"}
        with api.stream("GET", "/events", headers=headers) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            for line in reply.iter_lines():
                seen.append(line)
                begun.set()
                if line == "id: 4":
                    return

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert begun.wait(PATIENCE_S)
        tell(3)
        reading.result(timeout=PATIENCE_S)
    assert [line for line in seen if line.startswith("id: ")] == ["id: 3", "id: 4"]
    assert "event: sample" in seen


NONSENSE = ["x", "-1", "1.5", "9" * 19, "9" * 4301, "9" * 20_000, "0" * 4301]


def test_a_stream_goes_on_behind_a_number_and_what_is_none_is_as_if_none_was_known(
    api: Api, body: dict[str, Any]
) -> None:
    def list_ids(path: str, last: str) -> list[str]:
        lines = api.get(path, headers={"Last-Event-ID": last}).text.splitlines()
        return [line for line in lines if line.startswith("id")]

    operation, run = deploy_service(api).json()["operation"], api.post("/runs", json=body).json()["name"]
    job = api.context.get_run_job(run, 1)
    job.prepare({"what": "run"})
    job.end({"record": None, "problem": {"status": 500, "detail": "no"}})
    api.context.deployer.batch.give_up(run, "no")
    end_change(api.context.store, operation, progress=("one",), problem={"status": 400, "detail": "no"})
    with api.context.store.write() as connection:
        run_store.record_end(connection, run, 1, outcome="failed")
    for last in NONSENSE:
        headers = {"accept": "text/event-stream", "Last-Event-ID": last}
        with api.stream("GET", "/events", headers=headers) as reply:
            assert next(line for line in reply.iter_lines() if line.startswith("id: ")) == "id: 1", last
        assert list_ids(f"/operations/{operation}/events", last) == ["id: 1", "id: 2"], last
    lines = api.get(f"/operations/{operation}/events", headers={"Last-Event-ID": "1"}).text.splitlines()
    assert [line for line in lines if line.startswith(("event", "id"))] == ["event: done", "id: 2"]
    done = json.loads(next(line.removeprefix("data: ") for line in lines if line.startswith("data: ")))
    assert (done["state"], done["problem"]["detail"]) == ("failed", "no")
    for last in ("1", *(f"1-{text}" for text in NONSENSE)):
        assert list_ids(f"/runs/{run}/events", last) == ["id: 1-1"], last


def test_a_change_of_a_service_is_an_operation(api: Api) -> None:
    fields = {"application": {**ONLINE, "app_dir": str(api.context.settings.home)}, "sizing": {"instances": 2}}
    reply = api.post("/services", json=fields, headers={"Idempotency-Key": "d"})
    assert reply.status_code == 202
    id = reply.json()["operation"]
    assert api.post("/services", json=fields, headers={"Idempotency-Key": "d"}).json()["operation"] == id
    shown = api.get(f"/operations/{id}").json()
    assert (shown["state"], shown["kind"], shown["service"], shown["progress"]) == ("running", "deploy", "digits", [])
    assert api.patch("/services/digits", json={"instances": 3}).status_code == 202
    with api.context.store.read() as connection:
        assert [change.intent.primitive for change in intent_store.list_open_changes(connection)] == [
            "deploy",
            "change",
        ]


def test_an_application_stays_as_it_is_while_a_copy_of_its_service_is_deployed(api: Api) -> None:
    whole = {**ONLINE, "app_dir": str(api.context.settings.home)}
    workflow: Any = ONLINE["workflows"][0]
    copy = {**whole, "workflows": [{**workflow, "name": "digits-tune"}]}
    assert api.post("/services", json={"application": whole}).status_code == 202
    stored = api.get("/applications/mnist").json()
    assert api.post("/services", json={"application": copy, "is_copy": True}).status_code == 202
    assert api.get("/applications/mnist").json() == stored


def test_what_an_agents_action_changes_is_an_operation_once_it_is_begun(api: Api) -> None:
    with api.context.store.write() as connection:
        for id, state, verdict, target in (
            ("0f9a", "running", "act", "service/digits"),
            ("ASKED", "pending", "approve", "service/digits"),
            ("run", "running", "act", "workflow/digits"),
        ):
            row = make_action_row(id, state, verdict, primitive="apply_workflow_instance", target=target)
            intent_store.add(connection, row.replace(progress=("one",)))
    shown = api.get("/operations/0f9a").json()
    assert (shown["state"], shown["kind"], shown["service"]) == ("running", "apply_workflow_instance", "digits")
    assert (shown["progress"], shown["problem"]) == ([], None)
    for id in ("ASKED", "run", "nothing"):
        reply = api.get(f"/operations/{id}")
        assert (reply.status_code, reply.json()["detail"].partition(".")[0]) == (404, f"There is no operation {id!r}")


def test_a_change_that_a_person_withdrew_has_failed_and_says_why(api: Api) -> None:
    first = deploy_service(api).json()["operation"]
    waiting = api.patch("/services/digits", json={"instances": 3}).json()["operation"]
    refused = api.post(f"/intents/{waiting}/refuse", json={"reason": "not yet"})
    assert refused.status_code == 200
    shown = api.get(f"/operations/{waiting}").json()
    assert (shown["state"], shown["problem"]["status"]) == ("failed", 400)
    assert shown["problem"]["detail"].endswith("refused it: not yet")
    assert api.get(f"/operations/{first}").json()["state"] == "running"
    assert api.get("/status").json()["counts"]["operations_running"] == 1


def test_a_change_of_a_service_sent_again_is_reported_also_when_it_could_not_be_begun_any_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerContext, "find_model", lambda *_, **__: None)
    fields = {"application": {**ONLINE, "app_dir": str(api.context.settings.home)}}

    def deploy(key: str, **more: Any) -> str:
        reply = api.post("/services", json={**fields, **more}, headers={"Idempotency-Key": key})
        return str(reply.json()["operation"])

    def delete(key: str) -> httpx2.Response:
        return api.delete("/services/digits", headers={"Idempotency-Key": key})

    first = deploy("first")
    deleted = delete("delete").json()["operation"]
    second = deploy("second", source=str(api.context.settings.home / "app.py"))
    for id in (first, deleted, second):
        end_change(api.context.store, id, problem={"status": 400, "detail": "no"})
    assert (deploy("first"), delete("delete").json()["operation"]) == (first, deleted)
    assert delete("another").status_code == 404
    assert api.get("/applications/mnist").json()["source"] is not None, "as it was deployed last"


def test_a_change_that_cannot_be_is_refused_at_once(api: Api) -> None:
    refused: list[tuple[dict[str, Any], int]] = [
        ({"instances": 2}, 404),
        ({"rollback": True}, 404),
        ({}, 400),
        ({"instances": 2, "rollback": True}, 400),
        ({"model": "models:/m/2", "weight": 2}, 422),
        ({"replicas": 2}, 422),
        ({"memory_bytes": None, "instances": 2}, 404),
    ]
    for body, status in refused:
        assert problem(api.patch("/services/digits", json=body))[0] == status, body
    assert problem(api.post("/services", json={"application": BATCH}))[0] == 422


def test_an_agent_is_wanted_says_where_it_is_and_is_wanted_no_more(api: Api, body: dict[str, Any]) -> None:
    path = "/agents/mnist/tracker"
    started = api.put(path, json=body).json()
    assert (started["state"], started["url"], started["team"]) == ("starting", None, "ml")
    for _ in range(2):
        assert api.post(f"{path}/heartbeat", json=HERE).status_code == 204
    assert [event["type"] for event in api.get("/events").json()] == ["agent.started"]
    assert api.delete(path).json()["state"] == "stopped"
    assert [agent["name"] for agent in api.get("/agents").json()] == ["tracker"]
    assert problem(api.get("/agents/mnist/trakcer"))[2].endswith("Did you mean 'mnist/tracker'?")
    assert problem(api.put("/agents/mnist/checker", json=body))[0] == 404, "the application has no such agent"
    assert problem(api.put("/agents/other/tracker", json=body))[0] == 422


def test_an_agent_says_how_its_sensors_fare(api: Api) -> None:
    path, trigger = "/agents/mnist/elsewhere", {"kind": "call"}
    permit_strategies(api.context.store, agent="elsewhere")
    count = {"name": "count", "trigger": trigger, "next": None, "last": 5.0, "fired": 12, "missed": 3, "errors": 1}
    assert api.post(f"{path}/heartbeat", json=HERE).status_code == 204, "one of an earlier version says nothing of them"
    assert api.get(path).json()["sensors"] is None
    assert api.post(f"{path}/heartbeat", json={**HERE, "sensors": [count]}).status_code == 204
    assert [agent["sensors"] for agent in api.get("/agents").json()] == [[count]]
    assert problem(api.post(f"{path}/heartbeat", json={**HERE, "sensors": [{"name": "count"}]}))[0] == 422


def of_team(body: dict[str, Any], team: str) -> dict[str, Any]:
    return {**body, "application": {**body["application"], "team": team}}


def test_an_agent_that_another_team_wants_is_left_to_it_until_it_is_wanted_no_more(
    api: Api, body: dict[str, Any]
) -> None:
    path = "/agents/mnist/tracker"
    api.put(path, json=of_team(body, "red"))
    status, kind, detail = problem(api.put(path, json=of_team(body, "blue")))
    assert (status, kind) == (409, "AlreadyRunningError")
    for words in ("'red'", "scanflow agents mnist:tracker --stop", "Rename your application"):
        assert words in detail
    row = read_from_store(api.context.store, agent_store.find, "mnist", "tracker")
    assert (row.team, row.wanted, row.generation) == ("red", True, 1)
    assert [application["team"] for application in api.get("/applications").json()] == ["red"], (
        "nothing is kept of what was refused"
    )
    assert api.put(path, json=of_team(body, "red")).status_code == 200
    api.post(f"{path}/heartbeat", json=HERE)
    with api.context.store.write() as connection:
        agent_store.count_restart(connection, "mnist", "tracker")
    api.delete(path)
    view = api.put(path, json=of_team(body, "blue")).json()
    assert (view["team"], view["state"], view["url"], view["restarts"]) == ("blue", "starting", None, 0)


@pytest.mark.processes
def test_an_agent_of_another_team_that_is_still_stopping_is_waited_for(api: Api, body: dict[str, Any]) -> None:
    path = "/agents/mnist/tracker"
    api.put(path, json=of_team(body, "red"))
    job = Job(api.context.settings.folder / "agents" / "mnist" / "tracker")
    job.path.mkdir(parents=True)
    assert job.start(os.environ, command=["sleep", "600"])
    try:
        with api.context.store.write() as connection:
            agent_store.mark_unwanted(connection, "mnist", "tracker")
        status, kind, detail = problem(api.put(path, json=of_team(body, "blue")))
        assert (status, kind) == (409, "AlreadyRunningError")
        assert "is still stopping" in detail
    finally:
        job.daemon.kill()
        assert job.daemon.wait(PATIENCE_S)
    assert api.put(path, json=of_team(body, "blue")).json()["team"] == "blue"


def test_an_agent_of_an_earlier_release_that_nobody_started_here_is_where_it_says_it_is_and_may_be_any_teams(
    api: Api, body: dict[str, Any]
) -> None:
    for name in ("own", "tracker"):
        permit_strategies(api.context.store, agent=name)
        api.post(f"/agents/mnist/{name}/heartbeat", json=HERE)
    answer = api.get("/agents/mnist/own").json()
    assert (answer["state"], answer["url"], answer["pid"]) == ("running", HERE["url"], HERE["pid"])
    assert api.put("/agents/mnist/tracker", json=of_team(body, "blue")).json()["team"] == "blue"


def test_an_application_is_kept_with_its_revisions(api: Api, body: dict[str, Any]) -> None:
    assert problem(api.get("/applications/mnist"))[0] == 404
    assert api.put("/applications/mnist", json=body).json()["revision"] == 1
    assert api.put("/applications/mnist", json=body).json()["revision"] == 1
    changed = {**body, "application": {**body["application"], "agents": []}}
    assert api.put("/applications/mnist", json=changed).json()["revision"] == 2
    assert [application["name"] for application in api.get("/applications").json()] == ["mnist"]
    assert problem(api.put("/applications/other", json=body))[0] == 422
    assert problem(api.get("/applications/mnist", params={"team": "other"}))[0] == 404


@pytest.mark.processes
def test_a_run_that_another_process_drives_is_reported_from_outside(
    api: Api, body: dict[str, Any], tmp_path: Path
) -> None:
    from scanflow_server.bodies import read_application

    (tmp_path / "fit.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.01)\n"
    )
    app = read_application(body["application"])
    kinds: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        driving = pool.submit(api.context.deployer.run, RunRequest(app))
        wait_until(lambda: [run for run in api.get("/runs").json() if run["state"] == "running"], "the run begins")

        def read() -> None:
            with api.stream("GET", "/runs/@latest/events") as reply:
                for line in reply.iter_lines():
                    if line.startswith("event: "):
                        kinds.append(line.removeprefix("event: "))
                        (tmp_path / "go").touch()

        pool.submit(read).result(timeout=PATIENCE_S)
        assert driving.result(timeout=PATIENCE_S).state == "succeeded"
    assert kinds == ["run-started", "task-started", "task-ended", "run-ended"]
