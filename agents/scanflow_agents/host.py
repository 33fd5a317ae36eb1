"""One agent at work: its schedules, its cycle, its deliveries, and what its face tells of them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from scanflow.agent.messages import SensorCall, SensorReport
from scanflow.agent.records import Event, Sample
from scanflow.app.triggers import Event as OnEvent
from scanflow.app.triggers import Interval
from scanflow.errors import InvalidError, ScanflowError, UnavailableError
from scanflow_agents import combining
from scanflow_agents.combining import Path
from scanflow_agents.cycle import Cycle, Decided, Decider, HostedSensor, Timer
from scanflow_agents.hearing import Hearing, Source, Wanted
from scanflow_agents.ledger import Firing, Leaf, Ledger
from scanflow_agents.outbox import Outbox
from scanflow_agents.remote import Correspondent, Reporter
from scanflow_agents.scheduler import Alarms
from scanflow_agents.state import AgentState
from scanflow_agents.timetable import moved, written

__all__ = ["Host"]

TRIM_S = 60.0
MOST_FAILURES = 3
"""So many firings of a sensor that fail one after the other are told as what is wrong with the agent."""

_Schedule = tuple[list[tuple[str, Path]], Callable[[float], float | None]]
"""What rings together, and when."""

_LONGEST_REASON = 300
_log = logging.getLogger(__name__)


class Host:
    """Holds an agent's parts together. Everything is called on the event loop's thread."""

    def __init__(
        self,
        *,
        app: str,
        agent: str,
        state: AgentState,
        sensors: Iterable[HostedSensor],
        decider: Decider,
        outbox: Outbox,
        alarms: Alarms,
        clock: Callable[[], float],
        call_later: Timer,
        correspondent: Correspondent | None = None,
        beat_s: float = 5.0,
        source: Source | None = None,
        chance: Callable[[], float] = random.random,
        ails: Callable[[str | None], None] = lambda _why: None,
    ) -> None:
        """Hold the parts together.

        ``correspondent``: who tells the server where the agent is, every ``beat_s``; None: nobody. ``source``: who
        tells of events, where a sensor fires on them; None: only who knocks at the agent's own face. ``chance`` spreads
        tries. ``ails`` is told what is wrong with the agent, and None when nothing is any more.
        """
        self.app, self.agent, self.state = app, agent, state
        self._outbox, self._alarms, self._clock = outbox, alarms, clock
        self._correspondent, self._beat_s = correspondent, beat_s
        self._reporter = None if correspondent is None else Reporter(correspondent)
        self._beating: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._met = False
        self._schedules: list[_Schedule] = []
        self._ails, self._failing, self._ailing = ails, set[str](), ""
        sensors = list(sensors)
        self.cycle = Cycle(
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
        leaves = [leaf for sensor in sensors for _, leaf in combining.leaves(sensor.trigger)]
        wanted = Wanted.of((leaf for leaf in leaves if isinstance(leaf, OnEvent)), app)
        self.hearing: Hearing | None = None
        if source is not None and wanted:
            self.hearing = Hearing(
                source,
                wanted,
                state=state,
                take=self._hear,
                crowded=self.cycle.crowded,
                clock=clock,
                chance=chance,
            )

    def start(self, url: str | None = None) -> None:
        """Take everything up where it was left. ``url``: where the agent's face is."""
        self._outbox.start()
        self.cycle.start()
        self._schedules = list(self._grouped())
        self._set_alarms()
        self._alarms.start()
        self._failing = {name for name, ledger in self.cycle.ledgers.items() if ledger.failures}
        self._tell_what_ails()
        if self.hearing is not None:
            self._listening = asyncio.get_running_loop().create_task(self.hearing.run())
        elif self.state.heard is not None:
            self.state.hear(replace(self.state.heard, listens=False))
        self._beating = asyncio.get_running_loop().create_task(self._beat(url))

    async def stop(self, *, patience_s: float = 2.0) -> None:
        """Begin nothing more, let what runs end for a while, and keep everything else for the next start.

        Raises:
            UnavailableError: the state could not be written.
        """
        self._alarms.stop()
        for task in (self._beating, self._listening):
            if task is not None:
                task.cancel()
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=1.0)
        await self.cycle.stop(patience_s=patience_s)
        await self._outbox.stop(patience_s=0.5)
        await self.state.writer.close()

    # -- what the face asks for

    async def call(self, name: str, call: SensorCall, *, key: str, anyhow: bool = False) -> str:
        """Take a call, and return its sample's id when the call is kept.

        Raises:
            NotFoundError: there is no such sensor, or it is not to be called.
            UnavailableError: too many calls wait, or nothing can be kept.
        """
        cause = f"{'fire' if anyhow else 'call'}:{key}"
        firing = Firing(cause=cause, at=self._clock(), args=tuple(call.args), kwargs=call.kwargs)
        sample = self.cycle.call(name, firing, anyhow=anyhow)
        await self.state.writer.settled()
        return sample

    def call_self(self, name: str, body: Mapping[str, Any], key: str) -> dict[str, str]:
        """Take a call that a strategy of this very agent makes."""
        firing = Firing(cause=f"call:{key}", at=self._clock(), args=tuple(body["args"]), kwargs=body["kwargs"])
        return {"sample": self.cycle.call(name, firing)}

    async def events(self, events: Iterable[Event]) -> int:
        """Take events, and return how many firings they led to when they are kept."""
        fired = 0
        for event in events:
            # One of no application is for whom it is told to. One without a number is a new one each time it is told.
            body = event.model_dump(mode="json") | {"app": event.app or self.app}
            key = self._key_of(event.id) if event.id else f"{event.type}@{event.at!r}/{os.urandom(4).hex()}"
            fired += self.cycle.event(key, body)
        await self.state.writer.settled()
        return fired

    def _hear(self, event: Event) -> None:
        """Take an event that the server told."""
        self.cycle.event(self._key_of(event.id), event.model_dump(mode="json"), once=True)

    def _key_of(self, number: int) -> str:
        return str(number) if self.state.heard is None else self.state.heard.key_of(number)

    def health(self) -> dict[str, Any]:
        """Return how the agent is."""
        return {
            "agent": self.agent,
            "app": self.app,
            "pid": os.getpid(),
            "sensors": len(self.cycle.ledgers),
            "undelivered": self._outbox.count,
            "refused": self._outbox.refused,
            "server": self._met,
            "hears": self.hearing is not None and self.hearing.connected,
            "heard": 0 if self.state.heard is None else self.state.heard.number,
        }

    def reports(self) -> list[SensorReport]:
        """Return how each sensor fares."""
        now = self._clock()
        return [
            SensorReport(
                name=name,
                trigger=ledger.dumped,
                next=min((due for leaf in ledger.leaves.values() if (due := leaf.next_after(now))), default=None),
                last=ledger.last,
                fired=ledger.fired,
                missed=sum(ledger.missed.values()),
                errors=ledger.errors,
            )
            for name, ledger in self.cycle.ledgers.items()
        ]

    # -- schedules

    def look(self) -> None:
        """Look at the clock anew: it may have been set, or the machine may have slept."""
        if self.cycle.look():
            _log.warning("The clock was ahead, and was set back: sensors go on from now.")
            self._set_alarms()
        self._alarms.look()

    def _set_alarms(self) -> None:
        for number, (leaves, next_after) in enumerate(self._schedules):
            self._alarms.add(f"schedule-{number}", next_after, _ringing(self.cycle, leaves))

    def _grouped(self) -> Iterable[_Schedule]:
        """Yield what rings together: leaves that share their trigger and its anchor, and each that has jitter."""
        together: defaultdict[tuple[str, float], list[tuple[str, Path]]] = defaultdict(list)
        first: dict[tuple[str, float], Leaf] = {}
        for name, ledger in self.cycle.ledgers.items():
            for path, leaf in ledger.leaves.items():
                if isinstance(leaf.trigger, Interval) and leaf.trigger.jitter:
                    yield [(name, path)], _moved_after(leaf, f"{self.agent}/{name}")
                else:
                    key = (leaf.trigger.model_dump_json(), leaf.anchor)
                    together[key].append((name, path))
                    first[key] = leaf
        for key, leaves in together.items():
            yield leaves, first[key].next_after

    # -- the server

    def _sampled(self, sample: Sample, decided: Decided, hops: int) -> None:
        ledger = self.cycle.ledgers[sample.sensor]
        if ledger.failures or sample.sensor in self._failing:
            (self._failing.add if ledger.failures else self._failing.discard)(sample.sensor)
            self._tell_what_ails()
        if sample.error is not None or decided.letters or decided.errors:
            data: dict[str, Any] = {"sensor": sample.sensor, "sample": sample.id, "cause": sample.cause}
            if sample.error is not None or decided.errors:
                data["error"] = sample.error or "; ".join(decided.errors.values())
            elif len(sample.model_dump_json()) < 2000:
                data["value"] = sample.value
            if sample.cause.startswith("event:"):
                data["hops"] = hops + 1
            self._report("sample", data)

    def _tell_what_ails(self) -> None:
        """Tell, when it changes, which sensors fail again and again."""
        failing = [self.cycle.ledgers[name] for name in sorted(self._failing)]
        words = ailment([ledger for ledger in failing if ledger.failures >= MOST_FAILURES])
        if words != self._ailing:
            self._ailing = words
            self._ails(words or None)

    def _report(self, kind: str, data: dict[str, Any]) -> None:
        if self._reporter is not None:
            event = Event(at=self._clock(), type=kind, app=self.app, subject=f"agent/{self.agent}", data=data)
            self._reporter.add(event)

    async def _beat(self, url: str | None) -> None:
        """Look at the clock, forget what is old, and tell the server where the agent is, again and again."""
        missed, trimmed = self._missed(), self._clock()
        while True:
            self.look()
            if url is not None and self._correspondent is not None and await self._is_met(self._correspondent, url):
                if (now_missed := self._missed()) != missed:
                    self._report("agent.missed", {"count": now_missed - missed, "in_all": now_missed})
                    missed = now_missed
                if self._reporter is not None:
                    await self._reporter.flush()
            if abs(self._clock() - trimmed) >= TRIM_S:
                trimmed = self._clock()
                self.state.trim()
            await asyncio.sleep(self._beat_s)

    async def _is_met(self, correspondent: Correspondent, url: str) -> bool:
        """Tell the server where the agent is, and say whether it listened; it may come and go."""
        try:
            await correspondent.here(url, os.getpid())
        except UnavailableError as error:
            self._met = False
            _log.info("the server does not answer: %s", error)
        except ScanflowError as error:
            self._met = False
            _log.warning("the server does not want this agent: %s", error)
        else:
            if not self._met:
                self._met = True
                self._outbox.hurry()
                if self.hearing is not None:
                    self.hearing.hurry()
        return self._met

    def _missed(self) -> int:
        return sum(sum(ledger.missed.values()) for ledger in self.cycle.ledgers.values())


def ailment(failing: list[Ledger]) -> str:
    """Return in words which sensors fail and why; empty: none does."""
    if not failing:
        return ""
    first = failing[0]
    since = "" if first.failing_since is None else f" since {written(round(first.failing_since))}"
    reason = first.trouble if len(first.trouble) <= _LONGEST_REASON else first.trouble[: _LONGEST_REASON - 3] + "..."
    others = "" if len(failing) == 1 else f" And so do: {', '.join(ledger.sensor for ledger in failing[1:6])}."
    return f"The sensor {first.sensor!r} fails again and again{since}: {reason}{others}"


def _ringing(cycle: Cycle, leaves: list[tuple[str, Path]]) -> Callable[[], None]:
    return lambda: cycle.ring(leaves)


def _moved_after(leaf: Leaf, seed: str) -> Callable[[float], float | None]:
    """Return when a leaf with jitter rings: for its next due time, at that time's own moment."""

    def next_after(moment: float) -> float | None:
        due = leaf.next_after(leaf.accounted)
        if due is None:
            return None
        if leaf.accounted == due:
            raise InvalidError(f"The schedule {leaf.trigger!r} stands still.")
        return max(moved(leaf.trigger, due, seed), moment)

    return next_after
