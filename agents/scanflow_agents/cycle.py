"""Sense, decide, propose: from the moment a sensor is to fire until what its strategies want is on its way.

Everything here happens on the event loop's thread. What one step changes - the account of the sensor, the journal, the
outbox - is changed without a pause in between, so it is committed together: a firing either left all of its traces or
is begun again after a restart, under the same cause, from which the same keys follow.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from scanflow.agent.records import Sample
from scanflow.agent.wording import error_words, writable
from scanflow.app.triggers import CallReceive, Event, Trigger
from scanflow.errors import NotFoundError, UnavailableError, did_you_mean
from scanflow_agents import combining
from scanflow_agents.combining import Path
from scanflow_agents.ledger import Firing, Ledger, Misfire
from scanflow_agents.outbox import Letter
from scanflow_agents.state import AgentState

__all__ = ["Cycle", "Decided", "Decider", "Found", "HostedSensor", "Timer", "sample_id"]

MOST_HOPS = 8
"""So many samples may lead to each other by their events; the next event of such a chain fires nothing."""

MOST_ATTEMPTS = 3
"""How often a firing is begun that the agent's end cut short: what kills its agent is not to do so for ever."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a firing found."""

    value: Any
    """What JSON can hold."""

    looked: float | None = None
    """Up to when the knowledge base was looked through; None: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSensor:
    """A sensor as the host runs it."""

    name: str
    trigger: Trigger
    run: Callable[[Firing, Ledger], Coroutine[Any, Any, Found]]
    """A firing is over when this is; being cancelled, it may take its time."""

    limit_s: float = 60.0
    """After so long a firing is given up, and the next one refused until it ends."""

    grace_s: float = 60.0
    """How late a firing may begin; later it counts as missed."""

    misfire: Misfire = "run_once"
    most_waiting: int = 1000
    """How many calls and events may wait while it runs."""

    strategies: frozenset[str] = frozenset()
    """Those that decide on its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What strategies make of a sample."""

    letters: tuple[Letter, ...] = ()
    """In the order in which they were wanted."""

    errors: Mapping[str, str] = field(default_factory=dict)
    """Strategies whose rule or action failed, and why."""


class Decider(Protocol):
    """The strategies of an agent."""

    def decide(self, sample: Sample) -> Decided:
        """Return what they want. It never raises for what a user wrote; that is told in ``errors``."""
        ...


class Timer(Protocol):
    """What :meth:`asyncio.loop.call_later` is."""

    def __call__(self, delay: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle: ...


class _Seat:
    """One sensor at work: at most one firing at a time, the others in a queue."""

    __slots__ = ("limit", "sensor", "task", "waiting")

    def __init__(self, sensor: HostedSensor) -> None:
        self.sensor = sensor
        self.task: asyncio.Task[Found] | None = None
        self.limit: asyncio.TimerHandle | None = None
        self.waiting: deque[Firing] = deque()


class Cycle:
    """The agent's cycle over its sensors."""

    def __init__(
        self,
        agent: str,
        *,
        state: AgentState,
        sensors: Iterable[HostedSensor],
        decider: Decider,
        send: Callable[[Iterable[Letter]], None],
        clock: Callable[[], float],
        call_later: Timer,
        sampled: Callable[[Sample, Decided, int], None] = lambda _sample, _decided, _hops: None,
        app: str = "",
    ) -> None:
        """Hold the sensors of an agent of ``app``.

        ``send`` takes what is to be delivered; ``sampled`` is told of each sample, to spread the word, and how many
        samples led to it by their events.
        """
        self.agent, self.app = agent, app
        self._state = state
        self._decider, self._send, self._sampled = decider, send, sampled
        self._clock, self._call_later = clock, call_later
        self._seats = {sensor.name: _Seat(sensor) for sensor in sensors}
        self.ledgers: dict[str, Ledger] = {}
        self._closing = False
        self._closed = False

    # -- the beginning and the end

    def start(self) -> None:
        """Take up the accounts: count what fell due meanwhile, and begin again what was cut short."""
        now = self._clock()
        kept = self._state.ledgers()
        over: set[tuple[str, str]] = set()  # given up here, which is not committed when what waits is read
        for name, seat in self._seats.items():
            ledger = kept.get(name) or Ledger(sensor=name, trigger=seat.sensor.trigger)
            self.ledgers[name] = ledger
            cut_short, ledger.flight = ledger.flight, None
            self._set_back(ledger, now)
            ledger.declare(seat.sensor.trigger, now)
            due = [
                (path, found)
                for path, leaf in ledger.leaves.items()
                if (found := leaf.catch_up(now, misfire=seat.sensor.misfire)) is not None
            ]
            self._state.changed(ledger)
            if cut_short is not None and not self._again(seat, ledger, cut_short):
                over.add((name, cut_short.cause))
            for path, found in due:
                if ledger.pulse(path):
                    self._offer(seat, ledger, ledger.scheduled(path, found))
        for name, firing in self._state.waiting_calls():
            if name not in self._seats:
                self._state.call_done(name, firing.cause)
                continue
            flight = self.ledgers[name].flight
            if (name, firing.cause) not in over and (flight is None or flight.cause != firing.cause):
                self._queue(self._seats[name], self.ledgers[name], firing)

    def _again(self, seat: _Seat, ledger: Ledger, firing: Firing) -> bool:
        """Begin a firing again that was cut short, unless it was too often; say whether that was done."""
        if firing.attempts < MOST_ATTEMPTS:
            self._begin(seat, ledger, replace(firing, attempts=firing.attempts + 1))
            return True
        ledger.interrupted += 1
        self._missed(ledger, firing, "interrupted")
        self._state.call_done(ledger.sensor, firing.cause)
        return False

    async def stop(self, *, patience_s: float) -> None:
        """Begin nothing more, and give what runs ``patience_s`` to end; what does not is begun again at the start."""
        self._closing = True
        running = [seat.task for seat in self._seats.values() if seat.task is not None]
        if running:
            await asyncio.wait(running, timeout=patience_s)
        self._closed = True
        for seat in self._seats.values():
            if seat.limit is not None:
                seat.limit.cancel()
            if seat.task is not None:
                seat.task.cancel()

    # -- reasons to fire

    def look(self) -> bool:
        """Look whether the clock was ahead and was set back, and go on from now if so; say whether that was."""
        now = self._clock()
        found = [self._set_back(ledger, now) for ledger in self.ledgers.values()]
        return any(found)

    def _set_back(self, ledger: Ledger, now: float) -> bool:
        seconds = ledger.set_back(now)
        if seconds:
            self._note("clock", ledger.sensor, now, {"reason": "clock", "seconds": round(seconds, 3)})
            self._state.changed(ledger)
        return bool(seconds)

    def ring(self, leaves: Iterable[tuple[str, Path]]) -> None:
        """Look at the clock for these leaves, by sensor: take what is due, count what is missed."""
        if self._closing:
            return
        now = self._clock()
        for name, path in leaves:
            seat, ledger = self._seats[name], self.ledgers[name]
            leaf = ledger.leaves[path]
            before, late = leaf.accounted, leaf.late
            due = leaf.take(now, grace_s=seat.sensor.grace_s, seed=f"{self.agent}/{name}")
            if leaf.accounted != before:
                self._state.changed(ledger)
            if leaf.late != late:
                self._note("missed", name, now, {"reason": "late", "count": leaf.late - late})
            if due is not None and ledger.pulse(path):
                self._offer(seat, ledger, ledger.scheduled(path, due))

    def call(self, name: str, firing: Firing, *, anyhow: bool = False) -> str:
        """Take a call; return the id that its sample will have. It counts once the state is settled.

        ``anyhow``: whatever its trigger is, fire it now.

        Raises:
            NotFoundError: there is no such sensor, or it is not to be called.
            UnavailableError: too many calls wait.
        """
        seat, ledger = self._seat(name)
        called = [path for path, leaf in combining.leaves(ledger.trigger) if isinstance(leaf, CallReceive)]
        if not called and not anyhow:
            raise NotFoundError(
                f"The sensor {name!r} of the agent {self.agent!r} is not called by others: its trigger is a "
                f"{ledger.trigger.kind!r}. Give it sf.on_call(), or fire it: POST /sensors/{name}/fire"
            )
        self._admit(seat, ledger, firing, called, anyhow=anyhow)
        return sample_id(self.agent, name, firing.cause)

    def event(self, key: str, event: Mapping[str, Any], *, once: bool = False) -> int:
        """Take an event; return how many sensors fire on it. One that was taken before is not taken again.

        ``once``: nobody tells it again, so what a sensor has no room for is counted, and that is all.

        Raises:
            UnavailableError: a sensor has no room for it; the others have taken it.
        """
        self._check_open()
        count, full = 0, None
        for name, seat in self._seats.items():
            ledger = self.ledgers[name]
            paths = [path for path, leaf in combining.leaves(ledger.trigger) if self._fits(leaf, event, seat.sensor)]
            if not paths:
                continue
            firing = Firing(cause=f"event:{key}", at=self._clock(), event=event)
            if _hops(event) >= MOST_HOPS:
                ledger.looped += 1
                self._missed(ledger, firing, "looped")
                self._state.changed(ledger)
                continue
            try:
                count += self._admit(seat, ledger, firing, paths)
            except UnavailableError as error:
                full = error
        if full is not None and not once:
            raise full
        return count

    def crowded(self) -> bool:
        """Say whether a sensor has so many firings waiting that it may soon have no room for more."""
        return any(len(seat.waiting) > seat.sensor.most_waiting // 2 for seat in self._seats.values())

    def _fits(self, leaf: Trigger, event: Mapping[str, Any], sensor: HostedSensor) -> bool:
        """Say whether a trigger means an event: one of its own application, unless it names another's, and nothing that
        its own sensor led to, unless it names that."""
        if not isinstance(leaf, Event) or leaf.type != event.get("type"):
            return False
        if "app" not in leaf.match and event.get("app") != self.app:
            return False
        data = event.get("data") or {}
        if not all(data.get(name, event.get(name)) == value for name, value in leaf.match.items()):
            return False
        if event.get("app") != self.app:
            return True
        if leaf.type == "sample":
            mine = event.get("subject") == f"agent/{self.agent}" and data.get("sensor") == sensor.name
            return not mine or "sensor" in leaf.match
        if leaf.type == "intent" or leaf.type.startswith("action."):
            mine = data.get("agent") == self.agent and data.get("strategy") in {sensor.name, *sensor.strategies}
            return not mine or "strategy" in leaf.match
        return True

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError(f"The agent {self.agent!r} is being stopped. Try again: it may be started anew.")

    def _seat(self, name: str) -> tuple[_Seat, Ledger]:
        if name not in self._seats:
            raise NotFoundError(f"The agent {self.agent!r} has no sensor {name!r}.{did_you_mean(name, self._seats)}")
        return self._seats[name], self.ledgers[name]

    def _admit(self, seat: _Seat, ledger: Ledger, firing: Firing, paths: list[Path], *, anyhow: bool = False) -> bool:
        self._check_open()
        if self._state.knows_call(ledger.sensor, firing.cause):
            return False
        if len(seat.waiting) >= seat.sensor.most_waiting:
            ledger.full += 1
            self._missed(ledger, firing, "full")
            self._state.changed(ledger)
            raise UnavailableError(
                f"{len(seat.waiting)} firings of the sensor {ledger.sensor!r} wait already. Try again later."
            )
        self._state.add_call(ledger.sensor, firing)
        fires = ledger.pulse(*paths)
        self._state.changed(ledger)
        if fires or anyhow:
            self._queue(seat, ledger, firing)
        else:
            self._state.call_done(ledger.sensor, firing.cause)
        return fires or anyhow

    def _queue(self, seat: _Seat, ledger: Ledger, firing: Firing) -> None:
        if seat.task is None:
            self._begin(seat, ledger, firing)
        else:
            seat.waiting.append(firing)

    def _offer(self, seat: _Seat, ledger: Ledger, firing: Firing) -> None:
        """Begin what a clock wants, unless the firing before it still runs: that is a miss."""
        if seat.task is None:
            self._begin(seat, ledger, firing)
        else:
            ledger.running += 1
            self._missed(ledger, firing, "running")
            self._state.changed(ledger)

    # -- a firing

    def _begin(self, seat: _Seat, ledger: Ledger, firing: Firing) -> None:
        began = self._clock()
        if firing.attempts == 1:
            ledger.fired += 1
        ledger.last, ledger.flight = began, firing
        self._state.changed(ledger)
        task = asyncio.get_running_loop().create_task(seat.sensor.run(firing, ledger))
        seat.task = task
        seat.limit = self._call_later(seat.sensor.limit_s, self._too_long, seat, ledger, began)
        task.add_done_callback(lambda done: self._ended(seat, ledger, began, done))

    def _too_long(self, seat: _Seat, ledger: Ledger, began: float) -> None:
        """Give a firing up, and count it. Its seat stays taken until it ends."""
        assert seat.task is not None
        seat.limit = None
        ledger.abandoned += 1
        limit = f"It took longer than its limit of {seat.sensor.limit_s:g} s, and was given up."
        try:
            self._leave(ledger, began, None, limit)
        finally:
            seat.task.cancel()

    def _ended(self, seat: _Seat, ledger: Ledger, began: float, task: asyncio.Task[Found]) -> None:
        if self._closed:
            return  # it is begun again at the next start
        try:
            if seat.limit is not None:
                seat.limit.cancel()
                seat.limit = None
                self._take(ledger, began, task)
            elif not task.cancelled():
                task.exception()  # it ended after it was given up, and nobody wants to know how
        finally:  # a defect here is told by the loop, and must not keep what waits from its turn
            seat.task = None
            if seat.waiting and not self._closing:
                self._begin(seat, ledger, seat.waiting.popleft())

    def _take(self, ledger: Ledger, began: float, task: asyncio.Task[Found]) -> None:
        """Leave what a firing came to."""
        if task.cancelled():
            self._leave(ledger, began, None, "It was cancelled by its own code.")
        elif (error := task.exception()) is not None:
            self._leave(ledger, began, None, error_words(error))
        else:
            found = task.result()
            ledger.looked = ledger.looked if found.looked is None else found.looked
            self._leave(ledger, began, found.value, None)

    def _leave(self, ledger: Ledger, began: float, value: Any, error: str | None) -> None:
        """Leave what a firing leaves: its sample, and what the strategies make of it."""
        firing = ledger.flight
        assert firing is not None
        now = self._clock()
        sample, text = self._sample(ledger.sensor, firing, now, value, error, max(0.0, now - began))
        ledger.flight = None
        ledger.errors += sample.error is not None
        self._note_text("sample", ledger.sensor, now, text)
        decided = self._decided(sample)
        wrong = "; ".join(f"strategy {strategy!r}: {why}" for strategy, why in decided.errors.items())
        ledger.fared(sample.error or wrong or None, now)
        for strategy, why in decided.errors.items():
            self._note("error", strategy, now, {"strategy": strategy, "sample": sample.id, "error": why})
        for letter in decided.letters:
            self._note_text(letter.kind, letter.lane, now, letter.body)
        self._send(decided.letters)
        self._state.call_done(ledger.sensor, firing.cause)
        self._state.changed(ledger)
        self._sampled(sample, decided, 0 if firing.event is None else _hops(firing.event))

    def _sample(
        self, name: str, firing: Firing, now: float, value: Any, error: str | None, seconds: float
    ) -> tuple[Sample, str]:
        """Return a sample, and as it is written down."""
        fields: dict[str, Any] = {
            "id": sample_id(self.agent, name, firing.cause),
            "agent": self.agent,
            "sensor": name,
            "at": now,
            "cause": firing.cause,
            "seconds": seconds,
        }
        try:
            sample = Sample(**fields, value=value, error=error)
            return sample, sample.model_dump_json()
        except ValueError as wrong:  # one that has half a character is made, and cannot be written
            why = writable(f"What it returned cannot be written as JSON: {wrong}")
            sample = Sample(**fields, value=None, error=why)
            return sample, sample.model_dump_json()

    def _decided(self, sample: Sample) -> Decided:
        try:
            decided = self._decider.decide(sample)
        except Exception as error:  # noqa: BLE001 - the edge of the loop: one sample's rules must not end the agent
            _log.exception("strategies failed on a sample of %r", sample.sensor)
            return Decided(errors={"": error_words(error)})
        return replace(decided, errors={strategy: writable(why) for strategy, why in decided.errors.items()})

    # -- the journal

    def _missed(self, ledger: Ledger, firing: Firing, reason: str) -> None:
        self._note("missed", ledger.sensor, self._clock(), {"reason": reason, "cause": firing.cause, "count": 1})

    def _note(self, kind: str, subject: str, at: float, body: Mapping[str, Any]) -> None:
        self._note_text(kind, subject, at, json.dumps(body))

    def _note_text(self, kind: str, subject: str, at: float, body: str) -> None:
        self._state.note(kind, subject, at, body)


def sample_id(agent: str, sensor: str, cause: str) -> str:
    """Return the id of the sample that a firing leaves: the same for the same cause."""
    return hashlib.sha256(f"{agent}/{sensor}/{cause}".encode()).hexdigest()[:20]


def _hops(event: Mapping[str, Any]) -> int:
    """Return how many samples led to an event by their own, as far as it says."""
    hops = (event.get("data") or {}).get("hops") if event.get("type") == "sample" else None
    return hops if isinstance(hops, int) else 0
