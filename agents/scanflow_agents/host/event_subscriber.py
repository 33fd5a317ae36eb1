"""Subscribe to the server's events from the stored position: each event is taken once.

The position is committed together with the firings of the events: after a kill it continues with the first event that
was not committed. A first subscription begins with the next event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import stamina

from scanflow.agent.agent_records import Event
from scanflow.app.triggers import EventTrigger as OnEvent
from scanflow.errors import ScanflowError, UnavailableError
from scanflow_agents.host.agent_state import AgentStore, EventPosition

MAX_BATCH = 100
"""The most events in one commit; the rest of a backlog is read after it."""

BACKLOG_TIMEOUT_S = 5.0
"""How long a backlog waits for slow sensors; after that, events for full queues count as missed."""

MAX_PAUSE_S = 5.0
_POLL_S = 0.05
_MAX_TYPES = 50
"""The most types in the server's filter; with more, all events are received and filtered here."""

EVENTS_GONE = "events.gone"
"""The type of the event by which the server reports deleted events that were not received."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    kinds: frozenset[tuple[str, str]]
    """The application and type of the events that may fire a sensor."""

    @classmethod
    def from_triggers(cls, triggers: Iterable[OnEvent], app: str) -> EventFilter:
        """Build the filter of an agent of ``app``: its own application's events, unless a trigger names another."""
        return cls(kinds=frozenset((str(trigger.match.get("app", app)), trigger.type) for trigger in triggers))

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def __contains__(self, event: Event) -> bool:
        return (event.app, event.type) in self.kinds

    @property
    def types(self) -> tuple[str, ...]:
        """The types to request; empty: all."""
        types = sorted({type for _, type in self.kinds})
        return tuple(types) if len(types) <= _MAX_TYPES else ()

    @property
    def app(self) -> str | None:
        """The application to request; None: all."""
        apps = {app for app, _ in self.kinds}
        return next(iter(apps)) or None if len(apps) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    events: Sequence[Event] = ()
    seen: Event | None = None
    """The newest event of any type; no other event up to it matches."""


class EventSource(Protocol):
    """A source of events. All methods raise ``UnavailableError`` if it is unreachable."""

    async def fetch_newest(self) -> Event | None:
        """Return the newest event; None: there is none yet."""
        ...

    async def from_number(self, number: int) -> Event | None:
        """Return the first event with this or a higher number."""
        ...

    def stream(self, after: int, event_filter: EventFilter) -> AsyncGenerator[EventBatch, None]:
        """Yield the events after a number as they come; also empty batches, one at first and others periodically."""
        ...


class EventSubscriber:
    def __init__(
        self,
        source: EventSource,
        event_filter: EventFilter,
        *,
        state: AgentStore,
        take: Callable[[Event], object],
        is_behind: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """``take`` handles an event, and updates ``state`` synchronously."""
        self._source, self._filter, self._state = source, event_filter, state
        self._take, self._is_behind = take, is_behind
        self._clock = clock
        self._last_failure = ""
        self.connected = False
        self._positioned = asyncio.Event()

    async def wait_for_position(self, timeout_s: float) -> None:
        """Wait until it is known from which event on it listens; at most so long, as the server may not answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._positioned.wait()

    async def run(self) -> None:
        """Listen until cancelled, with retries."""
        while True:  # each iteration begins with short pauses again
            async for attempt in stamina.retry_context(
                on=Exception, attempts=None, timeout=None, wait_max=MAX_PAUSE_S, wait_jitter=0.1
            ):
                with attempt:
                    await self._listen_once()

    async def _listen_once(self) -> None:
        """Listen until the connection ends; raise only where no event was received."""
        before = self._state.position
        try:
            await self._synchronize()
            self._positioned.set()
            await self._listen()
            raise UnavailableError("The server closed its event stream.")
        except Exception as error:  # the edge of a loop that must continue; no event is lost
            self._log_failure(error)
            if self._state.position == before:
                raise
        finally:
            self.connected = False

    async def _synchronize(self) -> None:
        """Set the position to listen from: start at the newest event, or check that the server's list is the same."""
        position = self._state.position
        if position is None or not position.subscribed:
            newest = await self._source.fetch_newest()
            self._state.set_position(_build_position(newest, 0 if position is None else position.generation))
            return
        if position.number == 0:
            return
        event = await self._source.from_number(position.number)
        if event is None or (event.id == position.number and position.mark not in {"", _build_mark(event)}):
            newest = await self._source.fetch_newest()
            now = _build_position(newest, position.generation + 1)
            _log.warning(
                "The server's event log was restarted: the last received event was %d, and the log is at %d. Earlier "
                "events are skipped.",
                position.number,
                now.number,
            )
            self._note("subscription", {"restarted": True, "before": position.number, "now": now.number})
            self._state.set_position(now)

    async def _listen(self) -> None:
        position = self._state.position
        assert position is not None
        async with aclosing(self._source.stream(position.number, self._filter)) as stream:
            async for batch in stream:
                if not self.connected:
                    self.connected, self._last_failure = True, ""
                    _log.info("Receiving events from number %d on.", position.number)
                for start in range(0, len(batch.events), MAX_BATCH):
                    self._take_event(batch.events[start : start + MAX_BATCH])
                    await self._state.writer.flush()
                    await self._wait_while_behind()
                if batch.seen is not None:
                    self._move_to(batch.seen)

    def _take_event(self, events: Sequence[Event]) -> None:
        """Take events and advance the position, synchronously, so that both are in the same commit."""
        for event in events:
            position = self._state.position
            assert position is not None
            if event.id <= position.number:
                continue
            if event.type == EVENTS_GONE:
                self._record_lost_events(position.number, event)
            elif event in self._filter:
                self._take(event)
            self._move_to(event)

    def _move_to(self, event: Event) -> None:
        position = self._state.position
        assert position is not None
        if event.id > position.number:
            # A deleted event cannot be read again, so it has no mark.
            self._state.set_position(
                replace(position, number=event.id, mark="" if event.type == EVENTS_GONE else _build_mark(event))
            )

    def _record_lost_events(self, number: int, event: Event) -> None:
        count = event.id - number
        _log.warning("The server deleted the events %d to %d before this agent received them.", number + 1, event.id)
        self._note("missed", {"reason": "gone", "cause": f"event:{number + 1}", "count": count})

    async def _wait_while_behind(self) -> None:
        for _ in range(round(BACKLOG_TIMEOUT_S / _POLL_S)):
            if not self._is_behind():
                return
            await asyncio.sleep(_POLL_S)

    def _note(self, kind: str, body: dict[str, object]) -> None:
        self._state.note(kind, "events", self._clock(), json.dumps(body))

    def _log_failure(self, error: Exception) -> None:
        level = logging.INFO if isinstance(error, UnavailableError) else logging.WARNING
        defect = not isinstance(error, ScanflowError)
        text = f"Events cannot be received: {f'{type(error).__name__}: ' if defect else ''}{error}"
        if text != self._last_failure:
            _log.log(logging.ERROR if defect else level, "%s", text, exc_info=error if defect else None)
        self._last_failure = text


def _build_position(event: Event | None, generation: int) -> EventPosition:
    number, mark = (0, "") if event is None else (event.id, _build_mark(event))
    return EventPosition(number=number, mark=mark, generation=generation)


def _build_mark(event: Event) -> str:
    """Return the mark that identifies an event in addition to its number, as another list reuses the numbers."""
    return f"{event.at!r} {event.type} {event.app} {event.subject}"
