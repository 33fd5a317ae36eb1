"""One agent at work: its schedules, its control loop, its deliveries, and what its API reports."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from scanflow.agent.error_text import shorten
from scanflow.agent.records import Event, Sample, SensorCall, SensorReport
from scanflow.app.triggers import EventTrigger as OnEvent
from scanflow.app.triggers import Interval
from scanflow.errors import ScanflowError, UnavailableError
from scanflow_agents.host import combined_triggers
from scanflow_agents.host.combined_triggers import Path
from scanflow_agents.host.control_loop import ControlLoop, Decider, Decisions, HostedSensor, Timer
from scanflow_agents.host.event_subscriber import EventFilter, EventSource, EventSubscriber
from scanflow_agents.host.outbox import Outbox
from scanflow_agents.host.scheduler import DueTimes, Scheduler
from scanflow_agents.host.schedules import written
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.server_client import DeliveryClient, EventReporter
from scanflow_agents.host.store import AgentStore

TRIM_S = 60.0
QUIET_S = 20.0
"""So often the server is told where the agent is while none of its sensors fires."""

MOST_FAILURES = 3
"""So many firings of a sensor that fail one after the other are told as what is wrong with the agent."""

_Schedule = tuple[list[tuple[str, Path]], DueTimes, float]
"""What rings together, when, and its grace in seconds."""

_LONGEST_REASON = 1000
_log = logging.getLogger(__name__)


class AgentHost:
    """Holds an agent's parts together. Everything is called on the event loop's thread."""

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
        beat_s: float = 5.0,
        source: EventSource | None = None,
        report_trouble: Callable[[str | None], None] = lambda _why: None,
    ) -> None:
        """``client`` reports to the server every ``beat_s``, less often where there is nothing to say. Without a
        ``source``, events come by the agent's own API.
        ``report_trouble`` is told what is wrong with the agent, and None when nothing is any more."""
        self.app, self.agent, self.state = app, agent, state
        self._outbox, self._scheduler, self._clock = outbox, scheduler, clock
        self._client, self._beat_s = client, beat_s
        self._reporter = None if client is None else EventReporter(client)
        self._beating: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._met = False
        self._told: tuple[Any, float] = (None, 0.0)
        """What the server was last told of the sensors, and when by the loop's clock."""

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
            sampled=self._sampled,
        )
        leaves = [leaf for sensor in sensors for _, leaf in combined_triggers.leaves(sensor.trigger)]
        wanted = EventFilter.of((leaf for leaf in leaves if isinstance(leaf, OnEvent)), app)
        self.subscriber: EventSubscriber | None = None
        if source is not None and wanted:
            self.subscriber = EventSubscriber(
                source, wanted, state=state, take=self._take_event, is_behind=self.loop.is_behind, clock=clock
            )

    def start(self, url: str | None = None) -> None:
        self._outbox.start()
        self.loop.start()
        self._schedules = list(self._grouped())
        self._schedule()
        self._scheduler.start()
        self._failing = {name for name, sensor_state in self.loop.sensor_states.items() if sensor_state.failures}
        self._report_failing()
        if self.subscriber is not None:
            self._listening = asyncio.get_running_loop().create_task(self.subscriber.run())
        elif self.state.position is not None:
            self.state.set_position(replace(self.state.position, listens=False))
        self._beating = asyncio.get_running_loop().create_task(self._beat(url))

    async def stop(self, *, patience_s: float = 2.0) -> None:
        """Begin nothing more, let what runs end for a while, and keep everything else for the next start."""
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
        """Take a call, and return its sample's id when the call is kept."""
        cause = f"{'fire' if anyhow else 'call'}:{key}"
        firing = FiringRequest(cause=cause, at=self._clock(), args=tuple(call.args), kwargs=call.kwargs)
        sample = self.loop.call(name, firing, anyhow=anyhow)
        await self.state.writer.settled()
        return sample

    def call_self(self, name: str, body: Mapping[str, Any], key: str) -> dict[str, str]:
        """Take a call that a strategy of this very agent makes."""
        firing = FiringRequest(cause=f"call:{key}", at=self._clock(), args=tuple(body["args"]), kwargs=body["kwargs"])
        return {"sample": self.loop.call(name, firing)}

    async def events(self, events: Iterable[Event]) -> int:
        """Take events, and return how many firings they led to when they are kept."""
        fired = 0
        for event in events:
            # One of no application is for whom it is told to. One without a number is a new one each time it is told.
            body = event.model_dump(mode="json") | {"app": event.app or self.app}
            key = self._key_of(event.id) if event.id else f"{event.type}@{event.at!r}/{os.urandom(4).hex()}"
            fired += self.loop.event(key, body)
        await self.state.writer.settled()
        return fired

    def _take_event(self, event: Event) -> None:
        self.loop.event(self._key_of(event.id), event.model_dump(mode="json"), once=True)

    def _key_of(self, number: int) -> str:
        return str(number) if self.state.position is None else self.state.position.key_of(number)

    def health(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "app": self.app,
            "pid": os.getpid(),
            "sensors": len(self.loop.sensor_states),
            "undelivered": self._outbox.count,
            "refused": self._outbox.refused,
            "server": self._met,
            "hears": self.subscriber is not None and self.subscriber.connected,
            "heard": 0 if self.state.position is None else self.state.position.number,
        }

    def reports(self) -> list[SensorReport]:
        now = self._clock()
        return [
            SensorReport(
                name=name,
                trigger=sensor_state.trigger.model_dump(mode="json"),
                next=min((due for leaf in sensor_state.leaves.values() if (due := leaf.next_after(now))), default=None),
                last=sensor_state.last,
                fired=sensor_state.fired,
                missed=sum(sensor_state.missed.values()),
                errors=sensor_state.errors,
            )
            for name, sensor_state in self.loop.sensor_states.items()
        ]

    # -- schedules

    def look(self) -> None:
        """Look at the clock again: it may have been set, or the machine may have slept."""
        if self.loop.look():
            _log.warning("The clock was ahead, and was set back: sensors go on from now.")
            self._schedule()
        self._scheduler.look()

    def _schedule(self) -> None:
        for number, (leaves, times, grace_s) in enumerate(self._schedules):
            self._scheduler.add(f"schedule-{number}", times, _ringing(self.loop, leaves), grace_s=grace_s)

    def _grouped(self) -> Iterable[_Schedule]:
        """Yield what rings together: leaves that share trigger, anchor and grace, and each that has jitter."""
        together: defaultdict[tuple[object, ...], list[tuple[str, Path]]] = defaultdict(list)
        for name, sensor_state in self.loop.sensor_states.items():
            for path, leaf in sensor_state.leaves.items():
                alone = (name, path) if isinstance(leaf.trigger, Interval) and leaf.trigger.jitter else None
                key = (leaf.trigger.model_dump_json(), leaf.anchor, self.loop.grace_of(name), alone)
                together[key].append((name, path))
        for leaves in together.values():
            name, path = leaves[0]
            times = DueTimes(self.loop.sensor_states[name].leaves[path], self.loop.seed_of(name))
            yield leaves, times, self.loop.grace_of(name)

    # -- the server

    def _sampled(self, sample: Sample, decided: Decisions, hops: int) -> None:
        sensor_state = self.loop.sensor_states[sample.sensor]
        if sensor_state.failures or sample.sensor in self._failing:
            (self._failing.add if sensor_state.failures else self._failing.discard)(sample.sensor)
            self._report_failing()
        if sample.error is not None or decided.deliveries or decided.errors:
            data: dict[str, Any] = {"sensor": sample.sensor, "sample": sample.id, "cause": sample.cause}
            if sample.error is not None or decided.errors:
                data["error"] = sample.error or "; ".join(decided.errors.values())
            elif len(sample.model_dump_json()) < 2000:
                data["value"] = sample.value
            if sample.cause.startswith("event:"):
                data["hops"] = hops + 1
            self._report("sample", data)

    def _report_failing(self) -> None:
        failing = [self.loop.sensor_states[name] for name in sorted(self._failing)]
        words = trouble_text([sensor_state for sensor_state in failing if sensor_state.failures >= MOST_FAILURES])
        if words != self._reported_trouble:
            self._reported_trouble = words
            self._report_trouble(words or None)

    def _report(self, kind: str, data: dict[str, Any]) -> None:
        if self._reporter is not None:
            event = Event(at=self._clock(), type=kind, app=self.app, subject=f"agent/{self.agent}", data=data)
            self._reporter.add(event)

    async def _beat(self, url: str | None) -> None:
        """Look at the clock, forget what is old, and tell the server where the agent is, again and again."""
        missed, trimmed = self._missed(), self._clock()
        while True:
            self.look()
            if url is not None and self._client is not None and await self._is_met(self._client, url):
                if (now_missed := self._missed()) != missed:
                    self._report("agent.missed", {"count": now_missed - missed, "in_all": now_missed})
                    missed = now_missed
                if self._reporter is not None:
                    await self._reporter.flush()
            if abs(self._clock() - trimmed) >= TRIM_S:
                trimmed = self._clock()
                self.state.trim()
            await asyncio.sleep(self._beat_s)

    async def _is_met(self, client: DeliveryClient, url: str) -> bool:
        fared = [(one.last, one.fired, one.errors, one.missed.copy()) for one in self.loop.sensor_states.values()]
        (said, at), now = self._told, asyncio.get_running_loop().time()
        if self._met and fared == said and now - at < QUIET_S:
            return True
        try:
            await client.here(url, os.getpid(), self.reports())
        except UnavailableError as error:
            self._met = False
            _log.info("the server does not answer: %s", error)
        except ScanflowError as error:
            self._met = False
            _log.warning("the server does not want this agent: %s", error)
        else:
            self._met, self._told = True, (fared, now)
        return self._met

    def _missed(self) -> int:
        return sum(sum(sensor_state.missed.values()) for sensor_state in self.loop.sensor_states.values())


def trouble_text(failing: list[SensorState]) -> str:
    """Return in words which sensors fail and why; empty: none does."""
    if not failing:
        return ""
    first = failing[0]
    since = "" if first.failing_since is None else f" since {written(round(first.failing_since))}"
    reason = shorten(first.trouble, _LONGEST_REASON)
    others = "" if len(failing) == 1 else f" And so do: {', '.join(one.sensor for one in failing[1:6])}."
    return f"The sensor {first.sensor!r} fails again and again{since}: {reason}{others}"


def _ringing(loop: ControlLoop, leaves: list[tuple[str, Path]]) -> Callable[[bool], None]:
    return lambda late: loop.ring(leaves, late=late)
