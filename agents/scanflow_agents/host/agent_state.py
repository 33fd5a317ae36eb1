"""The durable state of an agent, in one SQLite file: the states of its sensors, calls, deliveries, and its journal.

While the agent runs, the objects in memory are authoritative; their changes in one iteration of the loop are written
together, so that the file never has half of a step.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from scanflow_agents.host.group_commit import GroupWriter, Statement
from scanflow_agents.host.sensor_state import FiringRequest, SensorState

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sensor_states (name TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY, sensor TEXT NOT NULL, cause TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0, UNIQUE (sensor, cause));
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY, lane TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, at REAL NOT NULL,
    body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS acted (
    key TEXT PRIMARY KEY, strategy TEXT NOT NULL, target TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS event_position (
    id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL, mark TEXT NOT NULL, generation INTEGER NOT NULL,
    subscribed INTEGER NOT NULL);
-- What an earlier version called the same:
CREATE TABLE IF NOT EXISTS heard (id INTEGER, number INTEGER, mark TEXT, generation INTEGER, listens INTEGER);
INSERT OR IGNORE INTO event_position SELECT id, number, mark, generation, listens FROM heard;
DROP TABLE heard;
"""
SENSOR_STATES = TypeAdapter(SensorState)
_FIRINGS = TypeAdapter(FiringRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPosition:
    number: int
    mark: str
    """The mark of that event, which identifies the list. Empty: unknown."""

    generation: int = 0
    """The number of times that the server's list was replaced; in a new one, numbers start again."""

    subscribed: bool = True
    """Whether the agent was subscribed when it last ran; if not, missed events are skipped."""

    def format_event_key(self, number: int) -> str:
        """Return a key for an event that is unique also among those of earlier lists."""
        return f"{number}@{self.generation}" if self.generation else str(number)


class ActedRow(NamedTuple):
    """Something that a strategy with limits did or requested."""

    target: str
    """Of an intent ``intent``: its target is the server's matter."""

    at: float


class AgentStore:
    """The state of one agent, in ``FOLDER/agent.db``. The program's lock ensures that it is opened once."""

    def __init__(
        self, path: Path, *, most_entries: int = 50_000, most_bytes: int = 256 * 2**20, most_calls: int = 10_000
    ) -> None:
        """``most_calls``: how many answered calls are kept, so that a repeated one is not acted on again."""
        self.writer = GroupWriter(path, _SCHEMA)
        self._most_entries, self._most_bytes, self._most_calls = most_entries, most_bytes, most_calls
        self._dirty: dict[str, SensorState] = {}
        read = self.writer.read
        entries = read("SELECT id, length(CAST(body AS BLOB)) FROM journal ORDER BY id")
        self._sizes: deque[tuple[int, int]] = deque((number, size) for number, size in entries)
        self._bytes = sum(size for _, size in self._sizes)
        self._entries = itertools.count(self._sizes[-1][0] + 1 if self._sizes else 1)
        self._calls = itertools.count(_compute_next(read("SELECT max(id) FROM calls")))
        self._delivery_numbers = itertools.count(_compute_next(read("SELECT max(id) FROM outbox")))
        calls = read("SELECT id, sensor, cause, done FROM calls ORDER BY id")
        self._known = {(sensor, cause): number for number, sensor, cause, _ in calls}  # the oldest first
        self._open = {number for number, _, _, done in calls if not done}
        row = next(iter(read("SELECT number, mark, generation, subscribed FROM event_position")), None)
        self.position = (
            None
            if row is None
            else EventPosition(number=row[0], mark=row[1], generation=row[2], subscribed=bool(row[3]))
        )
        """The position in the server's events. None: never subscribed."""

        self._acted: dict[str, dict[str, ActedRow]] = {}
        for key, strategy, target, at in read("SELECT * FROM acted"):
            self._acted.setdefault(strategy, {})[key] = ActedRow(target, at)

        self.writer.collect(self._take_pending_writes)

    # -- sensors

    def load_sensor_states(self) -> dict[str, SensorState]:
        return {
            name: SENSOR_STATES.validate_json(state) for name, state in self.writer.read("SELECT * FROM sensor_states")
        }

    def mark_changed(self, sensor_state: SensorState) -> None:
        """Write the state at the end of this iteration of the loop."""
        self._dirty[sensor_state.sensor] = sensor_state
        self.writer.touch()

    def _take_pending_writes(self) -> Iterator[Statement]:
        for name, sensor_state in self._dirty.items():
            yield (
                "INSERT OR REPLACE INTO sensor_states VALUES (?, ?)",
                (name, SENSOR_STATES.dump_json(sensor_state).decode()),
            )
        self._dirty.clear()

    # -- calls and events that fire a sensor

    def add_call(self, sensor: str, firing: FiringRequest) -> None:
        number = next(self._calls)
        self._known[sensor, firing.cause] = number
        self._open.add(number)
        self.writer.add(
            "INSERT OR IGNORE INTO calls (id, sensor, cause, at, body) VALUES (?, ?, ?, ?, ?)",
            (number, sensor, firing.cause, firing.at, _FIRINGS.dump_json(firing).decode()),
        )

    def has_call(self, sensor: str, cause: str) -> bool:
        return (sensor, cause) in self._known

    def set_position(self, position: EventPosition) -> None:
        self.position = position
        self.writer.add(
            "INSERT OR REPLACE INTO event_position VALUES (1, ?, ?, ?, ?)",
            (position.number, position.mark, position.generation, position.subscribed),
        )

    def complete_call(self, sensor: str, cause: str) -> None:
        number = self._known.get((sensor, cause))
        if number is not None:
            self._open.discard(number)
            self.writer.add("UPDATE calls SET done = 1 WHERE id = ?", (number,))

    def load_waiting_calls(self) -> list[tuple[str, FiringRequest]]:
        rows = self.writer.read("SELECT sensor, body FROM calls WHERE NOT done ORDER BY id")
        return [(sensor, _FIRINGS.validate_json(body)) for sensor, body in rows]

    # -- deliveries

    def add_delivery(self, queue: str, kind: str, key: str, at: float, body: str) -> int:
        number = next(self._delivery_numbers)
        self.writer.add("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)", (number, queue, kind, key, at, body))
        return number

    def delete_delivery(self, number: int) -> None:
        self.writer.add("DELETE FROM outbox WHERE id = ?", (number,))

    def load_deliveries(self) -> list[tuple[int, str, str, str, float, str]]:
        """Return the deliveries in order, as (number, queue, kind, key, time, body)."""
        rows = self.writer.read("SELECT id, lane, kind, key, at, body FROM outbox ORDER BY id")
        return [(number, queue, kind, key, at, body) for number, queue, kind, key, at, body in rows]

    # -- what strategies did

    def list_acted(self, strategy: str) -> dict[str, ActedRow]:
        """Return what a strategy with limits did or requested, by key."""
        return dict(self._acted.get(strategy, {}))

    def add_acted(self, strategy: str, key: str, row: ActedRow) -> None:
        self._acted.setdefault(strategy, {})[key] = row
        self.writer.add("INSERT OR REPLACE INTO acted VALUES (?, ?, ?, ?)", (key, strategy, row.target, row.at))

    def delete_acted(self, strategy: str, key: str) -> None:
        if self._acted.get(strategy, {}).pop(key, None) is not None:
            self.writer.add("DELETE FROM acted WHERE key = ?", (key,))

    # -- the journal

    def note(self, kind: str, subject: str, at: float, body: str) -> int:
        number = next(self._entries)
        self.writer.add("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", (number, at, kind, subject, body))
        size = len(body.encode("utf-8", "replace"))
        self._sizes.append((number, size))
        self._bytes += size
        if self._bytes > self._most_bytes:
            self._trim_journal()
        return number

    def journal(
        self, *, after: int = 0, limit: int = 1000, kind: str | None = None, before: int | None = None
    ) -> list[dict[str, Any]]:
        """Return committed entries, the oldest first. Callable from any thread.

        ``before``: those with a lower number, and of these the newest.
        """
        if before is None:
            values: tuple[Any, ...] = (after, kind, kind, limit)
            rows = self.writer.read(
                "SELECT id, at, kind, subject, body FROM journal WHERE id > ? AND (? IS NULL OR kind = ?) "
                "ORDER BY id LIMIT ?",
                values,
            )
        else:
            values = (after, before, kind, kind, limit)
            rows = self.writer.read(
                "SELECT id, at, kind, subject, body FROM journal WHERE id > ? AND id < ? AND (? IS NULL OR kind = ?) "
                "ORDER BY id DESC LIMIT ?",
                values,
            )[::-1]
        return [
            {"id": number, "at": at, "kind": kind, "subject": subject, "body": json.loads(body)}
            for number, at, kind, subject, body in rows
        ]

    def trim(self) -> None:
        """Delete the oldest entries of the journal and the oldest completed calls."""
        self._trim_journal()
        surplus = len(self._known) - len(self._open) - self._most_calls
        if surplus > 0:
            done = ((key, number) for key, number in self._known.items() if number not in self._open)
            gone = list(itertools.islice(done, surplus))
            self.writer.add("DELETE FROM calls WHERE done AND id <= ?", (gone[-1][1],))
            for key, _ in gone:
                del self._known[key]

    def _trim_journal(self) -> None:
        last = 0
        while len(self._sizes) > self._most_entries or (self._bytes > self._most_bytes and len(self._sizes) > 1):
            last, size = self._sizes.popleft()
            self._bytes -= size
        if last:
            self.writer.add("DELETE FROM journal WHERE id <= ?", (last,))


def _compute_next(rows: list[tuple[Any, ...]]) -> int:
    return (rows[0][0] or 0) + 1
