"""Databases of earlier versions, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from typing import Any

from scanflow.agent.records import Action, Decision
from scanflow_server.store import intents
from scanflow_server.store.base import open_store
from scanflow_server.store.intents import StoredAction
from scanflow_server.store.migrations import migrate
from tests.unit.server.arbiter.making import intent


def closed(id: str, state: Any, verdict: Any) -> StoredAction:
    decision = Decision(intent=id, verdict=verdict, reason="So it was.", at=5.0)
    wanted = intent(id, key=f"planner/scale/{id}")
    return StoredAction(
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
