"""When an agent's next heartbeat is sent."""

from __future__ import annotations

import asyncio

import pytest

from scanflow_agents.host.heartbeat_pace import WATCHED_S, HeartbeatPace


async def measure_wait(pace: HeartbeatPace, *, since_s: float, fires: bool = True) -> float:
    loop = asyncio.get_running_loop()
    pace.last = loop.time() - since_s
    if fires:
        pace.note_firing()
    began = loop.time()
    await pace.wait()
    return loop.time() - began


@pytest.mark.parametrize(
    ("since_s", "is_watched", "fires", "least_s", "most_s"),
    [
        (60.0, False, True, 0.0, 1.5),  # a firing is told at once
        (28.5, False, True, 1.4, 3.0),  # but no more often than every 30 s
        (0.0, True, True, WATCHED_S - 0.1, 2.0),  # unless somebody looks
        (60.0, True, True, 0.0, 0.4),
    ],
)
def test_a_heartbeat_follows_a_firing(
    since_s: float, is_watched: bool, fires: bool, least_s: float, most_s: float
) -> None:
    async def measure() -> float:
        pace = HeartbeatPace(30.0)
        pace.is_watched = is_watched
        return await measure_wait(pace, since_s=since_s, fires=fires)

    assert least_s <= asyncio.run(measure()) <= most_s


def test_without_a_firing_the_interval_passes() -> None:
    async def measure() -> list[float]:
        pace = HeartbeatPace(0.3)
        first = await measure_wait(pace, since_s=60.0)
        return [first, await measure_wait(pace, since_s=60.0, fires=False)]

    first, second = asyncio.run(measure())
    assert first < 0.3 <= second
