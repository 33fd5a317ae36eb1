"""Sense, decide, propose: from the moment a sensor is to fire until what its strategies want is on its way.

Everything here happens on the event loop's thread. What one step changes - the state of the sensor, the journal, the
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
from typing import Any, Literal, Protocol

from scanflow.agent.decide import Evaluator
from scanflow.agent.error_text import encodable, error_text
from scanflow.agent.records import Sample
from scanflow.app.agents import Misfire
from scanflow.app.triggers import CallReceive, EventTrigger, Trigger
from scanflow.errors import NotFoundError, UnavailableError, did_you_mean
from scanflow_agents.host import combined_triggers
from scanflow_agents.host.combined_triggers import Path
from scanflow_agents.host.outbox import Delivery
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.store import AgentStore

MOST_HOPS = 8
"""So many samples may lead to each other by their events; the next event of such a chain fires nothing."""

MOST_ATTEMPTS = 3
"""How often a firing is begun that the agent's end cut short: what kills its agent is not to do so for ever."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResult:
    value: Any
    looked: float | None = None
    """Up to when the knowledge base was looked through; None: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSensor:
    name: str
    trigger: Trigger
    run: Callable[[FiringRequest, SensorState], Coroutine[Any, Any, SensorResult]]
    """A firing is over when this is; being cancelled, it may take its time."""

    limit_s: float = 60.0
    """After so long a firing is given up, and the next one refused until it ends."""

    grace_s: float = 60.0
    misfire: Misfire = "run_once"
    most_waiting: int = 1000
    strategies: frozenset[str] = frozenset()
    """Those that decide on its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    deliveries: tuple[Delivery, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    """Strategies whose rule or action failed, and why."""


class Decider(Protocol):
    def decide(self, sample: Sample) -> Decisions:
        """Return what they want. It never raises for what a user wrote; that is told in ``errors``."""
        ...


class Strategies(Evaluator):
    def decide(self, sample: Sample) -> Decisions:
        found = self.evaluate(sample)
        deliveries = [Delivery.of(one.strategy, want, at=sample.at) for one in found for want in one.wants]
        errors = {one.strategy: one.error for one in found if one.error is not None and sample.error is None}
        return Decisions(deliveries=tuple(deliveries), errors=errors)


class Timer(Protocol):
    def __call__(self, delay: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle: ...


class _Runner:
    """One sensor at work: at most one firing at a time, the others in a queue."""

    __slots__ = ("limit", "sensor", "state", "task", "waiting")

    def __init__(self, sensor: HostedSensor) -> None:
        self.sensor, self.state = sensor, SensorState(sensor=sensor.name, trigger=sensor.trigger)
        self.task: asyncio.Task[SensorResult] | None = None
        self.limit: asyncio.TimerHandle | None = None
        self.waiting: deque[FiringRequest] = deque()


class ControlLoop:
    def __init__(
        self,
        agent: str,
        *,
        state: AgentStore,
        sensors: Iterable[HostedSensor],
        decider: Decider,
        send: Callable[[Iterable[Delivery]], None],
        clock: Callable[[], float],
        call_later: Timer,
        sampled: Callable[[Sample, Decisions, int], None] = lambda _sample, _decided, _hops: None,
        app: str = "",
    ) -> None:
        """``sampled`` is told of each sample, and how many samples led to it by their events."""
        self.agent, self.app = agent, app
        self._state = state
        self._decider, self._send, self._sampled = decider, send, sampled
        self._clock, self._call_later = clock, call_later
        self._runners = {sensor.name: _Runner(sensor) for sensor in sensors}
        self.sensor_states = {name: runner.state for name, runner in self._runners.items()}
        self._closing = False
        self._closed = False

    # -- the beginning and the end

    def start(self) -> None:
        """Load the sensors' states: count what fell due meanwhile, and begin again what was cut short."""
        now = self._clock()
        kept = self._state.sensor_states()
        over: set[tuple[str, str]] = set()  # given up here, which is not committed when what waits is read
        for name, runner in self._runners.items():
            runner.state = self.sensor_states[name] = state = kept.get(name, runner.state)
            cut_short, state.in_progress = state.in_progress, None
            self._set_back(state, now)
            state.declare(runner.sensor.trigger, now)
            due = [
                (path, found)
                for path, leaf in state.leaves.items()
                if (found := leaf.catch_up(now, misfire=runner.sensor.misfire)) is not None
            ]
            self._state.changed(state)
            if cut_short is not None and not self._again(runner, cut_short):
                over.add((name, cut_short.cause))
            for path, found in due:
                if state.mark_fired(path):
                    self._offer(runner, state.scheduled(path, found))
        for name, firing in self._state.waiting_calls():
            if name not in self._runners:
                self._state.call_done(name, firing.cause)
                continue
            in_progress = self._runners[name].state.in_progress
            if (name, firing.cause) not in over and (in_progress is None or in_progress.cause != firing.cause):
                self._queue(self._runners[name], firing)

    def _again(self, runner: _Runner, firing: FiringRequest) -> bool:
        """Begin a firing again that was cut short, unless it was too often; say whether that was done."""
        if firing.attempts < MOST_ATTEMPTS:
            self._begin(runner, replace(firing, attempts=firing.attempts + 1))
            return True
        self._missed(runner, firing, "interrupted")
        self._state.call_done(runner.state.sensor, firing.cause)
        return False

    async def stop(self, *, patience_s: float) -> None:
        """Begin nothing more, and give what runs ``patience_s`` to end; what does not is begun again at the start."""
        self._closing = True
        running = [runner.task for runner in self._runners.values() if runner.task is not None]
        if running:
            await asyncio.wait(running, timeout=patience_s)
        self._closed = True
        for runner in self._runners.values():
            if runner.limit is not None:
                runner.limit.cancel()
            if runner.task is not None:
                runner.task.cancel()

    # -- reasons to fire

    def look(self) -> bool:
        """Look whether the clock was ahead and was set back, and go on from now if so; say whether that was."""
        now = self._clock()
        found = [self._set_back(state, now) for state in self.sensor_states.values()]
        return any(found)

    def _set_back(self, state: SensorState, now: float) -> bool:
        seconds = state.set_back(now)
        if seconds:
            self._note("clock", state.sensor, now, {"reason": "clock", "seconds": round(seconds, 3)})
            self._state.changed(state)
        return bool(seconds)

    def seed_of(self, name: str) -> str:
        return f"{self.agent}/{name}"

    def ring(self, leaves: Iterable[tuple[str, Path]], *, late: bool = False) -> None:
        """Look at the clock for these leaves, by sensor: take what is due, count what is missed; all if it is late."""
        if self._closing:
            return
        now = self._clock()
        for name, path in leaves:
            runner = self._runners[name]
            leaf = runner.state.leaves[path]
            before, missed = leaf.accounted, leaf.late
            due = leaf.take(now, late=late, seed=self.seed_of(name))
            if leaf.accounted != before:
                self._state.changed(runner.state)
            if leaf.late != missed:
                self._note("missed", name, now, {"reason": "late", "count": leaf.late - missed})
            if due is not None and runner.state.mark_fired(path):
                self._offer(runner, runner.state.scheduled(path, due))

    def call(self, name: str, firing: FiringRequest, *, anyhow: bool = False) -> str:
        """Take a call; return the id that its sample will have. It counts once the state is settled.

        ``anyhow``: whatever its trigger is, fire it now."""
        runner = self._runner(name)
        called = [
            path for path, leaf in combined_triggers.leaves(runner.state.trigger) if isinstance(leaf, CallReceive)
        ]
        if not called and not anyhow:
            raise NotFoundError(
                f"The sensor {name!r} of the agent {self.agent!r} is not called by others: its trigger is a "
                f"{runner.state.trigger.kind!r}. Give it sf.on_call(), or fire it: POST /sensors/{name}/fire"
            )
        self._admit(runner, firing, called, anyhow=anyhow)
        return sample_id(self.agent, name, firing.cause)

    def event(self, key: str, event: Mapping[str, Any], *, once: bool = False) -> int:
        """Take an event; return how many sensors fire on it. One that was taken before is not taken again.

        A sensor that has no room for it counts it as missed, and the event is refused with ``UnavailableError``, to be
        told again; not so ``once``, where nobody tells it again."""
        self._check_open()
        count, full = 0, None
        for runner in self._runners.values():
            paths = [
                path
                for path, leaf in combined_triggers.leaves(runner.state.trigger)
                if self._fits(leaf, event, runner.sensor)
            ]
            if not paths:
                continue
            firing = FiringRequest(cause=f"event:{key}", at=self._clock(), event=event)
            if _hops(event) >= MOST_HOPS:
                self._missed(runner, firing, "looped")
                continue
            try:
                count += self._admit(runner, firing, paths)
            except UnavailableError as error:
                full = error
        if full is not None and not once:
            raise full
        return count

    def grace_of(self, name: str) -> float:
        return self._runners[name].sensor.grace_s

    def is_behind(self) -> bool:
        """Say whether a sensor has so many firings waiting that it may soon have no room for more."""
        return any(len(runner.waiting) > runner.sensor.most_waiting // 2 for runner in self._runners.values())

    def _fits(self, leaf: Trigger, event: Mapping[str, Any], sensor: HostedSensor) -> bool:
        """Say whether a trigger means an event: one of its own application, unless it names another's, and nothing that
        its own sensor led to, unless it names that."""
        if not isinstance(leaf, EventTrigger) or leaf.type != event.get("type"):
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
            raise UnavailableError(f"The agent {self.agent!r} is being stopped. Try again: it may be started again.")

    def _runner(self, name: str) -> _Runner:
        if name not in self._runners:
            raise NotFoundError(f"The agent {self.agent!r} has no sensor {name!r}.{did_you_mean(name, self._runners)}")
        return self._runners[name]

    def _admit(self, runner: _Runner, firing: FiringRequest, paths: list[Path], *, anyhow: bool = False) -> bool:
        self._check_open()
        if self._state.knows_call(runner.state.sensor, firing.cause):
            return False
        if len(runner.waiting) >= runner.sensor.most_waiting:
            self._missed(runner, firing, "full")
            raise UnavailableError(
                f"{len(runner.waiting)} firings of the sensor {runner.state.sensor!r} wait already. Try again later."
            )
        self._state.add_call(runner.state.sensor, firing)
        fires = runner.state.mark_fired(*paths)
        self._state.changed(runner.state)
        if fires or anyhow:
            self._queue(runner, firing)
        else:
            self._state.call_done(runner.state.sensor, firing.cause)
        return fires or anyhow

    def _queue(self, runner: _Runner, firing: FiringRequest) -> None:
        if runner.task is None:
            self._begin(runner, firing)
        else:
            runner.waiting.append(firing)

    def _offer(self, runner: _Runner, firing: FiringRequest) -> None:
        """Begin what a clock wants, unless the firing before it still runs: that is a miss."""
        if runner.task is None:
            self._begin(runner, firing)
        else:
            self._missed(runner, firing, "running")

    # -- a firing

    def _begin(self, runner: _Runner, firing: FiringRequest) -> None:
        began = self._clock()
        if firing.attempts == 1:
            runner.state.fired += 1
        runner.state.last, runner.state.in_progress = began, firing
        self._state.changed(runner.state)
        task = asyncio.get_running_loop().create_task(runner.sensor.run(firing, runner.state))
        runner.task = task
        runner.limit = self._call_later(runner.sensor.limit_s, self._too_long, runner, began)
        task.add_done_callback(lambda done: self._ended(runner, began, done))

    def _too_long(self, runner: _Runner, began: float) -> None:
        """Give a firing up, and count it. It keeps its sensor busy until it ends."""
        assert runner.task is not None
        runner.limit = None
        runner.state.abandoned += 1
        limit = f"It took longer than its limit of {runner.sensor.limit_s:g} s, and was given up."
        try:
            self._leave(runner, began, None, limit)
        finally:
            runner.task.cancel()

    def _ended(self, runner: _Runner, began: float, task: asyncio.Task[SensorResult]) -> None:
        if self._closed:
            return  # it is begun again at the next start
        try:
            if runner.limit is not None:
                runner.limit.cancel()
                runner.limit = None
                self._take(runner, began, task)
            elif not task.cancelled():
                task.exception()  # it ended after it was given up, and nobody wants to know how
        finally:  # a defect here is told by the loop, and must not keep what waits from its turn
            runner.task = None
            if runner.waiting and not self._closing:
                self._begin(runner, runner.waiting.popleft())

    def _take(self, runner: _Runner, began: float, task: asyncio.Task[SensorResult]) -> None:
        if task.cancelled():
            self._leave(runner, began, None, "It was cancelled by its own code.")
        elif (error := task.exception()) is not None:
            self._leave(runner, began, None, error_text(error))
        else:
            found = task.result()
            runner.state.looked = runner.state.looked if found.looked is None else found.looked
            self._leave(runner, began, found.value, None)

    def _leave(self, runner: _Runner, began: float, value: Any, error: str | None) -> None:
        """Leave what a firing leaves: its sample, and what the strategies make of it."""
        firing = runner.state.in_progress
        assert firing is not None
        now = self._clock()
        sample, text = self._sample(runner.state.sensor, firing, now, value, error, max(0.0, now - began))
        runner.state.in_progress = None
        runner.state.errors += sample.error is not None
        self._state.note("sample", runner.state.sensor, now, text)
        decided = self._decided(sample)
        wrong = "; ".join(f"strategy {strategy!r}: {why}" for strategy, why in decided.errors.items())
        runner.state.ended(sample.error or wrong or None, now)
        for strategy, why in decided.errors.items():
            self._note("error", strategy, now, {"strategy": strategy, "sample": sample.id, "error": why})
        for delivery in decided.deliveries:
            self._state.note(delivery.kind, delivery.queue, now, delivery.body)
        self._send(decided.deliveries)
        self._state.call_done(runner.state.sensor, firing.cause)
        self._state.changed(runner.state)
        self._sampled(sample, decided, 0 if firing.event is None else _hops(firing.event))

    def _sample(
        self, name: str, firing: FiringRequest, now: float, value: Any, error: str | None, seconds: float
    ) -> tuple[Sample, str]:
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
            why = encodable(f"What it returned cannot be written as JSON: {wrong}")
            sample = Sample(**fields, value=None, error=why)
            return sample, sample.model_dump_json()

    def _decided(self, sample: Sample) -> Decisions:
        try:
            decided = self._decider.decide(sample)
        except Exception as error:  # noqa: BLE001 - the edge of the loop: one sample's rules must not end the agent
            _log.exception("strategies failed on a sample of %r", sample.sensor)
            return Decisions(errors={"": error_text(error)})
        return replace(decided, errors={strategy: encodable(why) for strategy, why in decided.errors.items()})

    # -- the journal

    def _missed(
        self, runner: _Runner, firing: FiringRequest, reason: Literal["interrupted", "looped", "full", "running"]
    ) -> None:
        """Count a firing that is not made, and say why in the journal."""
        setattr(runner.state, reason, getattr(runner.state, reason) + 1)
        self._note("missed", runner.state.sensor, self._clock(), {"reason": reason, "cause": firing.cause, "count": 1})
        self._state.changed(runner.state)

    def _note(self, kind: str, subject: str, at: float, body: Mapping[str, Any]) -> None:
        self._state.note(kind, subject, at, json.dumps(body))


def sample_id(agent: str, sensor: str, cause: str) -> str:
    return hashlib.sha256(f"{agent}/{sensor}/{cause}".encode()).hexdigest()[:20]


def _hops(event: Mapping[str, Any]) -> int:
    """Return how many samples led to an event by their own, as far as it says."""
    hops = (event.get("data") or {}).get("hops") if event.get("type") == "sample" else None
    return hops if isinstance(hops, int) else 0
