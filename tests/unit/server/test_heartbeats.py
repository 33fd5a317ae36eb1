"""When agents were last heard of, and what of that is written down."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.dashboard.live_pages import read_marker
from scanflow_server.dashboard.pages import PAGES
from scanflow_server.heartbeats import SILENT_S, Heartbeats
from scanflow_server.store import agent_store
from scanflow_server.store import intent_store as kept
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.intent_store import FieldRow
from tests.permissions import permit_strategies
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.server_rows import Api, read_from_store

HEARTBEAT = "/agents/shop/watcher/heartbeat"
REPORT = {"name": "count", "trigger": {"kind": "call"}, "fired": 3, "missed": 0, "errors": 0}


def row(**fields: Any) -> AgentRow:
    return AgentRow.model_validate(
        {"app": "shop", "name": "watcher", "url": "http://127.0.0.1:1", "pid": 7, "seen": 100.0, **fields}
    )


def test_an_agent_counts_as_heard_of_when_the_server_began_until_it_says_more() -> None:
    beats = Heartbeats(since=200.0)
    assert beats.refresh(row()).seen == 200.0
    assert beats.refresh(row(seen=300.0)).seen == 300.0
    assert beats.refresh(row(seen=None)).seen is None, "it never said that it is there"
    beats.note(row(), at=400.0, sensors=[{"name": "count"}])
    assert (beats.refresh(row()).seen, beats.refresh(row()).sensors) == (400.0, [{"name": "count"}])
    assert beats.refresh(row(team="blue", generation=3)).generation == 3, "all else is as the store has it"


@pytest.mark.parametrize("other", [{"pid": 8}, {"url": "http://127.0.0.1:2"}, {"name": "other"}])
def test_what_another_process_said_does_not_count(other: dict[str, Any]) -> None:
    beats = Heartbeats(since=0.0)
    beats.note(row(), at=400.0, sensors=None)
    assert beats.refresh(row(**other)).seen == 100.0


def test_a_heartbeat_that_is_no_news_is_not_written(api: Api) -> None:
    store, news = api.context.store, api.context.store_notifier
    permit_strategies(store, app="shop", agent="watcher", team="default")

    def say(**changes: Any) -> None:
        reply = api.post(HEARTBEAT, json={"url": "http://127.0.0.1:1", "pid": 7, "sensors": [REPORT], **changes})
        assert reply.status_code == 204

    say()
    before, changes = read_from_store(store, agent_store.find, "shop", "watcher"), news.changes
    say(sensors=[REPORT | {"fired": 4}])
    assert (read_from_store(store, agent_store.find, "shop", "watcher"), news.changes) == (before, changes)
    shown = api.get("/agents/shop/watcher").json()
    assert (shown["state"], shown["sensors"][0]["fired"]) == ("running", 4)
    say(pid=8)
    assert read_from_store(store, agent_store.find, "shop", "watcher").pid == 8
    assert news.changes > changes


def test_a_strategy_keeps_its_field_for_as_long_as_its_agent_says_that_it_is_there(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(api.context, "clock", lambda: now)
    permit_strategies(api.context.store, app="shop", agent="watcher", team="tests")
    permit_strategies(api.context.store, "other")
    assert api.post(HEARTBEAT, json={"url": "http://127.0.0.1:1", "pid": 7}).status_code == 204
    mine = {"app": "shop", "agent": "watcher", "strategy": "default/shop/watcher/scale", "intent": "i1"}
    with api.context.store.write() as connection:
        field = FieldRow.model_validate({"field": "replicas", "until": now + 1, **mine})
        kept.put_field(connection, "service/tests/serve", field)
    now += 10_000
    assert api.post(HEARTBEAT, json={"url": "http://127.0.0.1:1", "pid": 7}).status_code == 204
    engine = build_engine(api.context)
    assert engine.submit(intent("i2", strategy="other")).winner == "i1"
    now += SILENT_S + 1
    assert engine.submit(intent("i3", strategy="other")).winner is None


def test_an_agent_from_before_an_upgrade_is_heard_of(api: Api) -> None:
    permit_strategies(api.context.store, app="shop", agent="watcher", team="default")
    assert api.post("/agents/shop/watcher/here", json={"url": "http://127.0.0.1:1", "pid": 7}).status_code == 204
    assert api.get("/agents/shop/watcher").json()["state"] == "running"
    assert not any(path.endswith("/here") for path in api.get("/openapi.json").json()["paths"])


def test_a_heartbeat_counts_as_a_change_where_a_sensor_has_fired_since() -> None:
    beats, changes = Heartbeats(since=0.0), list[int]()
    for at, fired in enumerate((3, 3, 4)):
        beats.note(row(), at=float(at), sensors=[REPORT | {"fired": fired}])
        changes.append(beats.changes)
    assert changes == [1, 1, 2]


def test_a_heartbeat_is_answered_by_whether_a_page_of_agents_is_open(api: Api) -> None:
    permit_strategies(api.context.store, app="shop", agent="watcher", team="default")
    pages, answers = {page.template: page for page in PAGES}, list[bytes]()
    for name in ("services", "agents", "agent"):
        read_marker(api.context, pages[name])
        answers.append(api.post(HEARTBEAT, json={"url": "http://127.0.0.1:1", "pid": 7}).content)
    assert answers == [b"", b'{"watched":true}', b'{"watched":true}']


def test_nobody_looks_any_more_some_seconds_after_the_last_look() -> None:
    times = iter([100.0, 100.0, 102.0, 106.0])
    beats = Heartbeats(since=0.0, monotonic=lambda: next(times))
    beats.look()
    assert [beats.is_watched for _ in range(3)] == [True, True, False]
    assert not Heartbeats(since=0.0).is_watched
