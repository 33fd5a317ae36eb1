"""The agent's cycle: what fires, what is missed and why, and what a kill at any moment leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.agent.agent_records import Event, Sample, SensorCall
from scanflow.app.triggers import Date
from scanflow.errors import NotFoundError, UnavailableError
from scanflow_agents.host.control_loop import MAX_ATTEMPTS, Decisions, HostedSensor, SensorResult
from scanflow_agents.host.scheduler import DueTimes
from scanflow_agents.host.sensor_state import FiringRequest, SensorState
from scanflow_agents.host.trigger_times import count_between
from tests.unit.agents.host_harness import START, Agent, FakeClock, run, sensor, yield_to_loop

SECOND = sf.every(seconds=1)


class Gate:
    """A sensor's function that waits until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.open = asyncio.Event()
        self.stubborn = False

    async def __call__(self, _firing: FiringRequest) -> int:
        self.begun += 1
        while not self.open.is_set():
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
        return self.begun


def is_accounted(sensor_state: SensorState) -> bool:
    """Say whether every due time so far is fired or counted: what must hold at any moment."""
    leaf = sensor_state.leaves[""]
    due = count_between(leaf.trigger, 0.0, leaf.accounted, anchor=leaf.anchor)
    missed = sensor_state.missed
    assert leaf.taken == sensor_state.fired + missed["running"], "taken is fired, or refused since the one before runs"
    return due == leaf.taken + missed["down"] + missed["late"]


async def test_a_schedule_fires_and_what_its_strategy_wants_is_delivered(tmp_path: Path) -> None:
    assert datetime.fromtimestamp(START, UTC).isoformat() == "2026-09-21T14:13:20+00:00"
    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("count", SECOND)) as agent:
        await clock.advance(3)
        await agent.settle()
        assert agent.sensor_state("count").fired == 3
        assert is_accounted(agent.sensor_state("count"))
        assert agent.keys() == [f"tracker/count/interval:2026-09-21T14:13:2{n}Z" for n in (1, 2, 3)]
        samples = await agent.journal("sample")
        assert [entry["body"]["value"] for entry in samples] == [1, 1, 1]
        assert len(await agent.journal("decision")) == 3


async def test_a_firing_that_still_runs_makes_the_next_a_counted_miss(tmp_path: Path) -> None:
    clock, gate = FakeClock(), Gate()
    async with Agent(tmp_path, clock, sensor("slow", SECOND, gate)) as agent:
        await clock.advance(3)
        assert (agent.sensor_state("slow").fired, agent.sensor_state("slow").missed["running"]) == (1, 2)
        gate.open.set()
        await agent.settle()
        await clock.advance(1)
        assert (agent.sensor_state("slow").fired, agent.sensor_state("slow").missed["running"]) == (2, 2)
        assert is_accounted(agent.sensor_state("slow"))
        reasons = [entry["body"]["reason"] for entry in await agent.journal("missed")]
        assert reasons == ["running", "running"]


async def test_a_sensor_that_hangs_is_given_up_counted_and_not_begun_again_until_it_ends(tmp_path: Path) -> None:
    clock, gate = FakeClock(), Gate()
    gate.stubborn = True
    async with Agent(tmp_path, clock, sensor("hang", SECOND, gate, limit_s=2.5)) as agent:
        await clock.advance(6)
        sensor_state = agent.sensor_state("hang")
        assert (sensor_state.fired, sensor_state.abandoned, sensor_state.errors, sensor_state.missed["running"]) == (
            1,
            1,
            1,
            5,
        )
        (entry,) = await agent.journal("sample")
        assert entry["body"]["error"] == "The sensor exceeded its limit of 2.5 s, and was abandoned."
        gate.open.set()
        await agent.settle()
        await clock.advance(1)
        assert (gate.begun, sensor_state.fired) == (2, 2)
        assert is_accounted(sensor_state)


class MuteError(Exception):
    def __str__(self) -> str:
        raise KeyError("nothing to say")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such column"), "ValueError: no such column"),
        (ValueError("half of a \ud83d"), "ValueError: half of a \\ud83d"),
        (UnicodeError("\udcff"), "UnicodeError: \\udcff"),
        (MuteError(), "MuteError"),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
async def test_whatever_the_text_of_an_error_is_it_is_reported_and_the_sensor_goes_on(
    tmp_path: Path, error: Exception, message: str
) -> None:
    async def raise_error(firing: FiringRequest) -> int:
        raise error

    clock = FakeClock()
    sensors = sensor("bad", SECOND, raise_error), sensor("asked", sf.on_call(), raise_error), sensor("good", SECOND)
    async with Agent(tmp_path, clock, *sensors) as agent:
        for n in range(3):
            await agent.host.call("asked", SensorCall(), key=f"k{n}")
        await clock.advance(3)
        assert (agent.sensor_state("bad").fired, agent.sensor_state("bad").errors) == (3, 3)
        assert (agent.sensor_state("asked").fired, agent.sensor_state("asked").errors) == (3, 3)
        samples = [entry for entry in await agent.journal("sample") if entry["subject"] != "good"]
        assert [entry["body"]["error"] for entry in samples] == [message] * 6
        assert len(agent.keys()) == agent.sensor_state("good").fired == 3
        assert agent.state.load_waiting_calls() == []


@pytest.mark.parametrize("value", [{1, 2}, "\ud83d", {"\ud83d": 1}, [["a", "\udcff"]]])
async def test_a_value_that_cannot_be_written_as_json_is_an_error_of_the_sensor(tmp_path: Path, value: Any) -> None:
    async def odd(firing: FiringRequest) -> Any:
        return value

    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("odd", SECOND, odd)) as agent:
        await clock.advance(2)
        entries = await agent.journal("sample")
        assert [entry["body"]["value"] for entry in entries] == [None, None]
        for entry in entries:
            assert entry["body"]["error"].startswith("The sensor's result cannot be serialized as JSON: ")
            entry["body"]["error"].encode()
        assert agent.sensor_state("odd").errors == 2


async def test_what_a_strategy_says_of_its_failure_can_be_written_and_sent(tmp_path: Path) -> None:
    class Odd:
        def decide(self, sample: Sample) -> Decisions:
            if sample.sensor == "raises":
                raise MuteError
            return Decisions(errors={"count": "half of a \ud83d"})

    clock = FakeClock()
    sensors = (sensor("returns", SECOND), sensor("raises", SECOND))
    async with Agent(tmp_path, clock, *sensors, decider=Odd()) as agent:
        await clock.advance(1)
        assert [entry["body"]["error"] for entry in await agent.journal("error")] == ["half of a \\ud83d", "MuteError"]
        await clock.advance(1)
        assert agent.sensor_state("raises").fired == 2, "it goes on"
        assert agent.sensor_state("returns").trouble == "strategy 'count': half of a \\ud83d"
        assert agent.sensor_state("returns").errors == 2, "a rule that fails each time counts as its sensor's errors"


async def test_a_defect_in_what_a_firing_leaves_frees_its_sensor_for_what_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, gate = FakeClock(), Gate()
    async with Agent(tmp_path, clock, sensor("asked", sf.on_call(), gate)) as agent:
        for n in range(3):
            await agent.host.call("asked", SensorCall(), key=f"k{n}")
        agent.outbox.defects = 1
        gate.open.set()
        await agent.settle()
        assert gate.begun == 3
        assert agent.keys() == ["tracker/asked/call:k1", "tracker/asked/call:k2"]
    assert "a defect" in caplog.text, "it is to be seen"


async def test_a_defect_in_what_a_firing_leaves_at_its_limit_still_gives_it_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, gate = FakeClock(), Gate()
    async with Agent(tmp_path, clock, sensor("hang", sf.on_call(), gate, limit_s=2.0)) as agent:
        for n in range(2):
            await agent.host.call("hang", SensorCall(), key=f"k{n}")
        agent.outbox.defects = 1
        with pytest.raises(RuntimeError, match="a defect"):
            await clock.advance(2)
        await yield_to_loop()
        assert gate.begun == 2, "the next one has its turn"


# -- lateness


async def test_after_a_stall_the_newest_due_time_fires_and_the_others_are_counted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("count", SECOND)) as agent:
        clock.now += 10
        agent.host.loop.ring([("count", "")])
        await agent.settle()
        sensor_state = agent.sensor_state("count")
        assert (sensor_state.fired, sensor_state.missed["late"]) == (1, 9)
        assert agent.keys() == ["tracker/count/interval:2026-09-21T14:13:30Z"]
        clock.now += 10
        agent.host.loop.ring([("count", "")], late=True)
        assert (sensor_state.fired, sensor_state.missed["late"]) == (1, 19), "later than the grace, none fires"


async def test_jitter_moves_firings_and_loses_none(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("spread", sf.every(seconds=10, jitter=9))) as agent:
        await clock.advance(109)
        sensor_state = agent.sensor_state("spread")
        assert sensor_state.fired == 10
        assert sum(sensor_state.missed.values()) == 0
        assert is_accounted(sensor_state)


# -- restarts


@pytest.mark.parametrize(("misfire", "fired", "down"), [("run_once", 4, 6), ("skip", 3, 7)])
async def test_what_fell_due_while_the_agent_was_down_is_counted_and_handled_as_wanted(
    tmp_path: Path, misfire: str, fired: int, down: int
) -> None:
    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("count", SECOND, misfire=misfire)) as agent:
        await clock.advance(3)
    clock.now += 7
    async with Agent(tmp_path, clock, sensor("count", SECOND, misfire=misfire)) as agent:
        sensor_state = agent.sensor_state("count")
        assert (sensor_state.fired, sensor_state.missed["down"]) == (fired, down)
        assert is_accounted(sensor_state)


async def test_a_firing_cut_short_is_begun_again_under_the_same_cause_but_not_for_ever(tmp_path: Path) -> None:
    clock = FakeClock()
    for attempt in range(1, 6):
        gate = Gate()
        agent = await Agent(tmp_path, clock, sensor("slow", sf.every(hours=1), gate)).__aenter__()
        if attempt == 1:
            await clock.advance(3600)
        await agent.settle()
        sensor_state = agent.sensor_state("slow")
        assert gate.begun == (1 if attempt <= 3 else 0)
        assert (sensor_state.fired, sensor_state.missed["interrupted"]) == (1, 0 if attempt <= 3 else 1)
        await agent.kill()


async def test_a_rewritten_schedule_starts_over_and_keeps_its_counts(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("count", SECOND)):
        await clock.advance(3)
    clock.now += 2
    async with Agent(tmp_path, clock, sensor("count", sf.every(minutes=1))) as agent:
        sensor_state = agent.sensor_state("count")
        assert (sensor_state.fired, sensor_state.missed["down"]) == (3, 2)
        await clock.advance(60)
        assert sensor_state.fired == 4


async def test_a_date_that_passed_before_it_was_ever_seen_is_a_miss(tmp_path: Path) -> None:
    clock = FakeClock()
    when = datetime.fromtimestamp(START - 60, UTC)
    async with Agent(tmp_path, clock, sensor("once", sf.at(when))) as agent:
        assert (agent.sensor_state("once").fired, agent.sensor_state("once").missed["down"]) == (0, 1)
    async with Agent(tmp_path, clock, sensor("once", sf.at(when))) as agent:
        assert agent.sensor_state("once").missed["down"] == 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.floats(0.1, 5)),
        st.tuples(st.just("kill"), st.floats(0, 5)),
        st.tuples(st.just("kill at once"), st.floats(0, 5)),
        st.tuples(st.just("stall"), st.floats(0.1, 5)),
        st.tuples(st.just("hold"), st.just(0.0)),
        st.tuples(st.just("release"), st.just(0.0)),
    ),
    max_size=12,
)


@given(steps, st.sampled_from(["run_once", "skip"]))
def test_through_any_kills_stalls_and_slowness_every_due_time_is_accounted_for_and_no_intent_repeated(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, float]], misfire: str
) -> None:
    folder = tmp_path_factory.mktemp("agent")
    delivered: list[str] = []
    held = False

    async def tell() -> None:
        nonlocal held
        clock = FakeClock()

        async def life() -> tuple[Agent, Gate]:
            gate = Gate()
            if not held:
                gate.open.set()
            agent = Agent(folder, clock, sensor("count", SECOND, gate, misfire=misfire))
            return await agent.__aenter__(), gate

        agent, gate = await life()
        for what, seconds in story:
            match what:
                case "advance":
                    await clock.advance(seconds)
                    await agent.settle()
                case "stall":
                    clock.now += seconds
                case "hold":
                    held = True
                    gate.open.clear()
                case "release":
                    held = False
                    gate.open.set()
                    await agent.settle()
                case _:
                    if what == "kill at once":
                        await clock.advance(1)
                    await agent.kill()
                    delivered.extend(agent.keys())
                    clock.now += seconds
                    agent, gate = await life()
            assert is_accounted(agent.sensor_state("count"))
        gate.open.set()
        await agent.settle()
        delivered.extend(agent.keys())
        causes = [entry["body"]["cause"] for entry in agent.state.journal(kind="sample")]
        assert len(causes) == len(set(causes)), "a firing leaves its sample once"
        assert set(delivered) == {f"tracker/count/{cause}" for cause in causes}, "and what it wants is delivered"
        assert is_accounted(agent.state.load_sensor_states()["count"])
        await agent.host.stop(patience_s=0)

    run(tell)


# -- a clock that was ahead

TWO_HOURS_S = 7200.0


def is_counted(sensor_state: SensorState) -> bool:
    """Say whether what is counted of each schedule is the number of its due times: what must hold at any moment."""
    leaves = sensor_state.leaves.values()
    return all(
        leaf.taken + leaf.late + leaf.down == count_between(leaf.trigger, 0.0, leaf.accounted, anchor=leaf.anchor)
        for leaf in leaves
    )


SCHEDULES = [sf.every(minutes=1), sf.every(minutes=1, jitter=20), sf.cron("* * * * *")]


@pytest.mark.parametrize("trigger", SCHEDULES, ids=["interval", "jitter", "cron"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_agent_first_started_with_its_clock_ahead_fires_again_once_that_is_set_back(
    tmp_path: Path, trigger: Any, restarted: bool
) -> None:
    clock = FakeClock(START + TWO_HOURS_S)
    agent = await Agent(tmp_path, clock, sensor("count", trigger)).__aenter__()
    await clock.advance(200)
    fired = agent.sensor_state("count").fired
    assert fired == 3
    clock.now = START + 200
    if restarted:
        await agent.settle()
        await agent.kill()
        agent = await Agent(tmp_path, clock, sensor("count", trigger)).__aenter__()
    agent.host.check_clock()
    await clock.advance(200)
    sensor_state = agent.sensor_state("count")
    assert sensor_state.fired in {fired + 3, fired + 4}
    assert sum(sensor_state.missed.values()) == 0
    assert is_counted(sensor_state)
    assert START < (agent.host.build_reports()[0].next or 0.0) <= clock.now + 80
    (entry,) = await agent.journal("clock")
    assert (entry["subject"], entry["body"]["reason"]) == ("count", "clock")
    assert TWO_HOURS_S - 200 <= entry["body"]["seconds"] <= TWO_HOURS_S
    assert is_counted((await load_states(agent))["count"])
    await agent.host.stop(patience_s=0)


async def load_states(agent: Agent) -> dict[str, SensorState]:
    await agent.settle()
    return agent.state.load_sensor_states()


@pytest.mark.parametrize("trigger", SCHEDULES, ids=["interval", "jitter", "cron"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_agent_where_the_clock_was_ahead_for_a_while_goes_on_in_its_own_grid(
    tmp_path: Path, trigger: Any, restarted: bool
) -> None:
    clock = FakeClock()
    agent = await Agent(tmp_path, clock, sensor("count", trigger)).__aenter__()
    await clock.advance(600)
    anchor = agent.sensor_state("count").leaves[""].anchor
    await agent.settle()
    await agent.kill()
    clock.now += TWO_HOURS_S  # it boots, and its clock is ahead
    agent = await Agent(tmp_path, clock, sensor("count", trigger)).__aenter__()
    await clock.advance(120)
    before = agent.sensor_state("count")
    fired, missed = before.fired, sum(before.missed.values())
    assert missed >= 118
    clock.now -= TWO_HOURS_S
    if restarted:
        await agent.settle()
        await agent.kill()
        agent = await Agent(tmp_path, clock, sensor("count", trigger)).__aenter__()
    agent.host.check_clock()
    await clock.advance(300)
    sensor_state = agent.sensor_state("count")
    assert sensor_state.fired in {fired + 4, fired + 5}
    assert sum(sensor_state.missed.values()) == missed, "what was counted stays counted, and nothing more is"
    assert sensor_state.leaves[""].anchor == anchor
    assert is_counted(sensor_state)
    assert len(await agent.journal("clock")) == 1
    await agent.host.stop(patience_s=0)


async def test_a_clock_that_is_a_little_ahead_repeats_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Agent(tmp_path, clock, sensor("count", SECOND)) as agent:
        await clock.advance(100)
        clock.now -= 50
        agent.host.check_clock()
        await clock.advance(50)
        assert agent.sensor_state("count").fired == 100
        await clock.advance(1)
        assert agent.sensor_state("count").fired == 101
        assert await agent.journal("clock") == []


async def test_what_was_looked_through_ahead_of_time_is_looked_through_again(tmp_path: Path) -> None:
    clock = FakeClock(START + TWO_HOURS_S)

    async def look(_firing: FiringRequest, _ledger: SensorState) -> SensorResult:
        return SensorResult(value=1, looked=clock.now)

    looks = HostedSensor(name="looks", trigger=sf.on_event("run.failed"), run=look)
    async with Agent(tmp_path, clock, looks) as agent:
        await agent.host.receive_events([Event(id=1, at=1.0, type="run.failed")])
        await agent.settle()
        clock.now = START
        agent.host.check_clock()
        assert agent.sensor_state("looks").looked == START
        assert len(await agent.journal("clock")) == 1


async def test_alarms_are_set_again_when_the_clock_was_set_back_and_only_then(tmp_path: Path) -> None:
    class Noted(FakeClock):
        set_for: list[tuple[str, float | None]] = []  # noqa: RUF012 - of this test alone

        def add(self, name: str, times: DueTimes, ring: Callable[[bool], None], *, grace_s: float) -> None:
            super().add(name, times, ring, grace_s=grace_s)
            self.set_for.append((name, self.find_next(name)))

    clock = Noted(START + TWO_HOURS_S)
    async with Agent(tmp_path, clock, sensor("a", SECOND), sensor("b", sf.every(minutes=1))) as agent:
        later = [("schedule-0", START + TWO_HOURS_S + 1), ("schedule-1", START + TWO_HOURS_S + 60)]
        assert clock.set_for == later
        agent.host.check_clock()
        assert clock.set_for == later
        clock.now = START
        agent.host.check_clock()
        assert clock.set_for[2:] == [("schedule-0", START + 1), ("schedule-1", START + 60)]


@given(
    st.sampled_from([*SCHEDULES, sf.every(hours=1), sf.at(datetime.fromtimestamp(START + 4000, UTC))]),
    st.lists(st.floats(-20_000, 20_000), max_size=12),
)
def test_however_the_clock_is_set_what_is_counted_adds_up_and_the_next_due_time_is_near(
    trigger: Any, jumps: list[float]
) -> None:
    now, sensor_state = START, SensorState(sensor="s", trigger=trigger)
    sensor_state.declare(trigger, now)
    most = 0
    for jump in jumps:
        now += jump
        sensor_state.rewind(now)
        (leaf,) = sensor_state.leaves.values()
        assert is_counted(sensor_state)
        assert leaf.accounted <= now + 60
        due = leaf.find_next_after(now)
        assert due is None or due > now
        if not isinstance(trigger, Date):
            assert due is not None
            assert due <= now + 60 + getattr(trigger, "seconds", 60)
        leaf.take(now, late=False, seed="s")
        assert is_counted(sensor_state)
        in_all = sum(sensor_state.missed.values()) + leaf.taken + sensor_state.taken
        assert in_all >= most, "nothing that was counted is forgotten"
        most = in_all


# -- calls and events


async def test_a_call_is_kept_queued_and_taken_once(tmp_path: Path) -> None:
    clock, seen = FakeClock(), list[Any]()

    async def note(firing: FiringRequest) -> Any:
        seen.append(firing.args)
        return list(firing.args)

    async with Agent(tmp_path, clock, sensor("check", sf.on_call(), note)) as agent:
        ids = [await agent.host.call("check", SensorCall(args=(n,)), key=f"k{n}") for n in (1, 2, 1)]
        await agent.settle()
        assert seen == [(1,), (2,)]
        assert ids[0] == ids[2] != ids[1]
        assert {entry["body"]["id"] for entry in await agent.journal("sample")} == set(ids)


async def test_calls_that_wait_survive_a_kill(tmp_path: Path) -> None:
    clock, gate = FakeClock(), Gate()
    agent = await Agent(tmp_path, clock, sensor("check", sf.on_call(), gate)).__aenter__()
    for n in range(3):
        await agent.host.call("check", SensorCall(args=(n,)), key=f"k{n}")
    await agent.kill()
    assert gate.begun == 1
    async with Agent(tmp_path, clock, sensor("check", sf.on_call())) as again:
        await again.settle()
        assert again.keys() == [f"tracker/check/call:k{n}" for n in range(3)]
        await again.host.call("check", SensorCall(), key="k1")
        await again.settle()
        assert len(again.keys()) == 3, "a call that was answered is not taken again"


async def test_calls_beyond_what_may_wait_are_refused_and_counted(tmp_path: Path) -> None:
    clock, gate = FakeClock(), Gate()
    async with Agent(tmp_path, clock, sensor("check", sf.on_call(), gate, most_waiting=2)) as agent:
        for n in range(3):
            await agent.host.call("check", SensorCall(), key=f"k{n}")
        with pytest.raises(UnavailableError, match="2 firings of the sensor 'check' are already queued"):
            await agent.host.call("check", SensorCall(), key="k3")
        assert agent.sensor_state("check").missed["full"] == 1


async def test_a_scheduled_sensor_is_fired_by_hand_but_not_called(tmp_path: Path) -> None:
    async with Agent(tmp_path, FakeClock(), sensor("count", SECOND)) as agent:
        with pytest.raises(NotFoundError, match="cannot be called"):
            await agent.host.call("count", SensorCall(), key="k")
        with pytest.raises(NotFoundError, match="Did you mean 'count'"):
            await agent.host.call("cuont", SensorCall(), key="k")
        await agent.host.call("count", SensorCall(), key="k", anyhow=True)
        await agent.settle()
        assert agent.keys() == ["tracker/count/fire:k"]
        assert agent.sensor_state("count").fired == 1


async def test_an_event_fires_the_sensors_that_want_it_once(tmp_path: Path) -> None:
    wanted = sensor("failed", sf.on_event("run.failed", workflow="training"))
    async with Agent(tmp_path, FakeClock(), wanted, sensor("count", SECOND)) as agent:
        events = [
            Event(id=1, at=1.0, type="run.failed", data={"workflow": "training"}),
            Event(id=2, at=1.0, type="run.failed", data={"workflow": "inference"}),
            Event(id=3, at=1.0, type="run.succeeded", data={"workflow": "training"}),
            Event(id=1, at=1.0, type="run.failed", data={"workflow": "training"}),
        ]
        assert await agent.host.receive_events(events) == 1
        await agent.settle()
        assert agent.keys() == ["tracker/failed/event:1"]


async def test_all_of_remembers_through_a_restart_what_has_fired(tmp_path: Path) -> None:
    clock = FakeClock()
    both = sf.all_of(sf.every(minutes=1), sf.on_event("label.added"))
    async with Agent(tmp_path, clock, sensor("both", both)) as agent:
        await agent.host.receive_events([Event(id=1, at=1.0, type="label.added")])
        assert agent.sensor_state("both").fired == 0
    async with Agent(tmp_path, clock, sensor("both", both)) as agent:
        await clock.advance(60)
        await agent.settle()
        assert agent.keys() == ["tracker/both/interval.0:2026-09-21T14:14:20Z"]
        await clock.advance(120)
        assert agent.sensor_state("both").fired == 1


async def test_a_call_that_kills_its_agent_each_time_is_given_up(tmp_path: Path) -> None:
    began: list[str] = []

    async def deadly(firing: FiringRequest) -> int:
        began.append(firing.cause)
        await asyncio.Event().wait()
        return 1

    clock, missed = FakeClock(), 0
    agent = Agent(tmp_path, clock, sensor("deadly", sf.on_call(), deadly))
    agent.host.start()
    await agent.host.call("deadly", SensorCall(), key="k")
    await yield_to_loop()
    await agent.settle()
    await agent.kill()
    for _ in range(5):
        agent = Agent(tmp_path, clock, sensor("deadly", sf.on_call(), deadly))
        agent.host.start()
        await yield_to_loop()
        await agent.settle()
        missed = agent.sensor_state("deadly").missed["interrupted"]
        await agent.kill()
    assert began == ["call:k"] * MAX_ATTEMPTS
    assert missed == 1
