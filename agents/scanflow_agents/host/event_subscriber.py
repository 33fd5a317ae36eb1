"""What the server tells of what happened, heard from where the agent stopped to listen: each event once.

How far it has heard is kept together with the firings that the events led to, in one commit: after a kill it goes on
with the first event that left nothing. The first time it begins with what comes next; the past is not told again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

import stamina

from scanflow.agent.records import Event
from scanflow.app.triggers import EventTrigger as OnEvent
from scanflow.errors import ScanflowError, UnavailableError
from scanflow_agents.host.store import AgentStore, EventPosition

MOST_AT_ONCE = 100
"""So many events are taken in one commit; more of a backlog is read only after it."""

CROWDED_S = 5.0
"""How long a backlog waits for sensors that cannot follow; after that, what they have no room for counts as missed."""

LONGEST_PAUSE_S = 5.0
_LOOK_S = 0.05
_MOST_TYPES = 50
"""More types than the server's filter takes are all heard, and those not wanted left aside here."""

GONE = "events.gone"
"""The server tells by it that it has forgotten events that were not heard."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    kinds: frozenset[tuple[str, str]]
    """The application and the type of each event that may fire a sensor."""

    @classmethod
    def of(cls, triggers: Iterable[OnEvent], app: str) -> EventFilter:
        """Return what triggers of an agent of ``app`` wait for: its own events, unless one names another's."""
        return cls(kinds=frozenset((str(one.match.get("app", app)), one.type) for one in triggers))

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def __contains__(self, event: Event) -> bool:
        return (event.app, event.type) in self.kinds

    @property
    def types(self) -> tuple[str, ...]:
        """The types to ask for; empty: all."""
        types = sorted({type for _, type in self.kinds})
        return tuple(types) if len(types) <= _MOST_TYPES else ()

    @property
    def app(self) -> str | None:
        """The application to ask for; None: all."""
        apps = {app for app, _ in self.kinds}
        return next(iter(apps)) or None if len(apps) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    events: Sequence[Event] = ()
    seen: Event | None = None
    """The newest event of all; up to it, only what was told is wanted."""


class EventSource(Protocol):
    """Who tells of events. All methods raise ``UnavailableError`` where nobody answers."""

    async def newest(self) -> Event | None:
        """Return the newest event; None where there is none yet."""
        ...

    async def from_number(self, number: int) -> Event | None:
        """Return the first event of this number or a later one."""
        ...

    def stream(self, after: int, wanted: EventFilter) -> AsyncGenerator[EventBatch, None]:
        """Yield what came after an event, and what comes; first of all, and now and then, nothing."""
        ...


class EventSubscriber:
    def __init__(
        self,
        source: EventSource,
        wanted: EventFilter,
        *,
        state: AgentStore,
        take: Callable[[Event], object],
        is_behind: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """``take`` takes an event, and changes ``state`` by what follows from it, at once."""
        self._source, self._wanted, self._state = source, wanted, state
        self._take, self._is_behind = take, is_behind
        self._clock = clock
        self._complaint = ""
        self.connected = False

    async def run(self) -> None:
        """Listen until this is cancelled, to a source that may come and go."""
        while True:  # each turn begins with short pauses again
            async for attempt in stamina.retry_context(
                on=Exception, attempts=None, timeout=None, wait_max=LONGEST_PAUSE_S, wait_jitter=0.1
            ):
                with attempt:
                    await self._listen_on()

    async def _listen_on(self) -> None:
        """Listen until the source goes away; raise only where nothing was heard of it."""
        before = self._state.position
        try:
            await self._meet()
            await self._listen()
            raise UnavailableError("The server has ended its stream of events.")
        except Exception as error:  # the edge of a loop that has to go on: nothing is lost meanwhile
            self._complain(error)
            if self._state.position == before:
                raise
        finally:
            self.connected = False

    async def _meet(self) -> None:
        """Find out from where to listen: begin, or make sure that the server is the one that was heard."""
        position = self._state.position
        if position is None or not position.listens:
            newest = await self._source.newest()
            self._state.set_position(_at(newest, 0 if position is None else position.generation))
            return
        if position.number == 0:
            return
        found = await self._source.from_number(position.number)
        if found is None or (found.id == position.number and position.mark not in {"", _mark(found)}):
            newest = await self._source.newest()
            now = _at(newest, position.generation + 1)
            _log.warning(
                "The server's list of events was started again: number %d was heard, and it is at %d. Events until "
                "now are not heard.",
                position.number,
                now.number,
            )
            self._note("hearing", {"began_anew": True, "was": position.number, "now": now.number})
            self._state.set_position(now)

    async def _listen(self) -> None:
        position = self._state.position
        assert position is not None
        async with aclosing(self._source.stream(position.number, self._wanted)) as stream:
            async for batch in stream:
                if not self.connected:
                    self.connected, self._complaint = True, ""
                    _log.info("Events are heard from number %d on.", position.number)
                for start in range(0, len(batch.events), MOST_AT_ONCE):
                    self._take_event(batch.events[start : start + MOST_AT_ONCE])
                    await self._state.writer.settled()
                    await self._wait_while_behind()
                if batch.seen is not None:
                    self._move_to(batch.seen)

    def _take_event(self, events: Sequence[Event]) -> None:
        """Take events, and move on, without a pause in between: so both are in the same commit."""
        for event in events:
            position = self._state.position
            assert position is not None
            if event.id <= position.number:
                continue
            if event.type == GONE:
                self._lost(position.number, event)
            elif event in self._wanted:
                self._take(event)
            self._move_to(event)

    def _move_to(self, event: Event) -> None:
        position = self._state.position
        assert position is not None
        if event.id > position.number:
            # A forgotten event cannot be looked at again, so how it was is not kept.
            self._state.set_position(
                replace(position, number=event.id, mark="" if event.type == GONE else _mark(event))
            )

    def _lost(self, number: int, event: Event) -> None:
        count = event.id - number
        _log.warning("The server has forgotten the events %d to %d, which were not heard.", number + 1, event.id)
        self._note("missed", {"reason": "gone", "cause": f"event:{number + 1}", "count": count})

    async def _wait_while_behind(self) -> None:
        for _ in range(round(CROWDED_S / _LOOK_S)):
            if not self._is_behind():
                return
            await asyncio.sleep(_LOOK_S)

    def _note(self, kind: str, body: dict[str, object]) -> None:
        self._state.note(kind, "events", self._clock(), json.dumps(body))

    def _complain(self, error: Exception) -> None:
        level = logging.INFO if isinstance(error, UnavailableError) else logging.WARNING
        defect = not isinstance(error, ScanflowError)
        words = f"Events cannot be heard: {f'{type(error).__name__}: ' if defect else ''}{error}"
        if words != self._complaint:
            _log.log(logging.ERROR if defect else level, "%s", words, exc_info=error if defect else None)
        self._complaint = words


def _at(event: Event | None, generation: int) -> EventPosition:
    number, mark = (0, "") if event is None else (event.id, _mark(event))
    return EventPosition(number=number, mark=mark, generation=generation)


def _mark(event: Event) -> str:
    """Return by what an event is known again: in another list, another one has its number."""
    return f"{event.at!r} {event.type} {event.app} {event.subject}"
