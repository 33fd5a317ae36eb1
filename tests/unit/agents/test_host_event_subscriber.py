"""How an agent hears events: each once, from where it stopped, and never in a busy loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import stamina
from hypothesis import given, settings
from hypothesis import strategies as st

import scanflow as sf
from scanflow.agent.agent_records import Event
from scanflow.errors import InvalidError, ScanflowError, UnavailableError
from scanflow_agents.host import event_subscriber
from scanflow_agents.host.agent_state import AgentStore, EventPosition
from scanflow_agents.host.control_loop import MAX_HOPS, Decisions, HostedSensor
from scanflow_agents.host.event_subscriber import EventBatch, EventFilter
from scanflow_agents.host.outbox import Delivery
from tests.unit.agents.host_harness import Agent, FakeClock, run, sensor, yield_to_loop

MADE = sf.on_event("made")


class FakeServer:
    """A list of events, and who listens to it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.refusal: ScanflowError | None = None
        self.news = asyncio.Condition()
        self.asked: list[int] = []
        self.over = 0
        self.gone = 0
        self.ends_at_once = False

    async def happen(self, count: int = 1, type: str = "made", app: str = "mnist", **data: Any) -> None:
        for _ in range(count):
            number = self.events[-1].id + 1 if self.events else 1
            self.events.append(Event(id=number, at=float(number), type=type, app=app, data=data))
        await self.ring()

    async def ring(self) -> None:
        async with self.news:
            self.news.notify_all()
        await yield_to_loop(30)

    async def end(self) -> None:
        self.over += 1
        await self.ring()

    async def fetch_newest(self) -> Event | None:
        self._answer()
        return self.events[-1] if self.events else None

    async def from_number(self, number: int) -> Event | None:
        self._answer()
        return next((event for event in self.events if event.id >= number), None)

    async def stream(self, after: int, wanted: EventFilter) -> AsyncGenerator[EventBatch, None]:
        self._answer()
        self.asked.append(after)
        yield EventBatch()
        over = self.over
        while not self.ends_at_once:
            events = [event for event in self.events if event.id > max(after, self.gone) and event.type in wanted.types]
            if after < self.gone:
                events = [Event(id=self.gone, at=0.0, type="events.gone"), *events]
            newest = self.events[-1] if self.events else None
            if events:
                yield EventBatch(events=events)
            if newest is not None and newest.id > after:
                after = newest.id
                yield EventBatch(seen=newest)
            async with self.news:
                if self.over == over and not (self.events and self.events[-1].id > after):
                    await self.news.wait()
            if self.over != over:
                return

    def _answer(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class Listening(Agent):
    """An agent that hears a server."""

    def __init__(
        self, folder: Path, server: FakeServer, *sensors: HostedSensor, clock: FakeClock, **options: Any
    ) -> None:
        super().__init__(folder, clock, *sensors, source=server, **options)

    async def __aenter__(self) -> Listening:
        await super().__aenter__()
        await yield_to_loop(30)
        await self.settle()
        return self


async def test_it_begins_with_what_comes_next_and_then_receives_each_event_once(tmp_path: Path) -> None:
    server, clock = FakeServer(), FakeClock()
    await server.happen(3)
    async with Listening(tmp_path, server, sensor("made", MADE), clock=clock) as agent:
        await server.happen(2)
        await server.happen(2, type="sold")
        await server.happen(2, app="another")
        for _ in range(4):
            await yield_to_loop(30)
            await agent.settle()
        await server.end()
        await server.happen()
        await agent.settle()
        assert agent.keys() == [f"tracker/made/event:{number}" for number in (4, 5, 10)]
        assert server.asked == [3, 9], "it goes on behind what it was told that it need not hear"


async def test_an_agent_that_did_not_listen_does_not_receive_past_events(tmp_path: Path) -> None:
    server, clock = FakeServer(), FakeClock()
    async with Listening(tmp_path, server, sensor("made", MADE), clock=clock):
        await server.happen()
    async with Agent(tmp_path, clock, sensor("count", sf.every(seconds=1))):
        await server.happen(2)
    async with Listening(tmp_path, server, sensor("made", MADE), clock=clock) as agent:
        await server.happen()
        await agent.settle()
        assert agent.keys() == ["tracker/made/event:4"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=5))
def test_wherever_it_is_killed_every_event_fires_once(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("agent")
    fired: list[int] = []

    async def look(firing: Any) -> int:
        return int(firing.cause.removeprefix("event:"))

    async def subscribe() -> None:
        server, clock = FakeServer(), FakeClock()
        state = AgentStore(folder / "agent.db")
        state.set_position(EventPosition(number=0, mark=""))
        await state.writer.close()
        for count, patience in lives:
            agent = Listening(folder, server, sensor("made", MADE, look), clock=clock)
            clock.scheduler.clear()
            agent.host.start()
            await server.happen(count)
            await yield_to_loop(patience)
            await agent.kill()
        async with Listening(folder, server, sensor("made", MADE, look), clock=clock) as agent:
            for _ in range(10):
                await yield_to_loop(30)
                await agent.settle()
            fired.extend(entry["body"]["value"] for entry in agent.state.journal(kind="sample"))
            missed = agent.sensor_state("made").missed["interrupted"]
        assert sorted(fired) == sorted(set(fired))
        assert len(fired) + missed == len(server.events)

    run(subscribe)


async def test_a_server_that_is_away_or_refuses_is_tried_until_it_answers(tmp_path: Path) -> None:
    server = FakeServer()
    server.refusal = UnavailableError("away")
    async with Listening(tmp_path, server, sensor("made", MADE), clock=FakeClock()) as agent:
        assert not agent.host.describe_health()["subscribed"]
        server.refusal = InvalidError("no")
        await yield_to_loop(30)
        server.refusal = None
        await yield_to_loop(30)
        assert agent.host.describe_health()["subscribed"]
        await server.happen()
        await agent.settle()
        assert agent.keys() == ["tracker/made/event:1"]


async def test_a_server_that_ends_each_stream_at_once_is_called_once_a_pause(tmp_path: Path) -> None:
    server = FakeServer()
    server.ends_at_once = True
    await server.happen(2)
    with stamina.set_testing(False):
        async with Listening(tmp_path, server, sensor("made", MADE), clock=FakeClock()):
            await yield_to_loop(300)
            assert len(server.asked) < 10, "it waits in between"


@pytest.mark.parametrize("count", [2, 9])
async def test_a_list_that_was_started_over_is_followed_from_then_on_also_where_its_numbers_come_again(
    tmp_path: Path, count: int
) -> None:
    server = FakeServer()
    async with Listening(tmp_path, server, sensor("made", MADE), clock=FakeClock()) as agent:
        await server.happen(5)
        await agent.settle()
        server.events = [Event(id=n + 1, at=1000.0 + n, type="made", app="mnist") for n in range(count)]
        await server.end()
        assert [entry["body"]["now"] for entry in await agent.journal("subscription")] == [count]
        await server.happen()
        await agent.settle()
        before = [f"tracker/made/event:{number}" for number in range(1, 6)]
        assert agent.keys() == [*before, f"tracker/made/event:{count + 1}@1"]


async def test_events_that_the_server_has_forgotten_are_counted_in_the_journal(tmp_path: Path) -> None:
    server, clock = FakeServer(), FakeClock()
    async with Listening(tmp_path, server, sensor("made", MADE), clock=clock) as agent:
        await server.happen(2)
        await agent.settle()
    await server.happen(10)
    server.events, server.gone = server.events[8:], 8
    async with Listening(tmp_path, server, sensor("made", MADE), clock=clock) as agent:
        (entry,) = [event for event in await agent.journal("missed") if event["subject"] == "events"]
        assert entry["body"] == {"reason": "gone", "cause": "event:3", "count": 6}
        assert agent.keys() == [f"tracker/made/event:{number}" for number in (9, 10, 11, 12)]


async def test_a_backlog_is_taken_in_blocks_and_what_finds_no_capacity_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_subscriber, "BACKLOG_TIMEOUT_S", 0.0)

    server, clock, hold = FakeServer(), FakeClock(), asyncio.Event()

    async def slow(_firing: Any) -> int:
        await hold.wait()
        return 1

    slow_one = sensor("slow", MADE, slow, most_waiting=10)
    async with Listening(tmp_path, server, slow_one, sensor("quick", MADE), clock=clock) as agent:
        await server.happen(250)
        for _ in range(10):
            await yield_to_loop(30)
            await agent.settle()
        assert agent.sensor_state("quick").fired == 250
        assert agent.sensor_state("slow").missed["full"] == 250 - 11
        hold.set()
        await agent.settle()
        assert agent.sensor_state("slow").fired == 11
        assert agent.state.position is not None
        assert agent.state.position.number == 250


class Wants:
    """A strategy that wants something of each sample."""

    def decide(self, sample: Any) -> Decisions:
        key = f"{sample.agent}/{sample.sensor}/{sample.cause}"
        return Decisions(deliveries=(Delivery(queue="again", kind="intent", key=key, at=sample.at, body="{}"),))


def event(number: int, type: str, subject: str = "", app: str = "mnist", **data: Any) -> Event:
    return Event(id=number, at=1.0, type=type, app=app, subject=subject, data=data)


async def test_a_sensor_does_not_fire_on_what_itself_led_to_unless_it_says_so(tmp_path: Path) -> None:
    mine = frozenset({"again"})
    sensors = [
        sensor("done", sf.on_event("action.succeeded"), strategies=mine),
        sensor("asked", sf.on_event("action.succeeded", strategy="again"), strategies=mine),
        sensor("felt", sf.on_event("sample")),
    ]
    async with Agent(tmp_path, FakeClock(), *sensors, decider=Wants()) as agent:
        await agent.host.receive_events(
            [
                event(1, "action.succeeded", agent="tracker", strategy="again"),
                event(2, "action.succeeded", agent="tracker", strategy="other"),
                event(3, "action.succeeded", agent="checker", strategy="again"),
                event(4, "sample", "agent/tracker", sensor="felt"),
                event(5, "sample", "agent/tracker", sensor="done"),
                event(6, "sample", "agent/checker", sensor="felt"),
                event(7, "action.succeeded", app="another", agent="tracker", strategy="other"),
            ]
        )
        await agent.settle()
        causes: dict[str, list[str]] = {name: [] for name in ("done", "asked", "felt")}
        for entry in await agent.journal("sample"):
            causes[entry["subject"]].append(entry["body"]["cause"])
        assert causes == {
            "done": ["event:2", "event:3"],
            "asked": ["event:1", "event:3"],
            "felt": ["event:5", "event:6"],
        }


async def test_a_chain_of_samples_that_lead_to_each_other_ends_and_that_is_counted(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock(), sensor("felt", sf.on_event("sample"))) as agent:
        chain = [event(hops + 1, "sample", "agent/checker", sensor="felt", hops=hops) for hops in range(20)]
        assert await agent.host.receive_events(chain) == MAX_HOPS
        assert agent.sensor_state("felt").missed["looped"] == 20 - MAX_HOPS


def test_wanted_are_the_events_of_its_own_application_unless_a_trigger_names_another() -> None:
    own = EventFilter.from_triggers([sf.on_event("b"), sf.on_event("a")], "mnist")
    assert (own.types, own.app) == (("a", "b"), "mnist")
    assert event(1, "a") in own
    assert event(1, "a", app="another") not in own
    both = EventFilter.from_triggers([sf.on_event("a"), sf.on_event("a", app="another")], "mnist")
    assert (both.types, both.app) == (("a",), None)
    assert event(1, "a", app="another") in both
    assert event(1, "a", app="") not in both
    assert not EventFilter.from_triggers([], "mnist")
    assert EventFilter.from_triggers([sf.on_event(f"t{number}") for number in range(60)], "mnist").types == ()


async def test_a_sensor_that_fails_again_and_again_is_reported_until_it_does_not(tmp_path: Path) -> None:
    clock, wrong = FakeClock(), True

    async def look(_firing: Any) -> int:
        if wrong:
            raise ValueError("the camera is off")
        return 1

    messages: list[str | None] = []
    every = sensor("look", sf.every(seconds=1), look)
    async with Agent(tmp_path, clock, every, report_trouble=messages.append):
        await clock.advance(2)
        assert messages == []
        await clock.advance(3)
    why = "The sensor 'look' fails repeatedly since 2026-09-21T14:13:21Z: ValueError: the camera is off"
    assert messages == [why]
    async with Agent(tmp_path, clock, every, report_trouble=messages.append) as agent:
        wrong = False
        await clock.advance(1)
        await agent.settle()
    assert messages == [why, why, None]
