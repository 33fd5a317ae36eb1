"""One agent at work: its schedules, its cycle, its deliveries, and what its face tells of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scanflow.agent.messages import SensorCall, SensorReport
from scanflow.agent.records import Event, Sample
from scanflow.app.triggers import Interval
from scanflow.errors import InvalidError, ScanflowError, UnavailableError
from scanflow_agents.combining import Path
from scanflow_agents.cycle import Cycle, Decided, Decider, HostedSensor, Timer
from scanflow_agents.ledger import Firing, Leaf
from scanflow_agents.outbox import Outbox
from scanflow_agents.remote import Correspondent, Reporter
from scanflow_agents.scheduler import Alarms
from scanflow_agents.state import AgentState
from scanflow_agents.timetable import moved

__all__ = ["Host"]

TRIM_S = 60.0
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
    ) -> None:
        """``correspondent``: who tells the server where the agent is, every ``beat_s``. None: nobody."""
        self.app, self.agent, self.state = app, agent, state
        self._outbox, self._alarms, self._clock = outbox, alarms, clock
        self._correspondent, self._beat_s = correspondent, beat_s
        self._reporter = None if correspondent is None else Reporter(correspondent)
        self._beating: asyncio.Task[None] | None = None
        self._met = False
        self.cycle = Cycle(
            agent,
            state=state,
            sensors=sensors,
            decider=decider,
            send=outbox.send,
            clock=clock,
            call_later=call_later,
            sampled=self._sampled,
        )

    def start(self, url: str | None = None) -> None:
        """Take everything up where it was left. ``url``: where the agent's face is."""
        self._outbox.start()
        self.cycle.start()
        for number, (leaves, next_after) in enumerate(self._schedules()):
            self._alarms.add(f"schedule-{number}", next_after, _ringing(self.cycle, leaves))
        self._alarms.start()
        if self._reporter is not None and url is not None:
            self._beating = asyncio.get_running_loop().create_task(self._beat(url))

    async def stop(self, *, patience_s: float = 2.0) -> None:
        """Begin nothing more, let what runs end for a while, and keep everything else for the next start.

        Raises:
            UnavailableError: the state could not be written.
        """
        self._alarms.stop()
        if self._beating is not None:
            self._beating.cancel()
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
            body = event.model_dump(mode="json")
            # The server's number names an event; one without a number is a new one each time it is told.
            key = str(event.id) if event.id else f"{event.type}@{event.at!r}/{os.urandom(4).hex()}"
            fired += self.cycle.event(key, body)
        await self.state.writer.settled()
        return fired

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

    def _schedules(self) -> Iterable[tuple[list[tuple[str, Path]], Callable[[float], float | None]]]:
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

    def _sampled(self, sample: Sample, decided: Decided) -> None:
        if sample.error is not None or decided.letters or decided.errors:
            data: dict[str, Any] = {"sensor": sample.sensor, "sample": sample.id, "cause": sample.cause}
            if sample.error is not None or decided.errors:
                data["error"] = sample.error or "; ".join(decided.errors.values())
            elif len(sample.model_dump_json()) < 2000:
                data["value"] = sample.value
            self._report("sample", data)

    def _report(self, kind: str, data: dict[str, Any]) -> None:
        if self._reporter is not None:
            event = Event(at=self._clock(), type=kind, app=self.app, subject=f"agent/{self.agent}", data=data)
            self._reporter.add(event)

    async def _beat(self, url: str) -> None:
        """Tell the server where the agent is, again and again; it may come and go."""
        assert self._correspondent is not None
        assert self._reporter is not None
        missed, trimmed = self._missed(), self._clock()
        while True:
            self._alarms.look()
            try:
                await self._correspondent.here(url, os.getpid())
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
                if (now_missed := self._missed()) != missed:
                    self._report("agent.missed", {"count": now_missed - missed, "in_all": now_missed})
                    missed = now_missed
                await self._reporter.flush()
            if self._clock() - trimmed >= TRIM_S:
                trimmed = self._clock()
                self.state.trim()
            await asyncio.sleep(self._beat_s)

    def _missed(self) -> int:
        return sum(sum(ledger.missed.values()) for ledger in self.cycle.ledgers.values())


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
