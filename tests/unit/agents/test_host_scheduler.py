"""Alarms on APScheduler: never early, once for several due times that passed, and late by its grace."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.triggers import Date, Interval
from scanflow_agents.host.scheduler import ApsScheduler, DueTimes
from scanflow_agents.host.sensor_state import TriggerState


def make_state(trigger: Interval | Date, anchor: float = 0.0) -> TriggerState:
    return TriggerState(trigger=trigger, anchor=anchor, accounted=anchor)


def make_time(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


@given(st.floats(0.01, 5e5), st.floats(0, 400), st.floats(1e9, 2e9), st.floats(0, 1e6))
def test_a_due_time_comes_never_early_and_those_that_passed_are_stepped_over(
    seconds: float, jitter: float, anchor: float, ahead: float
) -> None:
    times = DueTimes(make_state(sf.every(seconds=seconds, jitter=min(jitter, 20 * seconds)), anchor), "s")
    now = make_time(anchor + ahead)
    following = times.get_next_fire_time(None, now)
    assert following is not None
    assert following > now - timedelta(microseconds=1)
    newest = times.get_next_fire_time(make_time(anchor), now)
    assert newest is not None
    if newest <= now:
        assert times.get_next_fire_time(newest, now) == following, "one step to the newest, the next one lies ahead"
    else:
        assert newest == following


def test_a_date_that_is_accounted_for_is_over() -> None:
    once = TriggerState(trigger=sf.at(make_time(1e9)), anchor=0.0, accounted=1e9)
    assert DueTimes(once, "s").get_next_fire_time(None, make_time(1e9 - 5)) is None


async def test_alarms_ring_at_their_due_times_and_go_on_when_one_raises() -> None:
    scheduler, rang, enough = ApsScheduler(), list[float](), asyncio.Event()
    begin = round(time.time(), 3)
    good, bad = make_state(sf.every(seconds=0.02), begin), make_state(sf.every(seconds=0.01), begin)

    def ring(late: bool) -> None:
        due = good.take(time.time(), late=late, seed="s")
        assert due is not None, "never early"
        rang.append(due)
        if len(rang) == 3:
            enough.set()

    def take_broken(late: bool) -> None:
        bad.take(time.time(), late=late, seed="s")
        raise RuntimeError("a defect")

    scheduler.add("broken", DueTimes(bad, "s"), take_broken, grace_s=60)
    scheduler.add("good", DueTimes(good, "s"), ring, grace_s=60)
    scheduler.start()
    await enough.wait()
    scheduler.check_clock()
    scheduler.stop()
    assert rang == sorted(set(rang))
    assert good.taken == len(rang)


class Stalled(DueTimes):
    """As a loop finds them that was busy for a day."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        return super().get_next_fire_time(previous_fire_time, now if previous_fire_time else now - timedelta(days=1))


@pytest.mark.parametrize(("grace_s", "reported"), [(0.5, True), (3600.0, False)])
async def test_what_came_later_than_the_grace_is_reported_so_once(grace_s: float, reported: bool) -> None:
    scheduler, late = ApsScheduler(), asyncio.Queue[bool]()
    hourly = make_state(sf.every(hours=1), time.time() - 3600.0 * 24 - 1800)

    def ring(is_late: bool) -> None:
        hourly.take(time.time(), late=is_late, seed="s")
        late.put_nowait(is_late)

    scheduler.add("hourly", Stalled(hourly, "s"), ring, grace_s=grace_s)
    scheduler.start()
    assert await late.get() is reported
    scheduler.stop()
    assert late.empty()
    assert (hourly.taken, hourly.late) == ((0, 24) if reported else (1, 23))


async def test_an_alarm_that_is_added_again_rings_at_its_new_moment() -> None:
    scheduler, rang = ApsScheduler(), asyncio.Event()
    scheduler.add("one", DueTimes(make_state(sf.every(hours=2), time.time()), "s"), lambda _: None, grace_s=60)
    scheduler.start()
    soon = DueTimes(make_state(sf.every(seconds=0.01), time.time()), "s")
    scheduler.add("one", soon, lambda _: rang.set(), grace_s=60)
    await rang.wait()
    scheduler.stop()
