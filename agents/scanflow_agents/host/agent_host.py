"""The host of one agent: its schedules, control loop and deliveries, and the reports of its API."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from scanflow.agent.agent_records import Event, Sample, SensorCall, SensorReport
from scanflow.agent.error_text import shorten
from scanflow.app.triggers import EventTrigger as OnEvent
from scanflow.app.triggers import Interval
from scanflow.errors import ScanflowError, UnavailableError
from scanflow.text.masking import Masker
from scanflow_agents.host import combined_triggers
from scanflow_agents.host.agent_state import AgentStore
from scanflow_agents.host.call_limits import WithheldOnce
from scanflow_agents.host.combined_triggers import Path
from scanflow_agents.host.control_loop import ControlLoop, Decider, Decisions, HostedSensor, Timer
from scanflow_agents.host.event_subscriber import EventFilter, EventSource, EventSubscriber
from scanflow_agents.host.heartbeat_pace import HeartbeatPace
from scanflow_agents.host.host_clients import DeliveryClient, EventReporter
from scanflow_agents.host.outbox import Outbox
from scanflow_agents.host.scheduler import DueTimes, Scheduler
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.trigger_times import format_time

TRIM_S = 60.0
QUIET_S = 20.0
"""The heartbeat interval while no sensor fires."""

POSITION_S = 5.0
"""The longest that the first heartbeat waits for the event from which on the agent listens."""

MAX_FAILURES = 3
"""The number of consecutive failures of a sensor after which the agent is reported as failing."""

_Schedule = tuple[list[tuple[str, Path]], DueTimes, float]
"""Leaves with a common alarm, its due times, and its grace in seconds."""

_MAX_REASON_LENGTH = 1000
_log = logging.getLogger(__name__)


class AgentHost:
    """Connects an agent's components. Everything is called on the event loop's thread."""

    def __init__(
        self,
        *,
        app: str,
        agent: str,
        state: AgentStore,
        sensors: Iterable[HostedSensor],
        decider: Decider,
        outbox: Outbox,
        scheduler: Scheduler,
        clock: Callable[[], float],
        call_later: Timer,
        client: DeliveryClient | None = None,
        heartbeat_s: float = 5.0,
        source: EventSource | None = None,
        report_trouble: Callable[[str | None], None] = lambda _why: None,
        masker: Masker | None = None,
    ) -> None:
        """``client`` sends heartbeats when sensors have fired, ``heartbeat_s`` apart, and less often where nothing
        changed. Without a ``source``,
        events arrive through the agent's own API.
        ``report_trouble`` receives a description of the failures in the agent, and None once there are none."""
        self.app, self.agent, self.state = app, agent, state
        self._outbox, self._scheduler, self._clock = outbox, scheduler, clock
        self._client, self._pace = client, HeartbeatPace(heartbeat_s)
        self._reporter = None if client is None else EventReporter(client)
        self._beating: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._registered = False
        self._last_counters: Any = None
        """The sensors' counters in the last heartbeat."""

        self._withheld = WithheldOnce()
        self._schedules: list[_Schedule] = []
        self._report_trouble, self._failing, self._reported_trouble = report_trouble, set[str](), ""
        sensors = list(sensors)
        self.loop = ControlLoop(
            agent,
            app=app,
            state=state,
            sensors=sensors,
            decider=decider,
            send=outbox.send,
            clock=clock,
            call_later=call_later,
            on_sample=self._handle_sample,
            masker=masker,
        )
        leaves = [leaf for sensor in sensors for _, leaf in combined_triggers.iterate_leaves(sensor.trigger)]
        event_filter = EventFilter.from_triggers((leaf for leaf in leaves if isinstance(leaf, OnEvent)), app)
        self.subscriber: EventSubscriber | None = None
        if source is not None and event_filter:
            self.subscriber = EventSubscriber(
                source, event_filter, state=state, take=self._take_event, is_behind=self.loop.is_behind, clock=clock
            )

    def start(self, url: str | None = None) -> None:
        self._outbox.start()
        self.loop.start()
        self._schedules = list(self._group_leaves())
        self._schedule()
        self._scheduler.start()
        self._failing = {name for name, sensor_state in self.loop.sensor_states.items() if sensor_state.failures}
        self._report_failing()
        if self.subscriber is not None:
            self._listening = asyncio.get_running_loop().create_task(self.subscriber.run())
        elif self.state.position is not None:
            self.state.set_position(replace(self.state.position, subscribed=False))
        self._beating = asyncio.get_running_loop().create_task(self._send_heartbeats(url))

    async def stop(self, *, patience_s: float = 2.0) -> None:
        """Start no more firings, wait up to ``patience_s`` for running ones, and keep the rest for the next start."""
        self._scheduler.stop()
        for task in (self._beating, self._listening):
            if task is not None:
                task.cancel()
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=1.0)
        await self.loop.stop(patience_s=patience_s)
        await self._outbox.stop(patience_s=0.5)
        await self.state.writer.close()

    # -- for the API

    async def call(self, name: str, call: SensorCall, *, key: str, anyhow: bool = False) -> str:
        """Accept a call, and return its sample's id once the call is committed."""
        cause = f"{'fire' if anyhow else 'call'}:{key}"
        firing = FiringRequest(cause=cause, at=self._clock(), args=tuple(call.args), kwargs=call.kwargs)
        sample = self.loop.call(name, firing, anyhow=anyhow)
        await self.state.writer.flush()
        return sample

    def call_self(self, name: str, body: Mapping[str, Any], key: str) -> dict[str, str]:
        """Accept a call from a strategy of this agent."""
        firing = FiringRequest(cause=f"call:{key}", at=self._clock(), args=tuple(body["args"]), kwargs=body["kwargs"])
        return {"sample": self.loop.call(name, firing)}

    async def receive_events(self, events: Iterable[Event]) -> int:
        """Accept events, and return the number of their firings once they are committed."""
        fired = 0
        for event in events:
            # Without an application, an event is for this agent's. Without a number, each delivery is a new event.
            body = event.model_dump(mode="json") | {"app": event.app or self.app}
            key = self._format_event_key(event.id) if event.id else f"{event.type}@{event.at!r}/{os.urandom(4).hex()}"
            fired += self.loop.receive_event(key, body)
        await self.state.writer.flush()
        return fired

    def _take_event(self, event: Event) -> None:
        self.loop.receive_event(self._format_event_key(event.id), event.model_dump(mode="json"), once=True)

    def _format_event_key(self, number: int) -> str:
        return str(number) if self.state.position is None else self.state.position.format_event_key(number)

    def describe_health(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "app": self.app,
            "pid": os.getpid(),
            "sensors": len(self.loop.sensor_states),
            "undelivered": self._outbox.count,
            "refused": self._outbox.refused,
            "server": self._registered,
            "subscribed": self.subscriber is not None and self.subscriber.connected,
            "event_position": 0 if self.state.position is None else self.state.position.number,
        }

    def build_reports(self) -> list[SensorReport]:
        now = self._clock()
        return [
            SensorReport(
                name=name,
                trigger=sensor_state.trigger.model_dump(mode="json"),
                next=min(
                    (due for leaf in sensor_state.leaves.values() if (due := leaf.find_next_after(now))), default=None
                ),
                last=sensor_state.last,
                fired=sensor_state.fired,
                missed=sum(sensor_state.missed.values()),
                errors=sensor_state.errors,
            )
            for name, sensor_state in self.loop.sensor_states.items()
        ]

    # -- schedules

    def check_clock(self) -> None:
        """Check the clock: it may have been set, or the machine may have slept."""
        if self.loop.check_clock():
            _log.warning("The clock was ahead and was set back: sensors continue from the current time.")
            self._schedule()
        self._scheduler.check_clock()

    def _schedule(self) -> None:
        for number, (leaves, times, grace_s) in enumerate(self._schedules):
            self._scheduler.add(f"schedule-{number}", times, _make_ring(self.loop, leaves), grace_s=grace_s)

    def _group_leaves(self) -> Iterable[_Schedule]:
        """Group the leaves with equal trigger, anchor and grace; each leaf with jitter forms its own group."""
        together: defaultdict[tuple[object, ...], list[tuple[str, Path]]] = defaultdict(list)
        for name, sensor_state in self.loop.sensor_states.items():
            for path, leaf in sensor_state.leaves.items():
                alone = (name, path) if isinstance(leaf.trigger, Interval) and leaf.trigger.jitter else None
                key = (leaf.trigger.model_dump_json(), leaf.anchor, self.loop.get_grace_s(name), alone)
                together[key].append((name, path))
        for leaves in together.values():
            name, path = leaves[0]
            times = DueTimes(self.loop.sensor_states[name].leaves[path], self.loop.get_seed(name))
            yield leaves, times, self.loop.get_grace_s(name)

    # -- the server

    def _handle_sample(self, sample: Sample, decisions: Decisions, hops: int) -> None:
        self._pace.note_firing()
        sensor_state = self.loop.sensor_states[sample.sensor]
        if sensor_state.failures or sample.sensor in self._failing:
            (self._failing.add if sensor_state.failures else self._failing.discard)(sample.sensor)
            self._report_failing()
        if sample.error is not None or decisions.deliveries or decisions.errors:
            data: dict[str, Any] = {"sensor": sample.sensor, "sample": sample.id, "cause": sample.cause}
            if sample.error is not None or decisions.errors:
                data["error"] = sample.error or "; ".join(decisions.errors.values())
            elif len(sample.model_dump_json()) < 2000:
                data["value"] = sample.value
            if sample.cause.startswith("event:"):
                data["hops"] = hops + 1
            self._report("sample", data)
        self._report_withheld(decisions)

    def _report_withheld(self, decisions: Decisions) -> None:
        calling = {delivery.queue for delivery in decisions.deliveries if delivery.kind == "call"}
        for withheld in self._withheld.select(calling, decisions.withheld):
            data: dict[str, Any] = {
                "strategy": withheld.strategy,
                "requests": withheld.requests,
                "limit": withheld.limit,
                "reason": withheld.reason,
            }
            self._report("strategy.withheld", data)

    def _report_failing(self) -> None:
        failing = [self.loop.sensor_states[name] for name in sorted(self._failing)]
        text = format_trouble([sensor_state for sensor_state in failing if sensor_state.failures >= MAX_FAILURES])
        if text != self._reported_trouble:
            self._reported_trouble = text
            self._report_trouble(text or None)

    def _report(self, kind: str, data: dict[str, Any]) -> None:
        if self._reporter is not None:
            event = Event(at=self._clock(), type=kind, app=self.app, subject=f"agent/{self.agent}", data=data)
            self._reporter.add(event)

    async def _send_heartbeats(self, url: str | None) -> None:
        """Check the clock, trim the store and send heartbeats, periodically."""
        missed, trimmed = self._count_missed(), self._clock()
        if self.subscriber is not None:  # what happens once the agent is said to run is heard
            await self.subscriber.wait_for_position(POSITION_S)
        while True:
            self.check_clock()
            if url is not None and self._client is not None and await self._ensure_registered(self._client, url):
                if (now_missed := self._count_missed()) != missed:
                    self._report("agent.missed", {"count": now_missed - missed, "in_all": now_missed})
                    missed = now_missed
                if self._reporter is not None:
                    await self._reporter.flush()
            if abs(self._clock() - trimmed) >= TRIM_S:
                trimmed = self._clock()
                self.state.trim()
            await self._pace.wait()

    async def _ensure_registered(self, client: DeliveryClient, url: str) -> bool:
        states = self.loop.sensor_states.values()
        counters = [(state.last, state.fired, state.errors, state.missed.copy()) for state in states]
        now = asyncio.get_running_loop().time()
        if self._registered and counters == self._last_counters and now - self._pace.last < QUIET_S:
            return True
        self._pace.last = now
        try:
            await client.report_strategies()
            self._pace.is_watched = await client.send_heartbeat(url, os.getpid(), self.build_reports())
        except UnavailableError as error:
            self._registered = False
            _log.info("the server does not answer: %s", error)
        except ScanflowError as error:
            self._registered = False
            _log.warning("the server rejected this agent: %s", error)
        else:
            self._registered, self._last_counters = True, counters
        return self._registered

    def _count_missed(self) -> int:
        return sum(sum(sensor_state.missed.values()) for sensor_state in self.loop.sensor_states.values())


def format_trouble(failing: list[SensorState]) -> str:
    """Describe the failing sensors and their errors; empty if there are none."""
    if not failing:
        return ""
    first = failing[0]
    since = "" if first.failing_since is None else f" since {format_time(round(first.failing_since))}"
    reason = shorten(first.trouble, _MAX_REASON_LENGTH)
    names = ", ".join(sensor_state.sensor for sensor_state in failing[1:6])
    others = "" if len(failing) == 1 else f" Other failing sensors: {names}."
    return f"The sensor {first.sensor!r} fails repeatedly{since}: {reason}{others}"


def _make_ring(loop: ControlLoop, leaves: list[tuple[str, Path]]) -> Callable[[bool], None]:
    return lambda late: loop.ring(leaves, late=late)
