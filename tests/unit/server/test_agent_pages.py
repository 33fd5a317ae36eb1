"""The pages of agents: sensors, samples, strategies and the journal, and who may start and stop one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import null, update

from scanflow.agent.agent_records import Event, PermittedCall, Sample, StrategyLimits
from scanflow_server.dashboard import agent_pages
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, event_store, intent_store
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.tables import agents
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api, make_action_row, read_from_store

PAGE = "/agents/mnist/planner"
SENSOR = {"name": "<counts>", "trigger": {"kind": "interval", "seconds": 2}, "fired": 7, "missed": 3, "errors": 1}


def add_agent(context: ServerContext, *, team: str = "tests", is_ours: bool = True) -> None:
    document: dict[str, Any] = {"schema": "scanflow/v1", "name": "mnist", "team": team, "agents": [{"name": "planner"}]}
    with context.store.write() as connection:
        agent_store.put(connection, app="mnist", name="planner", team=team, document=document, source="my loop.py")
        row = agent_store.find(connection, "mnist", "planner")
        assert row is not None
        call = PermittedCall(primitive="run_workflow", target="workflow/training")
        limits = StrategyLimits(name="retrain", calls=(call,), budget=4, budget_window_s=86400.0, cool_down_s=10.0)
        agent_store.put_strategies(connection, row, [limits], replace=False)
        agent_store.record_address(
            connection, app="mnist", name="planner", url="http://127.0.0.1:9", pid=1, at=context.clock(),
            sensors=[SENSOR],
        )  # fmt: skip
        if not is_ours:  # a process that somebody else runs, and of which its heartbeats tell
            connection.execute(update(agents).values(document=null()))


def add_samples(context: ServerContext, *values: Any) -> None:
    samples = [
        Event(
            at=1.8e9 + n,
            type="sample",
            app="mnist",
            subject="agent/planner",
            data={"sensor": "<counts>", "sample": f"s{n}", "cause": "interval:2027-01-15T08:00:00.5Z", "value": value},
        )
        for n, value in enumerate(values)
    ]
    with context.store.write() as connection:
        event_store.append(connection, samples, team="tests")


@pytest.mark.parametrize(
    ("cause", "lag"),
    [
        ("interval:2027-01-15T08:00:00Z", 2.5),
        ("interval:2027-01-15T08:00:01.500000Z", 1.0),
        ("cron:2027-01-15T08:00:00Z", 2.5),
        ("interval:2027-01-15T09:00:00Z", 0.0),
        ("interval:2027-99-15T09:00:00Z", None),
        ("call:tracker/count/interval:2027-01-15T08:00:00Z", None),
        ("event:142", None),
    ],
)
def test_a_sensor_is_late_by_what_passed_since_it_was_due(cause: str, lag: float | None) -> None:
    sample = Sample(id="s", agent="planner", sensor="counts", at=1.8e9 + 2.5, value=1, cause=cause)
    assert sample.lag_s == lag


def test_an_agent_shows_what_it_saw_and_may_do(
    api: Api, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_agent(context, is_ours=False)
    add_samples(context, {"picked": 132, "api_key": "tops3cret"}, {"picked": 140})
    with context.store.write() as connection:
        intent_store.add(connection, make_action_row("a1", "succeeded", "act"))
    asked_before: list[int] = []

    def read(_context: object, _agent: AgentRow, *, before: int, limit: int, timeout_s: float) -> list[dict[str, Any]]:
        assert timeout_s < 5
        asked_before.append(before)
        body = {"value": "<script>", "cause": "interval:2027-01-15T08:00:00Z", "password": "tops3cret"}
        first = max(1, min(before, 61) - limit)
        return [
            {"id": n, "at": float(n), "kind": "sample", "subject": "counts", "body": body}
            for n in range(first, min(before, 61))
        ]

    monkeypatch.setattr(agent_pages, "fetch_journal", read)
    with browsing(api) as ada:
        page = ada.read(PAGE)
        text = ada.get(PAGE)
        for words in ("&lt;counts&gt;", "every 2.00 s", "run_workflow on workflow/training", "4 in 24h 00m"):
            assert words in text, words
        due = '<time datetime="2027-01-15T08:00:00+00:00">2027-01-15 08:00:00 UTC</time>'
        assert f"<summary>&#34;&lt;script&gt;&#34; (interval:{due})</summary><pre>{{" in text
        assert "tops3cret" not in text
        assert "Decisions over metrics" in text
        assert "picked = 140" in text
        assert "Of the samples, those that failed or led to something are drawn" in text
        assert "scanflow replay mnist:planner &#39;my loop.py&#39; --last 2" in text, "its application's file"
        assert {"/actions/a1", "/reports/mnist", "/applications/mnist"} <= page.addresses
        older = ada.read(page.links["Older →"])
        assert "← Newer" in older.links
        assert "mnist:planner" in ada.read("/agents").links
    assert asked_before == [2**53, 2**53, 41]


def test_a_journal_that_cannot_be_read_is_no_error_of_the_page(api: Api, context: ServerContext) -> None:
    add_agent(context)
    with browsing(api) as ada:
        start = "Start it: scanflow agents --start &#39;my loop.py:planner&#39;"
        assert f"its journal cannot be read. {start}" in ada.get(PAGE)


def test_only_editors_start_and_stop(api: Api, context: ServerContext) -> None:
    add_agent(context)
    with browsing(api) as ada, browsing(api, "vic", "viewer") as vic:
        assert [form.action for form in vic.read(PAGE).forms] == ["/logout"]
        assert vic.post(f"{PAGE}/stop").status_code == 403
        assert read_from_store(context.store, agent_store.find, "mnist", "planner").wanted
        assert [form.action for form in ada.read(PAGE).forms] == ["/logout", f"{PAGE}/stop"]
        assert ada.post(f"{PAGE}/stop").url.path == PAGE
        assert not read_from_store(context.store, agent_store.find, "mnist", "planner").wanted
        assert [form.action for form in ada.read(PAGE).forms] == ["/logout", f"{PAGE}/start"]
        assert vic.post(f"{PAGE}/start").status_code == 403


def test_another_teams_agent_looks_missing(api: Api, context: ServerContext) -> None:
    add_agent(context, team="alpha")
    with browsing(api, team="beta") as eve:
        assert PAGE not in eve.read("/agents").addresses
        for missing in (eve.client.get(PAGE), eve.post(f"{PAGE}/stop"), eve.client.get("/agents/mnist/none")):
            assert (missing.status_code, "There is no agent" in missing.text) == (404, True)
    assert read_from_store(context.store, agent_store.find, "mnist", "planner").wanted


def test_requests_that_are_counted_do_not_crowd_out_what_agents_did(api: Api, context: ServerContext) -> None:
    about: dict[str, Any] = {"app": "mnist", "data": {"agent": "checker", "predictions": 9, "anomalies": 2}}
    counted = [Event(at=1.8e9 + n, type="service.measured", **about) for n in range(agent_pages.MAX_EVENTS)]
    with context.store.write() as connection:
        event_store.append(connection, [Event(at=1.79e9, type="drift.found", **about), *counted], team="tests")
    with browsing(api) as ada:
        assert "drift: 2 of 9 outliers" in ada.get("/agents")
