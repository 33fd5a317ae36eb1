"""A host without a clock, a network or a server of its own: a test advances the one and stands in for the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import Sample
from scanflow.app.triggers import Trigger
from scanflow.errors import ScanflowError
from scanflow_agents.host.agent_host import AgentHost
from scanflow_agents.host.agent_state import AgentStore
from scanflow_agents.host.control_loop import Decisions, HostedSensor, SensorResult
from scanflow_agents.host.outbox import Delivery, Outbox
from scanflow_agents.host.scheduler import DueTimes
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from tests.waiting import PATIENCE_S

START = 1_790_000_000.0


class FakeClock:
    """Time that is advanced by hand, with alarms and timers that ring as it goes."""

    def __init__(self, now: float = START) -> None:
        self.now = now
        self.scheduler: dict[str, tuple[DueTimes, Callable[[bool], None], float]] = {}
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...], FakeHandle]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Any:
        handle = FakeHandle()
        self.timers.append((self.now + delay, callback, args, handle))
        return handle

    def add(self, name: str, times: DueTimes, ring: Callable[[bool], None], *, grace_s: float) -> None:
        self.scheduler[name] = (times, ring, grace_s)

    def find_next(self, name: str) -> float | None:
        next_fire_time = self.scheduler[name][0].get_next_fire_time(None, datetime.fromtimestamp(self.now, UTC))
        return None if next_fire_time is None else next_fire_time.timestamp()

    def start(self) -> None: ...

    def check_clock(self) -> None: ...

    def stop(self) -> None:
        self.scheduler.clear()

    async def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            ringing = {name: fire_time for name in self.scheduler if (fire_time := self.find_next(name)) is not None}
            due = [*ringing.values(), *(at for at, _, _, handle in self.timers if not handle.gone)]
            moment = min((at for at in due if at > self.now), default=until)
            if moment > until or moment == until == self.now:
                break
            self.now = min(moment, until)
            for name, at in ringing.items():
                if at <= self.now:
                    self.scheduler[name][1](self.now - at > self.scheduler[name][2])
            passed = [timer for timer in self.timers if timer[0] <= self.now and not timer[3].gone]
            self.timers = [timer for timer in self.timers if timer[0] > self.now]
            for _, callback, args, _ in passed:
                callback(*args)
            await yield_to_loop()
            if self.now >= until:
                break
        self.now = until
        await yield_to_loop()


class FakeHandle:
    gone = False

    def cancel(self) -> None:
        self.gone = True


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run_with_patience() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(run_with_patience())


async def yield_to_loop(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class FakeTransport:
    """Takes letters; each is answered by what the test lets it be answered by."""

    def __init__(self) -> None:
        self.delivered: list[Delivery] = []
        self.tried: defaultdict[str, int] = defaultdict(int)
        self.failing: dict[str, ScanflowError] = {}
        self.down: ScanflowError | None = None
        self.look: Callable[[], object] = lambda: None

    async def deliver(self, delivery: Delivery) -> Any:
        self.tried[delivery.key] += 1
        self.look()
        error = self.down or self.failing.get(delivery.key)
        if error is not None:
            raise error
        self.delivered.append(delivery)
        return {"verdict": "act"}


class FaultyOutbox(Outbox):
    """An outbox that breaks as often as a test wants."""

    defects = 0

    def send(self, deliveries: Iterable[Delivery]) -> None:
        if self.defects:
            self.defects -= 1
            raise RuntimeError("a defect")
        super().send(deliveries)


class Always:
    """A strategy for each sensor, which wants one thing of each sample without an error."""

    def decide(self, sample: Sample) -> Decisions:
        if sample.error is not None:
            return Decisions()
        key = f"{sample.agent}/{sample.sensor}/{sample.cause}"
        return Decisions(deliveries=(Delivery(queue=sample.sensor, kind="intent", key=key, at=sample.at, body="{}"),))


def sensor(
    name: str,
    trigger: Trigger,
    function: Callable[[FiringRequest], Coroutine[Any, Any, Any]] | None = None,
    **limits: Any,
) -> HostedSensor:
    async def run(firing: FiringRequest, sensor_state: SensorState) -> SensorResult:
        return SensorResult(value=1 if function is None else await function(firing))

    return HostedSensor(name=name, trigger=trigger, run=run, **limits)


class Agent:
    """One life of an agent over a folder; another over the same folder is the next one."""

    def __init__(
        self, folder: Path, clock: FakeClock, *sensors: HostedSensor, decider: Any = None, **options: Any
    ) -> None:
        self.clock, self.post = clock, FakeTransport()
        self.state = AgentStore(folder / "agent.db")
        self.outbox = FaultyOutbox(state=self.state, post=self.post, clock=clock)
        self.host = AgentHost(
            app="mnist",
            agent="tracker",
            state=self.state,
            sensors=sensors,
            decider=decider or Always(),
            outbox=self.outbox,
            scheduler=clock,
            clock=clock,
            call_later=clock.call_later,
            **options,
        )

    async def __aenter__(self) -> Agent:
        self.clock.scheduler.clear()
        self.clock.timers.clear()
        self.host.start()
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.host.stop(patience_s=0.0)

    async def kill(self) -> None:
        self.clock.scheduler.clear()
        self.clock.timers.clear()
        self.host.loop.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await yield_to_loop()
        self.state.writer._thread.shutdown(wait=True)
        self.state.writer._connection.close()

    async def settle(self) -> None:
        """Return when all that follows from what happened until now is done and committed."""
        for _ in range(4):
            await self.state.writer.flush()
            await yield_to_loop()

    def sensor_state(self, name: str) -> SensorState:
        return self.host.loop.sensor_states[name]

    async def journal(self, kind: str) -> list[dict[str, Any]]:
        await self.settle()
        return self.state.journal(kind=kind)

    def keys(self) -> list[str]:
        return [delivery.key for delivery in self.post.delivered]
