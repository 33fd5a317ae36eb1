"""What is kept: groups that are whole, and faults of the disk that are told."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.errors import UnavailableError
from scanflow_agents.ledger import Firing, Ledger
from scanflow_agents.state import AgentState
from scanflow_agents.writer import GroupWriter

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY)"


def test_what_is_added_in_one_turn_is_one_transaction(tmp_path: Path) -> None:
    async def story() -> None:
        writer = GroupWriter(tmp_path / "a.db", SCHEMA)
        for n in range(1000):
            writer.add("INSERT INTO numbers VALUES (?)", (n,))
        assert writer.read("SELECT count(*) FROM numbers") == [(0,)]
        await writer.settled()
        assert writer.read("SELECT count(*) FROM numbers") == [(1000,)]
        await writer.close()

    asyncio.run(story())


def test_a_group_that_cannot_be_written_is_tried_again_whole_and_then_told(tmp_path: Path) -> None:
    async def story() -> None:
        writer = GroupWriter(tmp_path / "a.db", SCHEMA, patience_s=0.0)
        writer.add("INSERT INTO numbers VALUES (?)", (1,))
        writer.add("INSERT INTO nowhere VALUES (?)", (1,))
        with pytest.raises(UnavailableError, match="cannot be written: no such table"):
            await writer.settled()
        assert writer.broken.is_set()
        assert writer.read("SELECT count(*) FROM numbers") == [(0,)], "half a group is none"
        with pytest.raises(UnavailableError):
            await writer.close()

    asyncio.run(story())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.db").write_text("not a database, but long enough to be taken for one" * 50)
    with pytest.raises(UnavailableError, match="cannot be opened"):
        AgentState(tmp_path / "agent.db")


def test_an_account_is_read_as_it_was_written(tmp_path: Path) -> None:
    async def story() -> None:
        state = AgentState(tmp_path / "agent.db")
        trigger = sf.all_of(sf.every(minutes=1), sf.cron("0 * * * *"), sf.on_event("run.failed", workflow="w"))
        ledger = Ledger(sensor="s", trigger=trigger, fired=3, running=1, last=5.5, looked=4.5)
        ledger.declare(trigger, 1000.0)
        ledger.leaves[(0,)].take(1070.0, grace_s=60, seed="")
        ledger.pulse((0,))
        ledger.flight = Firing(cause="interval.0:x", at=1060.0, args=(1, "a"), kwargs={"k": [1]}, event={"type": "e"})
        state.changed(ledger)
        await state.writer.settled()
        assert state.ledgers() == {"s": ledger}
        await state.writer.close()

    asyncio.run(story())


def test_the_journal_and_the_calls_forget_the_oldest(tmp_path: Path) -> None:
    async def story() -> None:
        state = AgentState(tmp_path / "agent.db", most_entries=10, most_calls=5)
        for n in range(30):
            state.note("sample", "s", float(n), "{}")
            state.add_call("s", Firing(cause=f"call:{n}", at=float(n)))
            state.call_done("s", f"call:{n}")
        state.trim()
        await state.writer.settled()
        assert [entry["id"] for entry in state.journal()] == list(range(21, 31))
        assert [entry["id"] for entry in state.journal(after=25, limit=2)] == [26, 27]
        assert not state.knows_call("s", "call:24")
        assert state.knows_call("s", "call:25")
        assert state.writer.read("SELECT count(*) FROM calls") == [(5,)]
        await state.writer.close()

    asyncio.run(story())


@pytest.mark.parametrize("restarted", [False, True])
def test_the_newest_calls_are_remembered_also_after_a_restart(tmp_path: Path, restarted: bool) -> None:
    async def story() -> None:
        state = AgentState(tmp_path / "agent.db", most_calls=5)
        for n in range(30):
            state.add_call("zyxw"[n % 4], Firing(cause=f"call:{n}", at=float(n)))
            state.call_done("zyxw"[n % 4], f"call:{n}")
        if restarted:
            await state.writer.close()
            state = AgentState(tmp_path / "agent.db", most_calls=5)
        state.trim()
        await state.writer.settled()
        assert [n for n in range(30) if state.knows_call("zyxw"[n % 4], f"call:{n}")] == [25, 26, 27, 28, 29]
        assert state.writer.read("SELECT id FROM calls ORDER BY id") == [(n,) for n in range(26, 31)]
        await state.writer.close()

    asyncio.run(story())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_that_is_not_done_is_not_forgotten_however_old_it_is(tmp_path: Path, restarted: bool) -> None:
    async def story() -> None:
        state = AgentState(tmp_path / "agent.db", most_calls=5)
        for n in range(30):
            state.add_call("s", Firing(cause=f"call:{n}", at=float(n)))
            if n % 10:
                state.call_done("s", f"call:{n}")
        if restarted:
            await state.writer.close()
            state = AgentState(tmp_path / "agent.db", most_calls=5)
        state.trim()
        await state.writer.settled()
        kept = [0, 10, 20, 25, 26, 27, 28, 29]
        assert [n for n in range(30) if state.knows_call("s", f"call:{n}")] == kept
        assert state.writer.read("SELECT id FROM calls ORDER BY id") == [(n + 1,) for n in kept]
        assert [firing.cause for _, firing in state.waiting_calls()] == ["call:0", "call:10", "call:20"]
        for n in (0, 10, 20):
            state.call_done("s", f"call:{n}")
        state.trim()
        await state.writer.settled()
        assert [n for n in range(30) if state.knows_call("s", f"call:{n}")] == kept[3:]
        await state.writer.close()

    asyncio.run(story())


def test_it_is_in_wal_mode(tmp_path: Path) -> None:
    AgentState(tmp_path / "agent.db")
    connection = sqlite3.connect(tmp_path / "agent.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
