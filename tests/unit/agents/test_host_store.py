"""What is kept: groups that are whole, and faults of the disk that are told."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.errors import UnavailableError
from scanflow_agents.host.agent_state import AgentStore, EventPosition
from scanflow_agents.host.group_commit import GroupWriter
from scanflow_agents.host.sensor_state import FiringRequest, SensorState

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY)"


async def test_what_is_added_in_one_turn_is_one_transaction(tmp_path: Path) -> None:
    writer = GroupWriter(tmp_path / "a.db", SCHEMA)
    for n in range(1000):
        writer.add("INSERT INTO numbers VALUES (?)", (n,))
    assert writer.read("SELECT count(*) FROM numbers") == [(0,)]
    await writer.flush()
    assert writer.read("SELECT count(*) FROM numbers") == [(1000,)]
    await writer.close()


async def test_a_group_that_cannot_be_written_is_tried_again_whole_and_then_reported(tmp_path: Path) -> None:
    writer = GroupWriter(tmp_path / "a.db", SCHEMA, patience_s=0.0)
    writer.add("INSERT INTO numbers VALUES (?)", (1,))
    writer.add("INSERT INTO nowhere VALUES (?)", (1,))
    with pytest.raises(UnavailableError, match="cannot be written: no such table"):
        await writer.flush()
    assert writer.broken.is_set()
    assert writer.read("SELECT count(*) FROM numbers") == [(0,)], "half a group is none"
    with pytest.raises(UnavailableError):
        await writer.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.db").write_text("not a database, but long enough to be taken for one" * 50)
    with pytest.raises(UnavailableError, match="cannot be opened"):
        AgentStore(tmp_path / "agent.db")


async def test_an_account_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = AgentStore(tmp_path / "agent.db")
    trigger = sf.all_of(sf.every(minutes=1), sf.cron("0 * * * *"), sf.on_event("run.failed", workflow="w"))
    sensor_state = SensorState(sensor="s", trigger=trigger, fired=3, running=1, last=5.5, looked=4.5)
    sensor_state.declare(trigger, 1000.0)
    sensor_state.leaves["0"].take(1070.0, late=False, seed="")
    sensor_state.mark_fired("0")
    sensor_state.in_progress = FiringRequest(
        cause="interval.0:x", at=1060.0, args=(1, "a"), kwargs={"k": [1]}, event={"type": "e"}
    )
    state.mark_changed(sensor_state)
    await state.writer.flush()
    assert state.load_sensor_states() == {"s": sensor_state}
    await state.writer.close()


async def test_the_journal_forgets_the_oldest(tmp_path: Path) -> None:
    state = AgentStore(tmp_path / "agent.db", most_entries=10)
    for n in range(30):
        state.note("sample", "s", float(n), "{}")
    state.trim()
    await state.writer.flush()
    assert [entry["id"] for entry in state.journal()] == list(range(21, 31))
    assert [entry["id"] for entry in state.journal(after=25, limit=2)] == [26, 27]
    await state.writer.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_newest_calls_are_remembered_and_each_that_is_not_done_however_old_it_is(
    tmp_path: Path, restarted: bool
) -> None:
    state = AgentStore(tmp_path / "agent.db", most_calls=5)
    for n in range(30):
        state.add_call("zyxw"[n % 4], FiringRequest(cause=f"call:{n}", at=float(n)))
        if n % 10:
            state.complete_call("zyxw"[n % 4], f"call:{n}")
    if restarted:
        await state.writer.close()
        state = AgentStore(tmp_path / "agent.db", most_calls=5)
    state.trim()
    await state.writer.flush()
    expected = [0, 10, 20, 25, 26, 27, 28, 29]
    assert [n for n in range(30) if state.has_call("zyxw"[n % 4], f"call:{n}")] == expected
    assert state.writer.read("SELECT id FROM calls ORDER BY id") == [(n + 1,) for n in expected]
    assert [firing.cause for _, firing in state.load_waiting_calls()] == ["call:0", "call:10", "call:20"]
    for n in (0, 10, 20):
        state.complete_call("zyxw"[n % 4], f"call:{n}")
    state.trim()
    await state.writer.flush()
    assert [n for n in range(30) if state.has_call("zyxw"[n % 4], f"call:{n}")] == expected[3:]
    await state.writer.close()


def test_it_is_in_wal_mode(tmp_path: Path) -> None:
    AgentStore(tmp_path / "agent.db")
    connection = sqlite3.connect(tmp_path / "agent.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_journal_is_bounded_in_bytes_also_after_a_restart(tmp_path: Path) -> None:
    for life in range(2):
        state = AgentStore(tmp_path / "agent.db", most_bytes=3000)
        for n in range(10):
            state.note("sample", "s", float(n), json.dumps([life, n, "x" * 900]))
        await state.writer.flush()
        assert [entry["body"][:2] for entry in state.journal()] == [[life, n] for n in (7, 8, 9)]
        state.note("sample", "s", 10.0, json.dumps("y" * 9000))
        await state.writer.flush()
        assert [len(entry["body"]) for entry in state.journal()] == [9000], "the newest is kept in any case"
        state.note("sample", "s", 11.0, "{}")
        await state.writer.close()


async def test_the_position_of_an_earlier_version_is_read_once(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "agent.db") as database:
        database.execute("CREATE TABLE heard (id INTEGER PRIMARY KEY, number, mark, generation, listens)")
        database.execute("INSERT INTO heard VALUES (1, 41, 'm', 2, 0)")
    database.close()
    former = EventPosition(number=41, mark="m", generation=2, subscribed=False)
    for position in (former, EventPosition(number=42, mark="n")):
        state = AgentStore(tmp_path / "agent.db")
        assert state.position == former
        state.set_position(position)
        await state.writer.flush()
        await state.writer.close()
    state = AgentStore(tmp_path / "agent.db")
    assert state.position == EventPosition(number=42, mark="n")
    await state.writer.close()
