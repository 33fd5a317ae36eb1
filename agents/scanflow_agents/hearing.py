"""What the server tells of what happened, heard from where the agent stopped to listen: each event once.

How far it has heard is kept together with the firings that the events led to, in one commit: after a kill it goes on
with the first event that left nothing. The first time it begins with what comes next; the past is not told again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from scanflow.agent.records import Event
from scanflow.app.triggers import Event as OnEvent
from scanflow.errors import ScanflowError, UnavailableError
from scanflow_agents.state import AgentState, Heard

__all__ = ["Hearing", "Source", "Told", "Wanted"]

MOST_AT_ONCE = 100
"""So many events are taken in one commit; more of a backlog is read only after it."""

CROWDED_S = 5.0
"""How long a backlog waits for sensors that cannot follow; after that, what they have no room for counts as missed."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
_LOOK_S = 0.05
_MOST_TYPES = 50
"""More types than the server's filter takes are all heard, and those not wanted left aside here."""

GONE = "events.gone"
"""The server tells by it that it has forgotten events that were not heard."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events may fire a sensor."""

    kinds: frozenset[tuple[str, str]]
    """The application and the type of each."""

    @classmethod
    def of(cls, triggers: Iterable[OnEvent], app: str) -> Wanted:
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
class Told:
    """What came together."""

    events: Sequence[Event] = ()
    seen: Event | None = None
    """The newest event of all; up to it, only what was told is wanted."""


class Source(Protocol):
    """Who tells of events. All methods raise ``UnavailableError`` where nobody answers."""

    async def newest(self) -> Event | None:
        """Return the newest event; None where there is none yet."""
        ...

    async def from_number(self, number: int) -> Event | None:
        """Return the first event of this number or a later one."""
        ...

    def stream(self, after: int, wanted: Wanted) -> AsyncGenerator[Told, None]:
        """Yield what came after an event, and what comes; first of all, and now and then, nothing."""
        ...


class Hearing:
    """Listens for one agent, as a task on the event loop."""

    def __init__(
        self,
        source: Source,
        wanted: Wanted,
        *,
        state: AgentState,
        take: Callable[[Event], object],
        crowded: Callable[[], bool],
        clock: Callable[[], float],
        chance: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Hear what is ``wanted`` from where ``state`` says.

        Args:
            source: Who tells.
            wanted: Of what it is to tell.
            state: Where it is kept how far was heard.
            take: Takes an event, and changes the same state by what follows from it, at once.
            crowded: Says whether sensors have fallen behind so far that it is better to wait.
            clock: Seconds since the epoch.
            chance: Returns a number from 0 to 1, to spread tries.
            pause: Waits so many seconds. None: unless :meth:`hurry` is called meanwhile.
        """
        self._source, self._wanted, self._state = source, wanted, state
        self._take, self._crowded = take, crowded
        self._clock, self._chance, self._pause = clock, chance, pause or self._wait
        self._hurried = asyncio.Event()
        self._complaint = ""
        self.connected = False
        """Whether it listens at this moment."""

    async def run(self) -> None:
        """Listen until this is cancelled, to a source that may come and go."""
        pause_s = FIRST_PAUSE_S
        while True:
            before = self._state.heard
            try:
                await self._meet()
                await self._listen()
                self._complain(logging.INFO, "The server has ended its stream of events.")
            except UnavailableError as error:
                self._complain(logging.INFO, f"Events are not heard: {error}")
            except ScanflowError as error:
                self._complain(logging.WARNING, f"The server does not want to tell of events: {error}")
            except Exception as error:  # noqa: BLE001 - the edge of a loop that has to go on: nothing is lost meanwhile
                self._complain(logging.ERROR, f"Events cannot be heard: {type(error).__name__}: {error}", exc_info=True)
            finally:
                self.connected = False
            if self._state.heard != before:
                pause_s = FIRST_PAUSE_S
            await self._pause(pause_s * (0.5 + self._chance()))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def hurry(self) -> None:
        """Try again now: the server is there."""
        self._hurried.set()

    async def _meet(self) -> None:
        """Find out from where to listen: begin, or make sure that the server is the one that was heard."""
        heard = self._state.heard
        if heard is None or not heard.listens:
            newest = await self._source.newest()
            self._keep(_at(newest, 0 if heard is None else heard.generation))
            return
        if heard.number == 0:
            return
        found = await self._source.from_number(heard.number)
        if found is None or (found.id == heard.number and heard.mark not in {"", _mark(found)}):
            newest = await self._source.newest()
            now = _at(newest, heard.generation + 1)
            _log.warning(
                "The server's list of events was begun anew: number %d was heard, and it is at %d. What it lists until "
                "now is not heard.",
                heard.number,
                now.number,
            )
            self._note("hearing", {"began_anew": True, "was": heard.number, "now": now.number})
            self._keep(now)

    async def _listen(self) -> None:
        heard = self._state.heard
        assert heard is not None
        async with aclosing(self._source.stream(heard.number, self._wanted)) as stream:
            async for told in stream:
                if not self.connected:
                    self.connected, self._complaint = True, ""
                    _log.info("Events are heard from number %d on.", heard.number)
                for start in range(0, len(told.events), MOST_AT_ONCE):
                    self._hear(told.events[start : start + MOST_AT_ONCE])
                    await self._state.writer.settled()
                    await self._room()
                if told.seen is not None:
                    self._move_to(told.seen)

    def _hear(self, events: Sequence[Event]) -> None:
        """Take events, and move on, without a pause in between: so both are in the same commit."""
        for event in events:
            heard = self._state.heard
            assert heard is not None
            if event.id <= heard.number:
                continue
            if event.type == GONE:
                self._lost(heard.number, event)
            elif event in self._wanted:
                self._take(event)
            self._move_to(event)

    def _move_to(self, event: Event) -> None:
        heard = self._state.heard
        assert heard is not None
        if event.id > heard.number:
            # A forgotten event cannot be looked at again, so how it was is not kept.
            self._keep(replace(heard, number=event.id, mark="" if event.type == GONE else _mark(event)))

    def _keep(self, heard: Heard) -> None:
        self._state.hear(heard)

    def _lost(self, number: int, event: Event) -> None:
        count = event.id - number
        _log.warning("The server has forgotten the events %d to %d, which were not heard.", number + 1, event.id)
        self._note("missed", {"reason": "gone", "cause": f"event:{number + 1}", "count": count})

    async def _room(self) -> None:
        for _ in range(round(CROWDED_S / _LOOK_S)):
            if not self._crowded():
                return
            await asyncio.sleep(_LOOK_S)

    def _note(self, kind: str, body: dict[str, object]) -> None:
        self._state.note(kind, "events", self._clock(), json.dumps(body))

    def _complain(self, level: int, words: str, *, exc_info: bool = False) -> None:
        """Say what is wrong, once as long as it is the same."""
        if words != self._complaint:
            _log.log(level, "%s", words, exc_info=exc_info)
        self._complaint = words

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._hurried.wait(), seconds)
        except TimeoutError:
            return
        finally:
            self._hurried.clear()


def _at(event: Event | None, generation: int) -> Heard:
    number, mark = (0, "") if event is None else (event.id, _mark(event))
    return Heard(number=number, mark=mark, generation=generation)


def _mark(event: Event) -> str:
    """Return by what an event is known again: in another list, another one has its number."""
    return f"{event.at!r} {event.type} {event.app} {event.subject}"
