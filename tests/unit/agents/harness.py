"""A host without a clock, a network or a server of its own: a test advances the one and stands in for the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from scanflow.agent.records import Sample
from scanflow.app.triggers import Trigger
from scanflow.errors import ScanflowError
from scanflow_agents.cycle import Decided, Found, HostedSensor
from scanflow_agents.host import Host
from scanflow_agents.ledger import Firing, Ledger
from scanflow_agents.outbox import Letter, Outbox
from scanflow_agents.state import AgentState

START = 1_790_000_000.0


class FakeClock:
    """Time that is advanced by hand, with alarms and timers that ring as it goes."""

    def __init__(self, now: float = START) -> None:
        self.now = now
        self.alarms: dict[str, tuple[Callable[[float], float | None], Callable[[], None]]] = {}
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...], FakeHandle]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Any:
        handle = FakeHandle()
        self.timers.append((self.now + delay, callback, args, handle))
        return handle

    def add(self, name: str, next_after: Callable[[float], float | None], ring: Callable[[], None]) -> None:
        self.alarms[name] = (next_after, ring)

    def start(self) -> None: ...

    def look(self) -> None: ...

    def stop(self) -> None:
        self.alarms.clear()

    async def advance(self, seconds: float) -> None:
        """Go on, stopping at each alarm and timer on the way."""
        until = self.now + seconds
        while True:
            ringing = {
                name: found for name, (after, _) in self.alarms.items() if (found := after(self.now)) is not None
            }
            due = [*ringing.values(), *(at for at, _, _, handle in self.timers if not handle.gone)]
            moment = min((at for at in due if at > self.now), default=until)
            if moment > until or moment == until == self.now:
                break
            self.now = min(moment, until)
            for name, at in ringing.items():
                if at <= self.now:
                    self.alarms[name][1]()
            passed = [timer for timer in self.timers if timer[0] <= self.now and not timer[3].gone]
            self.timers = [timer for timer in self.timers if timer[0] > self.now]
            for _, callback, args, _ in passed:
                callback(*args)
            await turns()
            if self.now >= until:
                break
        self.now = until
        await turns()


class FakeHandle:
    gone = False

    def cancel(self) -> None:
        self.gone = True


async def turns(count: int = 12) -> None:
    """Let what is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


class FakePost:
    """Takes letters; each is answered by what the test lets it be answered by."""

    def __init__(self) -> None:
        self.delivered: list[Letter] = []
        self.tried: defaultdict[str, int] = defaultdict(int)
        self.failing: dict[str, ScanflowError] = {}
        self.down: ScanflowError | None = None
        self.look: Callable[[], object] = lambda: None

    async def deliver(self, letter: Letter) -> Any:
        self.tried[letter.key] += 1
        self.look()
        error = self.down or self.failing.get(letter.key)
        if error is not None:
            raise error
        self.delivered.append(letter)
        return {"verdict": "act"}


class Always:
    """A strategy for each sensor, which wants one thing of each sample without an error."""

    def decide(self, sample: Sample) -> Decided:
        if sample.error is not None:
            return Decided()
        key = f"{sample.agent}/{sample.sensor}/{sample.cause}"
        return Decided(letters=(Letter(lane=sample.sensor, kind="intent", key=key, at=sample.at, body="{}"),))


def sensor(
    name: str,
    trigger: Trigger,
    function: Callable[[Firing], Coroutine[Any, Any, Any]] | None = None,
    **limits: Any,
) -> HostedSensor:
    """Return a sensor whose value is what ``function`` returns, or 1."""

    async def run(firing: Firing, ledger: Ledger) -> Found:
        return Found(value=1 if function is None else await function(firing))

    return HostedSensor(name=name, trigger=trigger, run=run, **limits)


class Agent:
    """One life of an agent over a folder; another over the same folder is the next one."""

    def __init__(self, folder: Path, clock: FakeClock, *sensors: HostedSensor, decider: Any = None) -> None:
        self.clock, self.post = clock, FakePost()
        self.pauses: list[float] = []
        self.state = AgentState(folder / "agent.db")
        self.outbox = Outbox(state=self.state, post=self.post, clock=clock, chance=lambda: 0.5, pause=self._pause)
        self.host = Host(
            app="mnist",
            agent="tracker",
            state=self.state,
            sensors=sensors,
            decider=decider or Always(),
            outbox=self.outbox,
            alarms=clock,
            clock=clock,
            call_later=clock.call_later,
        )
        self.go_on = asyncio.Event()
        self._paused, self._enough = asyncio.Event(), 0

    async def paused(self, count: int) -> None:
        """Return when the outbox has paused so often."""
        self._enough = count
        await self._paused.wait()

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self._enough:
            self._paused.set()
        await asyncio.sleep(0)
        await self.go_on.wait()

    async def __aenter__(self) -> Agent:
        self.clock.alarms.clear()
        self.clock.timers.clear()
        self.host.start()
        await self.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.host.stop(patience_s=0.0)

    async def kill(self) -> None:
        """End as a killed process does: what is committed stays, nothing more comes."""
        self.clock.alarms.clear()
        self.clock.timers.clear()
        self.host.cycle._closed = True
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turns()
        self.state.writer._thread.shutdown(wait=True)
        self.state.writer._connection.close()

    async def settled(self) -> None:
        """Return when all that follows from what happened until now is done and committed."""
        for _ in range(4):
            await self.state.writer.settled()
            await turns()

    def ledger(self, name: str) -> Ledger:
        return self.host.cycle.ledgers[name]

    async def journal(self, kind: str) -> list[dict[str, Any]]:
        await self.settled()
        return self.state.journal(kind=kind)

    def keys(self) -> list[str]:
        return [letter.key for letter in self.post.delivered]
