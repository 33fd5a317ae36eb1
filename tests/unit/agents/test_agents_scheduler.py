"""Alarms on APScheduler: never early, and once for several moments that passed."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from scanflow_agents.scheduler import ApsAlarms, _Moments


@given(st.floats(1e9, 3e9), st.floats(0, 1e6))
def test_an_alarm_rings_not_before_its_moment_and_always_later_than_now(now: float, ahead: float) -> None:
    moment = now + ahead
    at = datetime.fromtimestamp(now, UTC)
    rings = _Moments(lambda _: moment).get_next_fire_time(None, at)
    assert rings is not None
    assert rings > at
    assert rings.timestamp() >= moment - 1e-6
    assert rings.timestamp() - max(moment, now) < 1e-5


def test_an_alarm_without_a_next_moment_is_over() -> None:
    assert _Moments(lambda _: None).get_next_fire_time(None, datetime.now(UTC)) is None


def test_alarms_ring_at_their_moments_and_go_on_when_one_raises() -> None:
    async def story() -> list[float]:
        alarms, rang, enough = ApsAlarms(), list[float](), asyncio.Event()
        begin = time.time()
        moments = [begin + 0.01 * number for number in range(1, 6)]

        def ring() -> None:
            rang.append(time.time())
            if rang[-1] >= moments[-1]:
                enough.set()

        def broken() -> None:
            raise RuntimeError("a defect")

        alarms.add("broken", lambda now: now + 0.001, broken)
        alarms.add("good", lambda now: next((one for one in moments if one > now), None), ring)
        alarms.start()
        async with asyncio.timeout(30):
            await enough.wait()
        alarms.look()
        alarms.stop()
        assert len(rang) <= len(moments)
        for number, at in enumerate(rang):
            assert at >= moments[number], "each ring has a moment of its own behind it"
        return rang

    found = asyncio.run(story())
    assert all(first < second for first, second in itertools.pairwise(found))


def test_an_alarm_that_is_added_again_rings_at_its_new_moment() -> None:
    async def story() -> None:
        alarms, rang = ApsAlarms(), asyncio.Event()
        soon = time.time() + 0.05
        alarms.add("schedule-0", lambda now: now + 7200, rang.set)
        alarms.start()
        alarms.add("schedule-0", lambda now: max(soon, now + 7200 * (now >= soon)), rang.set)
        async with asyncio.timeout(30):
            await rang.wait()
        alarms.stop()

    asyncio.run(story())
