"""Sense, decide, propose: from the firing of a sensor to the deliveries of its strategies.

Everything here runs on the event loop's thread. The changes of one step - the sensor's state, the journal, the outbox -
are made without an await in between, so that they are committed together: a firing is either recorded completely, or
repeated after a restart with the same cause, and so with the same keys.
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

from scanflow.agent.agent_records import Sample
from scanflow.agent.error_text import escape_surrogates, format_error
from scanflow.app.agent import Misfire
from scanflow.app.triggers import CallReceive, EventTrigger, Trigger
from scanflow.errors import NotFoundError, UnavailableError, did_you_mean
from scanflow.text.masking import Masker
from scanflow_agents.host import combined_triggers
from scanflow_agents.host.agent_state import AgentStore
from scanflow_agents.host.call_limits import Withheld
from scanflow_agents.host.combined_triggers import Path
from scanflow_agents.host.outbox import Delivery
from scanflow_agents.host.sensor_state import FiringRequest, SensorState

MAX_HOPS = 8
"""The longest chain of samples that trigger each other by their events; the next event of the chain fires nothing."""

MAX_ATTEMPTS = 3
"""The most attempts of a firing that the agent's end interrupts, so that a firing that kills its agent is not repeated
forever."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResult:
    value: Any
    looked: float | None = None
    """The time up to which the knowledge base was searched; None: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSensor:
    name: str
    trigger: Trigger
    run: Callable[[FiringRequest, SensorState], Coroutine[Any, Any, SensorResult]]
    """Runs one firing; cancellation may take time."""

    limit_s: float = 60.0
    """The timeout of a firing; until it ends, the next one is refused."""

    grace_s: float = 60.0
    """How late a firing may start; a later one counts as missed."""

    misfire: Misfire = "run_once"
    """What to do about firings due while the agent was down: fire once for all of them, or only count them."""

    most_waiting: int = 1000
    strategies: frozenset[str] = frozenset()
    """The strategies that are evaluated on its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    deliveries: tuple[Delivery, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    """The errors of rules and actions, by strategy."""

    withheld: tuple[Withheld, ...] = ()
    """What the strategies' limits did not let through."""

    notes: tuple[tuple[str, str, str], ...] | None = None
    """The journal's entries on what was requested, in order, as (kind, strategy, JSON). None: those of the
    deliveries."""


class Decider(Protocol):
    def decide(self, sample: Sample) -> Decisions:
        """Evaluate the strategies on a sample. Never raises for errors in users' code; those are in ``errors``."""
        ...


class Timer(Protocol):
    def __call__(self, delay: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle: ...


class _Runner:
    """Runs one sensor: at most one firing at a time, the others in a queue."""

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
        app: str,
        state: AgentStore,
        sensors: Iterable[HostedSensor],
        decider: Decider,
        send: Callable[[Iterable[Delivery]], None],
        clock: Callable[[], float],
        call_later: Timer,
        on_sample: Callable[[Sample, Decisions, int], None],
        masker: Masker | None = None,
    ) -> None:
        """``on_sample`` gets each sample, its decisions, and the number of samples that led to it by their events.
        ``masker`` masks the agent's secrets in samples and errors."""
        self._masker = masker or Masker()
        self.agent, self.app = agent, app
        self._state = state
        self._decider, self._send, self._on_sample = decider, send, on_sample
        self._clock, self._call_later = clock, call_later
        self._runners = {sensor.name: _Runner(sensor) for sensor in sensors}
        self.sensor_states = {name: runner.state for name, runner in self._runners.items()}
        self._closing = False
        self._closed = False

    # -- the beginning and the end

    def start(self) -> None:
        """Load the sensors' states, count the firings that were due meanwhile, and retry interrupted ones."""
        now = self._clock()
        stored_states = self._state.load_sensor_states()
        abandoned: set[tuple[str, str]] = set()  # not yet committed when the waiting calls are read
        for name, runner in self._runners.items():
            runner.state = self.sensor_states[name] = state = stored_states.get(name, runner.state)
            cut_short, state.in_progress = state.in_progress, None
            self._rewind(state, now)
            state.declare(runner.sensor.trigger, now)
            due = [
                (path, due_time)
                for path, leaf in state.leaves.items()
                if (due_time := leaf.catch_up(now, misfire=runner.sensor.misfire)) is not None
            ]
            self._state.mark_changed(state)
            if cut_short is not None and not self._retry(runner, cut_short):
                abandoned.add((name, cut_short.cause))
            for path, due_time in due:
                if state.mark_fired(path):
                    self._offer(runner, state.build_firing(path, due_time))
        for name, firing in self._state.load_waiting_calls():
            if name not in self._runners:
                self._state.complete_call(name, firing.cause)
                continue
            in_progress = self._runners[name].state.in_progress
            if (name, firing.cause) not in abandoned and (in_progress is None or in_progress.cause != firing.cause):
                self._queue(self._runners[name], firing)

    def _retry(self, runner: _Runner, firing: FiringRequest) -> bool:
        """Retry an interrupted firing, unless it had too many attempts; return whether it is retried."""
        if firing.attempts < MAX_ATTEMPTS:
            self._begin(runner, replace(firing, attempts=firing.attempts + 1))
            return True
        self._record_missed(runner, firing, "interrupted")
        self._state.complete_call(runner.state.sensor, firing.cause)
        return False

    async def stop(self, *, patience_s: float) -> None:
        """Start no more firings, and wait ``patience_s`` for running ones; the others are retried at the next start."""
        self._closing = True
        running = [runner.task for runner in self._runners.values() if runner.task is not None]
        if running:
            await asyncio.wait(running, timeout=patience_s)
        self.close()

    def close(self) -> None:
        """End at once: what runs is cancelled, and retried at the next start."""
        self._closed = True
        for runner in self._runners.values():
            if runner.limit is not None:
                runner.limit.cancel()
            if runner.task is not None:
                runner.task.cancel()

    # -- reasons to fire

    def check_clock(self) -> bool:
        """Return whether the clock was ahead and was set back; if so, continue from now."""
        now = self._clock()
        rewound = [self._rewind(state, now) for state in self.sensor_states.values()]
        return any(rewound)

    def _rewind(self, state: SensorState, now: float) -> bool:
        seconds = state.rewind(now)
        if seconds:
            self._note("clock", state.sensor, now, {"reason": "clock", "seconds": round(seconds, 3)})
            self._state.mark_changed(state)
        return bool(seconds)

    def get_seed(self, name: str) -> str:
        return f"{self.agent}/{name}"

    def ring(self, leaves: Iterable[tuple[str, Path]], *, late: bool = False) -> None:
        """Take the due firings of these leaves and count missed ones; if ``late``, count all of them as missed."""
        if self._closing:
            return
        now = self._clock()
        for name, path in leaves:
            runner = self._runners[name]
            leaf = runner.state.leaves[path]
            before, missed = leaf.accounted, leaf.late
            due = leaf.take(now, late=late, seed=self.get_seed(name))
            if leaf.accounted != before:
                self._state.mark_changed(runner.state)
            if leaf.late != missed:
                self._note("missed", name, now, {"reason": "late", "count": leaf.late - missed})
            if due is not None and runner.state.mark_fired(path):
                self._offer(runner, runner.state.build_firing(path, due))

    def call(self, name: str, firing: FiringRequest, *, anyhow: bool = False) -> str:
        """Accept a call, and return the id of its future sample. It is durable once the state is flushed.

        ``anyhow``: fire it now, whatever its trigger is."""
        runner = self._get_runner(name)
        call_paths = [
            path
            for path, leaf in combined_triggers.iterate_leaves(runner.state.trigger)
            if isinstance(leaf, CallReceive)
        ]
        if not call_paths and not anyhow:
            raise NotFoundError(
                f"The sensor {name!r} of the agent {self.agent!r} cannot be called: its trigger is a "
                f"{runner.state.trigger.kind!r}. Give it sf.on_call(), or fire it: POST /sensors/{name}/fire"
            )
        self._admit(runner, firing, call_paths, anyhow=anyhow)
        return build_sample_id(self.agent, name, firing.cause)

    def receive_event(self, key: str, event: Mapping[str, Any], *, once: bool = False) -> int:
        """Accept an event, once, and return how many sensors fire on it.

        A sensor whose queue is full counts it as missed, and ``UnavailableError`` is raised so that the event is sent
        again; not with ``once``, where it is not sent again."""
        self._check_open()
        count, full = 0, None
        for runner in self._runners.values():
            paths = [
                path
                for path, leaf in combined_triggers.iterate_leaves(runner.state.trigger)
                if self._matches(leaf, event, runner.sensor)
            ]
            if not paths:
                continue
            firing = FiringRequest(cause=f"event:{key}", at=self._clock(), event=event)
            if _count_hops(event) >= MAX_HOPS:
                self._record_missed(runner, firing, "looped")
                continue
            try:
                count += self._admit(runner, firing, paths)
            except UnavailableError as error:
                full = error
        if full is not None and not once:
            raise full
        return count

    def get_grace_s(self, name: str) -> float:
        return self._runners[name].sensor.grace_s

    def is_behind(self) -> bool:
        """Return whether a sensor's queue is more than half full."""
        return any(len(runner.waiting) > runner.sensor.most_waiting // 2 for runner in self._runners.values())

    def _matches(self, leaf: Trigger, event: Mapping[str, Any], sensor: HostedSensor) -> bool:
        """Return whether a trigger matches an event: one of its own application, unless it names another, and none that
        its own sensor caused, unless it names that sensor."""
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
            is_own = event.get("subject") == f"agent/{self.agent}" and data.get("sensor") == sensor.name
            return not is_own or "sensor" in leaf.match
        if leaf.type == "intent" or leaf.type.startswith("action."):
            is_own = data.get("agent") == self.agent and data.get("strategy") in {sensor.name, *sensor.strategies}
            return not is_own or "strategy" in leaf.match
        return True

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError(f"The agent {self.agent!r} is stopping. Try again later: it may be restarted.")

    def _get_runner(self, name: str) -> _Runner:
        if name not in self._runners:
            raise NotFoundError(f"The agent {self.agent!r} has no sensor {name!r}.{did_you_mean(name, self._runners)}")
        return self._runners[name]

    def _admit(self, runner: _Runner, firing: FiringRequest, paths: list[Path], *, anyhow: bool = False) -> bool:
        self._check_open()
        if self._state.has_call(runner.state.sensor, firing.cause):
            return False
        if len(runner.waiting) >= runner.sensor.most_waiting:
            self._record_missed(runner, firing, "full")
            raise UnavailableError(
                f"{len(runner.waiting)} firings of the sensor {runner.state.sensor!r} are already queued. Try again "
                "later."
            )
        self._state.add_call(runner.state.sensor, firing)
        fires = runner.state.mark_fired(*paths)
        self._state.mark_changed(runner.state)
        if fires or anyhow:
            self._queue(runner, firing)
        else:
            self._state.complete_call(runner.state.sensor, firing.cause)
        return fires or anyhow

    def _queue(self, runner: _Runner, firing: FiringRequest) -> None:
        if runner.task is None:
            self._begin(runner, firing)
        else:
            runner.waiting.append(firing)

    def _offer(self, runner: _Runner, firing: FiringRequest) -> None:
        """Start a scheduled firing, or count it as missed if the previous one is still running."""
        if runner.task is None:
            self._begin(runner, firing)
        else:
            self._record_missed(runner, firing, "running")

    # -- a firing

    def _begin(self, runner: _Runner, firing: FiringRequest) -> None:
        began = self._clock()
        if firing.attempts == 1:
            runner.state.fired += 1
        runner.state.last, runner.state.in_progress = began, firing
        self._state.mark_changed(runner.state)
        task = asyncio.get_running_loop().create_task(runner.sensor.run(firing, runner.state))
        runner.task = task
        runner.limit = self._call_later(runner.sensor.limit_s, self._abandon, runner, began)
        task.add_done_callback(lambda done: self._finish(runner, began, done))

    def _abandon(self, runner: _Runner, began: float) -> None:
        """Abandon a firing at its timeout. It keeps its sensor busy until it ends."""
        assert runner.task is not None
        runner.limit = None
        runner.state.abandoned += 1
        limit = f"The sensor exceeded its limit of {runner.sensor.limit_s:g} s, and was abandoned."
        try:
            self._record_result(runner, began, None, limit)
        finally:
            runner.task.cancel()

    def _finish(self, runner: _Runner, began: float, task: asyncio.Task[SensorResult]) -> None:
        if self._closed:
            return  # it is retried at the next start
        try:
            if runner.limit is not None:
                runner.limit.cancel()
                runner.limit = None
                self._collect_result(runner, began, task)
            elif not task.cancelled():
                task.exception()  # it ended after it was abandoned: ignore how
        finally:  # the loop reports a defect here, which must not block the waiting firings
            runner.task = None
            if runner.waiting and not self._closing:
                self._begin(runner, runner.waiting.popleft())

    def _collect_result(self, runner: _Runner, began: float, task: asyncio.Task[SensorResult]) -> None:
        if task.cancelled():
            self._record_result(runner, began, None, "The sensor's own code cancelled it.")
        elif (error := task.exception()) is not None:
            self._record_result(runner, began, None, format_error(error))
        else:
            result = task.result()
            runner.state.looked = runner.state.looked if result.looked is None else result.looked
            self._record_result(runner, began, result.value, None)

    def _record_result(self, runner: _Runner, began: float, value: Any, error: str | None) -> None:
        """Record the sample of a firing, evaluate the strategies on it, and send their deliveries."""
        firing = runner.state.in_progress
        assert firing is not None
        now = self._clock()
        sample, document = self._build_sample(runner.state.sensor, firing, now, value, error, max(0.0, now - began))
        runner.state.in_progress = None
        self._state.note("sample", runner.state.sensor, now, document)
        decisions = self._decide(sample)
        runner.state.errors += sample.error is not None or bool(decisions.errors)
        strategy_errors = "; ".join(f"strategy {strategy!r}: {why}" for strategy, why in decisions.errors.items())
        runner.state.record_outcome(sample.error or strategy_errors or None, now)
        for strategy, why in decisions.errors.items():
            self._note("error", strategy, now, {"strategy": strategy, "sample": sample.id, "error": why})
        notes = [(delivery.kind, delivery.queue, delivery.body) for delivery in decisions.deliveries]
        for kind, strategy, body in notes if decisions.notes is None else decisions.notes:
            self._state.note(kind, strategy, now, body)
        self._send(decisions.deliveries)
        self._state.complete_call(runner.state.sensor, firing.cause)
        self._state.mark_changed(runner.state)
        self._on_sample(sample, decisions, 0 if firing.event is None else _count_hops(firing.event))

    def _build_sample(
        self, name: str, firing: FiringRequest, now: float, value: Any, error: str | None, seconds: float
    ) -> tuple[Sample, str]:
        fields: dict[str, Any] = {
            "id": build_sample_id(self.agent, name, firing.cause),
            "agent": self.agent,
            "sensor": name,
            "at": now,
            "cause": firing.cause,
            "seconds": seconds,
        }
        try:
            sample = Sample(**fields, value=value, error=error)
            return self._mask_sample(sample, sample.model_dump_json())
        except ValueError as invalid:  # a sample with a lone surrogate can be built, and not serialized
            why = escape_surrogates(f"The sensor's result cannot be serialized as JSON: {invalid}")
            sample = Sample(**fields, value=None, error=why)
            return sample, sample.model_dump_json()

    def _mask_sample(self, sample: Sample, document: str) -> tuple[Sample, str]:
        if not (self._masker and self._masker.occurs_in(document)):
            return sample, document
        sample = Sample.model_validate(self._masker.mask_values(sample.model_dump(mode="json")))
        return sample, sample.model_dump_json()

    def _decide(self, sample: Sample) -> Decisions:
        try:
            decisions = self._decider.decide(sample)
        except Exception as error:  # noqa: BLE001 - the edge of the loop: one sample's rules must not end the agent
            _log.exception("strategies failed on a sample of %r", sample.sensor)
            return Decisions(errors={"": self._mask_text(format_error(error))})
        errors = {strategy: self._mask_text(escape_surrogates(why)) for strategy, why in decisions.errors.items()}
        return replace(decisions, errors=errors)

    def _mask_text(self, text: str) -> str:
        return self._masker.mask_text(text) if self._masker else text

    # -- the journal

    def _record_missed(
        self, runner: _Runner, firing: FiringRequest, reason: Literal["interrupted", "looped", "full", "running"]
    ) -> None:
        """Count a firing that does not run, and record its reason in the journal."""
        setattr(runner.state, reason, getattr(runner.state, reason) + 1)
        self._note("missed", runner.state.sensor, self._clock(), {"reason": reason, "cause": firing.cause, "count": 1})
        self._state.mark_changed(runner.state)

    def _note(self, kind: str, subject: str, at: float, body: Mapping[str, Any]) -> None:
        self._state.note(kind, subject, at, json.dumps(body))


def build_sample_id(agent: str, sensor: str, cause: str) -> str:
    return hashlib.sha256(f"{agent}/{sensor}/{cause}".encode()).hexdigest()[:20]


def _count_hops(event: Mapping[str, Any]) -> int:
    """Return how many samples led to an event, according to its data."""
    hops = (event.get("data") or {}).get("hops") if event.get("type") == "sample" else None
    return hops if isinstance(hops, int) else 0
