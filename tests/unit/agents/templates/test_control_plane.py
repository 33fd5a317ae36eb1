"""The server as the built-in agents ask it, over its own HTTP API."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import insert

from scanflow.agent.context import Context
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.files.unchanged_reads import UnchangedReads
from scanflow.http.home_token import ensure_home_token
from scanflow.installation import explain_install
from scanflow.settings import Settings
from scanflow.transport.server_client import ServerClient
from scanflow_agents.templates.template_client import (
    MAX_LABELS,
    ControlPlane,
    list_newest_runs,
    list_strategy_actions,
    tracker_of,
)
from scanflow_server.auth import register_home
from scanflow_server.server_context import ServerContext, make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store import intent_store, label_store
from scanflow_server.store.migrations import migrate
from scanflow_server.store.tables import labels as label_table
from tests.unit.server.answering import answering
from tests.unit.server.server_rows import enter_run, make_action_row


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[ServerContext]:
    home = tmp_path / "home"
    home.mkdir()
    address = f"sqlite:///{tmp_path / 'store.db'}"
    settings = ServerSettings.model_validate({"library": Settings(home=home, slots=2), "database_url": address})
    settings.folder.mkdir()
    context = make_context(settings, clock=lambda: 1_800_000_000.0)
    migrate(context.store)
    register_home(context)
    yield context
    context.store.close()


@pytest.fixture(params=["asked for each time", "kept while unchanged"])
def control_plane(parts: ServerContext, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    assert parts.store.file is not None
    store = Path(parts.store.file) if request.param == "kept while unchanged" else None
    with answering(parts) as url, closing(ServerClient(url, token=ensure_home_token(parts.settings.home))) as server:
        yield ControlPlane(server, unchanged=UnchangedReads(store))


def test_points_go_into_the_queue_once_and_come_back_labelled(control_plane: ControlPlane) -> None:
    items: list[dict[str, Any]] = [
        {"id": f"run/7:{number}", "run": "calm-otter-1", "data": {"at": number}, "guess": 3, "score": 0.5}
        for number in range(1100)
    ]
    assert len(control_plane.want_labels("mnist", items)) == 1100
    assert {label["state"] for label in control_plane.want_labels("mnist", items[:10])} == {"wanted"}
    for _ in range(2):
        control_plane.give_labels("mnist", {"run/7:3": 8}, by="ada")
    assert [(label["id"], label["label"]) for label in control_plane.labels("mnist", state="given")] == [("run/7:3", 8)]
    assert len(control_plane.labels("mnist", state="wanted")) == 1099
    assert control_plane.want_labels("mnist", items[3:4])[0]["state"] == "given"


def test_points_with_large_pictures_and_large_labels_are_sent_in_several_requests(control_plane: ControlPlane) -> None:
    items: list[dict[str, Any]] = [{"id": f"p{number}", "data": {"x": "y" * 300_000}} for number in range(8)]
    assert len(control_plane.want_labels("mnist", items)) == 8
    control_plane.give_labels("mnist", {item["id"]: "z" * 300_000 for item in items}, by="ada")
    assert len(control_plane.labels("mnist", state="given")) == 8


def test_the_newest_labels_are_seen_however_many_were_given_before(
    control_plane: ControlPlane, parts: ServerContext
) -> None:
    def give(start: int, count: int, score: float | None) -> None:
        labels = [
            label_store.Label(
                id=f"p{number}", app="mnist", state="given", label=7, by="ada", score=score, given=1.0 * number
            )
            for number in range(start, start + count)
        ]
        with parts.store.write() as connection:
            connection.execute(
                insert(label_table), [label.model_dump(mode="json", exclude={"votes"}) for label in labels]
            )

    give(0, MAX_LABELS, 0.9)
    assert len(control_plane.labels("mnist", state="given")) == MAX_LABELS
    give(MAX_LABELS, 5, None)
    labels = control_plane.labels("mnist", state="given")
    assert [label["id"] for label in labels[:5]] == [f"p{MAX_LABELS + number}" for number in (4, 3, 2, 1, 0)]
    assert len({label["id"] for label in labels}) == len(labels) == MAX_LABELS + 5


def test_a_server_that_knows_no_parts_of_the_queue_is_called_no_more_than_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Old:
        asked = 0

        def get(self, _path: str, **query: Any) -> list[dict[str, Any]]:
            self.asked += 1
            return [{"id": f"p{number}"} for number in range(query["limit"])]

    monkeypatch.setattr("scanflow_agents.templates.template_client.MAX_LABELS", 3)
    old: Any = Old()
    assert [label["id"] for label in ControlPlane(old).labels("mnist", state="given")] == ["p0", "p1", "p2"]
    assert old.asked == 2


def test_labels_that_are_given_while_others_are_read_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def __init__(self) -> None:
            self.sample_numbers = list(range(7))

        def get(self, _path: str, **query: Any) -> list[dict[str, Any]]:
            start = query["offset"] or 0
            page = [
                {"id": f"p{number}"}
                for number in sorted(self.sample_numbers, reverse=True)[start : start + query["limit"]]
            ]
            self.sample_numbers = [*self.sample_numbers, len(self.sample_numbers)]
            return page

    monkeypatch.setattr("scanflow_agents.templates.template_client.MAX_LABELS", 3)
    busy: Any = Busy()
    ids = [label["id"] for label in ControlPlane(busy).labels("mnist", state="given")]
    assert sorted(ids) == [f"p{number}" for number in range(7)]


def test_runs_and_actions_are_queried_by_what_they_are_of(control_plane: ControlPlane, parts: ServerContext) -> None:
    assert (control_plane.runs(), control_plane.services()) == ([], [])
    assert (control_plane.actions("mnist"), control_plane.want_labels("mnist", [])) == ([], [])
    for ask in (control_plane.service, control_plane.run):
        with pytest.raises((NotFoundError, InvalidError)):
            ask("nobody")
    context = Context(app="mnist", team="data", agent="executor", clock=lambda: 0.0, services=control_plane)
    for app, workflow in [("mnist", "training")] * 2 + [("mnist", "inference"), ("other", "training")] * 75:
        enter_run(parts, app=app, workflow=workflow)
    assert {(run.app, run.workflow) for run in list_newest_runs(context, "training")} == {("mnist", "training")}
    assert len(list_newest_runs(context, "training")) == 2
    assert len(control_plane.runs(limit=3)) == 3
    of = {"team": "data", "agent": "executor", "strategy": "change"}
    with parts.store.write() as connection:
        intent_store.add(connection, make_action_row("mine", "succeeded", "act", **of))
        for number in range(150):
            intent_store.add(connection, make_action_row(f"no-{number}", **of))
            intent_store.add(connection, make_action_row(f"other-{number}", "succeeded", "act", team="data"))
            intent_store.add(connection, make_action_row(f"says-{number}", "pending", "suggest", **of))
    assert [action.id for action in list_strategy_actions(context, "change")] == ["mine"]
    assert len(control_plane.actions("mnist")) == 100
    assert control_plane.actions("mnist", states=["running", "lost"]) == []
    assert len(control_plane.actions("mnist", target="service/serve", primitive="update_workflow_replica")) == 100


def test_actions_and_labels_are_requested_again_only_when_the_servers_database_was_written(tmp_path: Path) -> None:
    database, asked = tmp_path / "server.db", list[str]()

    def write() -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS lines (line TEXT)")
            connection.execute("INSERT INTO lines VALUES ('one')")

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path.rpartition("/")[2])
        return httpx2.Response(200, json=[])

    write()
    server = ServerClient("http://127.0.0.1:1", token="t", transport=httpx2.MockTransport(answer))
    plane = ControlPlane(server, unchanged=UnchangedReads(database))

    def look() -> None:
        plane.actions("shop", target="service/a")
        plane.actions("shop", target="service/b")
        plane.labels("shop", state="given")
        plane.runs()

    look()
    look()
    assert asked == ["intents", "intents", "labels", "runs", "runs"], "runs are kept elsewhere"
    write()
    look()
    assert asked[5:] == ["intents", "intents", "labels", "runs"]


def test_an_agent_without_a_tracker_learns_which_cause_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(app="mnist", team="data", agent="checker", clock=lambda: 0.0)
    with pytest.raises(
        UsageError, match=r"has no tracker\. Write sf\.Application\(tracker=sf\.Tracker\(\), \.\.\.\)\.$"
    ):
        tracker_of(context)
    monkeypatch.setattr("scanflow_agents.templates.template_client.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=re.escape(f"MLflow is not installed here. {explain_install('local')}")):
        tracker_of(context)
