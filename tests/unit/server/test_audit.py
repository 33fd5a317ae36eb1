"""The audit log: what is in it, what is not, and how wrong tokens are slowed down."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from scanflow_server.audit import (
    FORGIVEN_S,
    FREE_FAILURES,
    MAX_DELAY_S,
    MAX_PATHS,
    MAX_WAITING,
    SAME_S,
    AuditLog,
    RepeatedRefusals,
    TokenFailures,
    should_record,
)
from scanflow_server.metrics import Meters
from scanflow_server.server_context import ServerContext
from scanflow_server.store import audit_store
from scanflow_server.token_roles import TokenHolder
from tests.server import bearer
from tests.unit.server.server_rows import Api


def read(api: Api, **query: Any) -> list[tuple[Any, ...]]:
    listed = api.get("/audit", params=query).json()
    return [(entry["who"] or "?", entry["method"], entry["path"], entry["status"]) for entry in listed]


def test_changes_refusals_and_logins_are_recorded_with_who_and_from_where(api: Api) -> None:
    token = api.post("/tokens", json={"name": "ada", "role": "viewer", "team": "red"}).json()["token"]
    ada = bearer(token)
    assert api.get("/runs", headers=ada).status_code == 200
    assert api.post("/tokens", headers=ada, json={"name": "bo"}).status_code == 403
    assert api.get("/runs", headers=bearer("wrong")).status_code == 401
    assert api.get("/runs", headers={"authorization": ""}).status_code == 401
    base = str(api.base_url).removesuffix("/api/v1/")
    assert api.post(f"{base}/login", data={"token": token}, headers={"authorization": ""}).status_code == 200
    assert api.delete("/tokens/ada").status_code == 200
    home = api.get("/audit").json()[-1]["who"]
    assert read(api) == [
        (home, "DELETE", "/api/v1/tokens/ada", 200),
        ("ada", "POST", "/login", 200),
        ("?", "GET", "/api/v1/runs", 401),
        ("ada", "POST", "/api/v1/tokens", 403),
        (home, "POST", "/api/v1/tokens", 201),
    ]
    entry = api.get("/audit").json()[-1]
    assert (entry["what"], entry["role"], entry["team"]) == ("made the token 'ada': viewer, team red", "admin", None)
    assert entry["address"]
    assert token not in api.get("/audit").text
    assert read(api, who="ada") == read(api)[1:4:2]
    assert read(api, refused=True) == read(api)[2:4]
    assert read(api, limit=1, before=2) == read(api)[-1:]


def test_a_teams_admin_reads_of_its_own_team_alone(api: Api) -> None:
    ada = bearer(api.post("/tokens", json={"name": "ada", "role": "admin", "team": "red"}).json()["token"])
    cy = bearer(api.post("/tokens", json={"name": "cy", "role": "editor", "team": "red"}).json()["token"])
    api.post("/tokens", headers=ada, json={"name": "bo"})
    listed = api.get("/audit", headers=ada).json()
    assert [(entry["who"], entry["what"]) for entry in listed] == [("ada", "made the token 'bo': editor, team red")]
    assert api.get("/audit", headers=cy).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "status", "role", "is_recorded"),
    [
        ("POST", "/api/v1/runs", 201, "editor", True),
        ("POST", "/api/v1/runs", 422, "editor", True),
        ("POST", "/api/v1/runs/otter/stop", 404, "editor", True),
        ("POST", "/api/v1/labels/p", 404, "agent", True),
        ("POST", "/api/v1/agents/shop/watch/heartbeat", 404, "agent", False),
        ("POST", "/mlflow/api/2.0/mlflow/registered-models/alias", 404, "agent", True),
        ("POST", "/mlflow/api/2.0/mlflow/runs/log-metric", 404, "step", True),
        ("GET", "/api/v1/runs/otter", 404, "editor", False),
        ("PUT", "/api/v1/runs/otter", 405, "editor", False),
        ("GET", "/api/v1/runs", 200, "editor", False),
        ("GET", "/api/v1/runs", 403, "editor", True),
        ("POST", "/api/v1/agents/shop/watch/heartbeat", 204, "admin", False),
        ("POST", "/api/v1/events", 201, "agent", False),
        ("POST", "/api/v1/events", 403, "agent", True),
        ("POST", "/mlflow/api/2.0/mlflow/runs/log-metric", 200, "editor", False),
        ("POST", "/mlflow/api/2.0/mlflow/registered-models/alias", 200, "editor", True),
        ("POST", "/mlflow/api/2.0/mlflow/registered-models/search", 200, "editor", False),
        ("POST", "/mlflow/api/2.0/mlflow/runs/log-metric", 403, "viewer", True),
    ],
)
def test_what_is_recorded(method: str, path: str, status: int, role: Any, is_recorded: bool) -> None:
    assert should_record({"method": method, "path": path}, status, TokenHolder("ada", role)) is is_recorded


def test_a_look_whether_the_tracker_answers_is_not_recorded_and_a_wrong_token_is(api: Api) -> None:
    for token in ("", "Bearer wrong"):
        health = str(api.base_url).replace("/api/v1/", "/mlflow/health")
        assert api.get(health, headers={"authorization": token}).status_code == 401
        assert read(api, refused=True) == ([("?", "GET", "/mlflow/health", 401)] if token else [])


def test_a_change_of_what_is_not_there_is_recorded_of_known_callers_alone(api: Api) -> None:
    assert not should_record({"method": "POST", "path": "/api/v1/runs/otter/stop"}, 404, None)
    ada = bearer(api.post("/tokens", json={"name": "ada", "role": "admin", "team": "red"}).json()["token"])
    assert api.delete("/tokens/home", headers=ada).status_code == 404
    entry = api.get("/audit").json()[0]
    assert (entry["who"], entry["status"], entry["path"]) == ("ada", 404, "/api/v1/tokens/home")


def test_refusals_are_recorded_by_address_for_callers_with_a_token(api: Api) -> None:
    token = api.post("/tokens", json={"name": "vera", "role": "viewer"}).json()["token"]
    for _ in range(2):
        for path in ("/tokens", "/audit"):
            assert api.get(path, headers=bearer(token)).status_code == 403
            assert api.get(path, headers=bearer("wrong")).status_code == 401
    paths = [(entry["status"], entry["path"]) for entry in api.get("/audit").json() if entry["status"] >= 400]
    assert sorted(paths) == [(401, "/api/v1/tokens"), (403, "/api/v1/audit"), (403, "/api/v1/tokens")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_refusal_that_repeats_is_counted_and_not_recorded() -> None:
    clock = Clock()
    refusals = RepeatedRefusals(clock)
    assert [refusals.count("a", 401) for _ in range(4)] == [0, None, None, None]
    assert refusals.count("b", 401) == 0
    clock.now = SAME_S
    assert [refusals.count("a", 401) for _ in range(2)] == [3, None]
    assert [refusals.count(str(number)) for number in range(3000)] == [0] * 3000


def test_only_so_many_refusals_of_one_caller_are_recorded_by_path() -> None:
    clock = Clock()
    refusals = RepeatedRefusals(clock)
    counts = [refusals.count("a", 404, path=f"/runs/{number}") for number in range(1000)]
    assert counts == [*[0] * (MAX_PATHS + 1), *[None] * (1000 - MAX_PATHS - 1)], "the rest is one more entry"
    assert refusals.count("b", 404, path="/runs/1") == 0
    clock.now = SAME_S
    assert [refusals.count("a", 404, path=path) for path in ("/runs/2000", "/runs/1")] == [0, 0]
    recorded = [refusals.count("a", 404, path=f"/runs/{number}") for number in [*range(2, 100), *range(3000, 3100)]]
    assert [count for count in recorded if count is not None] == [*[0] * (MAX_PATHS - 2), 1000 - MAX_PATHS - 1]


def test_wrong_tokens_of_an_address_wait_longer_and_longer_until_it_rests() -> None:
    clock = Clock()
    failures = TokenFailures(clock)
    delays = [failures.add("a") for _ in range(FREE_FAILURES + 8)]
    assert delays[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert delays[FREE_FAILURES:] == [0.2, 0.4, 0.8, 1.6, *[MAX_DELAY_S] * 4]
    assert failures.add("b") == 0.0
    clock.now = FORGIVEN_S
    assert failures.add("a") == 0.0


def test_of_many_wrong_tokens_at_once_most_are_refused_without_waiting(context: ServerContext) -> None:
    waiting = asyncio.Event()

    async def refuse(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"wrong"})

    async def receive_nothing() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def sleep(_delay_s: float) -> None:
        await waiting.wait()

    meters = Meters()
    log = AuditLog(refuse, context=context, meters=meters, sleep=sleep)
    sent: list[Any] = []

    async def ask() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", b"Bearer x")]
        scope = {"type": "http", "method": "GET", "path": "/api/v1/runs", "headers": headers, "client": ("10.0.0.9", 1)}
        await log(scope, receive_nothing, send)

    async def ask_often() -> None:
        tasks = [asyncio.create_task(ask()) for _ in range(FREE_FAILURES + MAX_WAITING + 10)]
        while sum(message.get("status") == 429 for message in sent) < 10:  # noqa: ASYNC110  the other tasks' turns
            await asyncio.sleep(0)
        assert sum(task.done() for task in tasks) <= FREE_FAILURES + 10
        waiting.set()
        await asyncio.gather(*tasks)

    asyncio.run(ask_often())
    statuses = [message["status"] for message in sent if "status" in message]
    assert (statuses.count(429), statuses.count(401)) == (10, FREE_FAILURES + MAX_WAITING)
    refused = [json.loads(message["body"])["detail"] for message in sent if b"Too many" in message.get("body", b"")]
    assert (len(refused), "correct SCANFLOW_TOKEN" in refused[0]) == (10, True)
    assert b"scanflow_http_wrong_tokens_total 31.0" in meters.render({}, {})


def test_old_entries_are_forgotten(context: ServerContext) -> None:
    entry = audit_store.AuditEntry(at=0, who="ada", address="", method="POST", path="/", status=200)
    with context.store.write() as connection:
        for at in (1.0, 2.0, 3.0):
            audit_store.add(connection, entry.model_copy(update={"at": at}))
        assert audit_store.forget_older(connection, 3.0, most=500) == 2
        assert [event.at for event in audit_store.list_newest(connection, limit=9)] == [3.0]
