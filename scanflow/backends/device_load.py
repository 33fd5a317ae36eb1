"""How busy the GPU of an attempt was lately, and what power it took: from readings of its driver. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

WINDOW_S: Final = 60.0


class LoadReading(NamedTuple):
    """What a driver said of a device at a time, in seconds on any clock."""

    at: float
    busy_share: float | None
    power_w: float | None


class RecentLoad:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._readings: deque[LoadReading] = deque()

    def add(self, reading: LoadReading) -> None:
        self._readings.append(reading)
        while self._readings[0].at < reading.at - WINDOW_S:
            self._readings.popleft()

    def compute_busy_share(self, window_s: float = WINDOW_S) -> float | None:
        """Return the share of the last ``window_s`` in which it computed; None: it did not say."""
        return compute_mean(reading.busy_share for reading in self._list_since(window_s))

    def compute_power_w(self) -> float | None:
        return compute_mean(reading.power_w for reading in self._readings)

    def _list_since(self, window_s: float) -> list[LoadReading]:
        return [reading for reading in self._readings if reading.at >= self._readings[-1].at - window_s]


def compute_mean(numbers: Iterable[float | None]) -> float | None:
    """Return the mean of the numbers that are known; None: none is."""
    summands = [number for number in numbers if number is not None]
    return sum(summands) / len(summands) if summands else None
