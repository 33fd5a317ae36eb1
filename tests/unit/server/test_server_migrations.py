"""Databases of earlier versions, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from scanflow.agent.records import Action, Decision
from scanflow_server.store import intents, labels
from scanflow_server.store.base import open_store
from scanflow_server.store.intents import ActionRow
from scanflow_server.store.migrations import migrate
from tests.unit.server.arbiter.making import intent


def closed(id: str, state: Any, verdict: Any) -> ActionRow:
    decision = Decision(intent=id, verdict=verdict, reason="So it was.", at=5.0)
    wanted = intent(id, key=f"planner/scale/{id}")
    return ActionRow(
        action=Action(id=id, intent=wanted, state=state, decision=decision, began=None, ended=5.0), tries=1
    )


def test_what_was_refused_or_observed_is_told_as_lost_no_more(database: str) -> None:
    store = open_store(database)
    migrate(store, step="0002")
    before = {
        "no": ("lost", "refuse", "refused"),
        "seen": ("lost", "observe", "observed"),
        "cut": ("lost", "act", "lost"),
        "done": ("succeeded", "act", "succeeded"),
        "waits": ("pending", "approve", "pending"),
    }
    with store.write() as connection:
        for id, (state, verdict, _) in before.items():
            intents.add(connection, closed(id, state, verdict))
    migrate(store)
    with store.read() as connection:
        for id, (state, verdict, after) in before.items():
            known = intents.get(connection, id)
            assert known == closed(id, after, verdict), state
            assert [one.id for one in intents.listed(connection, state=after)] == [id]
    migrate(store)
    store.close()


def test_a_long_list_is_changed_to_its_end(database: str) -> None:
    store = open_store(database)
    migrate(store, step="0002")
    with store.write() as connection:
        for number in range(1203):
            intents.add(connection, closed(f"i{number}", "lost", "refuse"))
    migrate(store)
    with store.read() as connection:
        assert intents.listed(connection, state="lost") == []
        assert len(intents.listed(connection, state="refused", limit=2000)) == 1203
    store.close()


def test_labels_that_were_asked_for_before_teams_had_queues_are_any_team_s(database: str) -> None:
    store = open_store(database)
    migrate(store, step="0004")
    row = "INSERT INTO labels (app, id, run, data, state, label, asked) VALUES (:app, :id, '', '{}', 'given', '7', 1.0)"
    with store.write() as connection:
        for app, id in (("mnist", "p1"), ("mnist", "p2"), ("other", "p1")):
            connection.execute(text(row), {"app": app, "id": id})
    migrate(store)
    with store.write() as connection:
        for team in ("", "vision", "sound"):
            found = labels.listed(connection, app="mnist", team=team)
            assert [(one.id, one.team, one.label) for one in found] == [("p1", "", 7), ("p2", "", 7)]
        [known] = labels.ask(connection, "mnist", [labels.Wanted(id="p1")], at=2.0, team="vision")
        assert known.state == "given"
        [new] = labels.ask(connection, "mnist", [labels.Wanted(id="p3")], at=2.0, team="vision")
        labels.ask(connection, "mnist", [labels.Wanted(id="p3")], at=2.0, team="sound")
        assert (new.team, len(labels.listed(connection, app="mnist"))) == ("vision", 4)
    migrate(store)
    store.close()
