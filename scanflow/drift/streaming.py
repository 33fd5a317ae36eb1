"""Detectors of change in a stream of numbers, read one by one: errors of a model, latencies, a feature.

Each needs bounded memory. ``update`` takes a number and says whether the stream has changed; if so, the detector goes
on with the newest numbers only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from scanflow.errors import InvalidError, did_you_mean

__all__ = ["ADWIN", "KSWIN", "Change", "PageHinkley", "ScaledStream", "StreamDetector", "detect_changes"]

WARM_UP = 100
"""Number of values from which the unit of a stream is derived."""


class StreamDetector(Protocol):
    """Reads numbers one by one."""

    def update(self, value: float) -> bool:
        """Process a number; return whether the stream has changed."""
        ...


class PageHinkley:
    """A cumulative sum of deviations from the mean (Page, 1954): the quickest for a mean that rises, with no window."""

    def __init__(self, *, delta: float = 0.005, threshold: float = 50.0, least: int = 30) -> None:
        """Alarm when the sum is ``threshold`` above its minimum.

        Args:
            delta: Rises of less than this, in the unit of the values, do not count.
            threshold: In the unit of the values: higher is slower, with fewer false alarms.
            least: So many numbers are taken before any alarm.
        """
        if threshold <= 0 or least < 1:
            raise InvalidError(
                f"threshold={threshold} and least={least} must be above 0. Give values such as 50 and 30."
            )
        self._delta, self._threshold, self._least = delta, threshold, least
        self._reset()

    def _reset(self) -> None:
        self._count, self._mean, self._sum, self._lowest = 0, 0.0, 0.0, 0.0

    def update(self, value: float) -> bool:
        """Process a number; return whether the stream has changed."""
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum += value - self._mean - self._delta
        self._lowest = min(self._lowest, self._sum)
        changed = self._count >= self._least and self._sum - self._lowest > self._threshold
        if changed:
            self._reset()
        return changed


class ADWIN:
    """A window without change (Bifet and Gavaldà, 2007): it is cut where two parts have the most different means.

    The window is kept as exponentially larger buckets, so n numbers take O(log n) memory.
    """

    MOST_BUCKETS = 5

    def __init__(self, *, delta: float = 0.002, every: int = 32) -> None:
        """Alarm with a probability of at most ``delta`` in a stream that does not change; test at each ``every``-th."""
        if not 0 < delta < 1:
            raise InvalidError(f"delta={delta} is not between 0 and 1. Give a value such as 0.002.")
        self._delta, self._every, self._seen = delta, every, 0
        self._rows: list[deque[tuple[float, float]]] = [deque()]
        """Of each size 2^i, the newest last: (sum, sum of squared deviations)."""

    @property
    def width(self) -> int:
        """The number of values in the window."""
        return sum(len(row) << at for at, row in enumerate(self._rows))

    @property
    def mean(self) -> float:
        """The mean of the window; 0 when it is empty."""
        return sum(total for row in self._rows for total, _ in row) / max(self.width, 1)

    def update(self, value: float) -> bool:
        """Process a number; return whether the stream has changed."""
        self._seen += 1
        self._rows[0].append((value, 0.0))
        for at, row in enumerate(self._rows):
            if len(row) <= self.MOST_BUCKETS:
                break
            (first, spread), (second, other) = row.popleft(), row.popleft()
            if at + 1 == len(self._rows):
                self._rows.append(deque())
            apart = (first - second) / 2**at
            self._rows[at + 1].append((first + second, spread + other + apart**2 * 2**at / 2))
        return self._seen % self._every == 0 and self._drop_before_change()

    def _drop_before_change(self) -> bool:
        """Drop the values before the split whose two parts' means differ most, if they differ significantly."""
        buckets = [(1 << at, *bucket) for at, row in reversed(list(enumerate(self._rows))) for bucket in row]
        n, total = sum(size for size, _, _ in buckets), sum(subtotal for _, subtotal, _ in buckets)
        if n < 10:
            return False
        mean = total / n
        variance = sum(spread + size * (subtotal / size - mean) ** 2 for size, subtotal, spread in buckets) / n
        log = math.log(2 * math.log(n) / self._delta)
        old, cumulated, furthest, dropped = 0, 0.0, 1.0, 0
        for count, (size, subtotal, _) in enumerate(buckets[:-1], start=1):
            old, cumulated = old + size, cumulated + subtotal
            if min(old, n - old) < 5:
                continue
            harmonic = 1 / (1 / old + 1 / (n - old))
            bound = math.sqrt(2 / harmonic * variance * log) + 2 / (3 * harmonic) * log
            apart = abs(cumulated / old - (total - cumulated) / (n - old)) / bound
            if apart > furthest:
                furthest, dropped = apart, count
        for _ in range(dropped):
            next(row for row in reversed(self._rows) if row).popleft()
        return dropped > 0


class KSWIN:
    """The newest numbers of a window against the rest of it, by the Kolmogorov-Smirnov test: sees changes of any kind.

    After Raab et al. (2020), with all of the rest in place of a draw from it, and several sizes of what is newest: few
    numbers show a large change soon, many show a small one at all.
    """

    MIN_VALUES = 100

    def __init__(
        self, *, level: float = 1e-5, window: int = 600, newest: Sequence[int] = (30, 150), every: int = 5
    ) -> None:
        """Alarm where the smallest of the tests' p-values, times their number, is at most ``level``.

        Args:
            level: 0 to 1. Each look has its own, so it is far below how often an alarm may be false.
            window: How many numbers are kept.
            newest: How many of them are compared with the others: a third of the window at most.
            every: It looks after so many numbers each time.
        """
        if not 0 < level < 1 or not newest or min(newest) < 2 or 3 * max(newest) > window or every < 1:
            raise InvalidError(
                f"level={level}, newest={newest} of window={window}, every={every} are not valid together. Give "
                "values such as 1e-5, (30, 150) of 600, 5."
            )
        self._level, self._newest, self._every, self._seen = level, sorted(newest), every, 0
        self._values: deque[float] = deque(maxlen=window)

    def update(self, value: float) -> bool:
        """Process a number; return whether the stream has changed."""
        self._values.append(value)
        self._seen += 1
        if self._seen % self._every or len(self._values) < max(self.MIN_VALUES, 3 * self._newest[0]):
            return False
        values = np.array(self._values)
        sizes = [size for size in self._newest if 3 * size <= len(values)]
        changed = len(sizes) * min(_compute_ks_p(values[:-size], values[-size:]) for size in sizes) <= self._level
        if changed:
            self._values = deque(values[-self._newest[0] :].tolist(), maxlen=self._values.maxlen)
        return changed


def _compute_ks_p(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the p-value of Kolmogorov and Smirnov's test, by Stephens' approximation."""
    both = np.concatenate([first, second])
    of_first, of_second = (np.searchsorted(np.sort(part), both, side="right") / len(part) for part in (first, second))
    root = math.sqrt(len(first) * len(second) / len(both))
    return float(special.kolmogorov((root + 0.12 + 0.11 / root) * np.abs(of_first - of_second).max()))


class _TwoSidedPageHinkley:
    """Page and Hinkley's test for a mean that rises or falls, of numbers whose deviation is 1."""

    def __init__(self) -> None:
        self._up, self._down = (PageHinkley(delta=0.25, threshold=20.0) for _ in range(2))

    def update(self, value: float) -> bool:
        return self._up.update(value) | self._down.update(-value)


DETECTORS: Mapping[str, Callable[[], StreamDetector]] = {
    "adwin": ADWIN,
    "kswin": KSWIN,
    "page-hinkley": _TwoSidedPageHinkley,
}


class ScaledStream:
    """A detector for numbers of any unit: they are scaled by the deviation of the first ``WARM_UP``."""

    def __init__(self, detector: str = "adwin") -> None:
        """Follow a stream by ``adwin``, ``kswin`` or ``page-hinkley``.

        Raises:
            InvalidError: no such detector.
        """
        if detector not in DETECTORS:
            raise InvalidError(
                f"There is no stream detector {detector!r}.{did_you_mean(detector, DETECTORS)} "
                f"There are {', '.join(DETECTORS)}."
            )
        self._watch = DETECTORS[detector]()
        self._first: list[float] = []
        self._scale: tuple[float, float] | None = None
        self._sum, self._count = 0.0, 0

    def update(self, value: float) -> bool:
        """Process a number; return whether the stream has changed."""
        self._sum, self._count = self._sum + value, self._count + 1
        if self._scale is not None:
            return self._update_scaled(value)
        self._first.append(value)
        if len(self._first) < WARM_UP:
            return False
        self._scale = float(np.mean(self._first)), float(np.std(self._first)) or 1.0
        return max(map(self._update_scaled, self._first))  # of each, as each is to be told

    @property
    def mean(self) -> float:
        """The mean of all numbers."""
        return self._sum / max(self._count, 1)

    def _update_scaled(self, value: float) -> bool:
        middle, deviation = self._scale or (0.0, 1.0)
        return self._watch.update((value - middle) / deviation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A detected change in a stream."""

    row: int
    """Index from 0; the change itself happened earlier."""

    before: float
    """The mean of the numbers since the last change."""

    after: float
    """The mean of the numbers up to the next change."""


def detect_changes(values: Sequence[float] | NDArray[Any], detector: str = "adwin") -> list[Change]:
    """Find the changes in a sequence of numbers: by ``adwin``, ``kswin`` or ``page-hinkley``.

    Raises:
        InvalidError: no such detector, or too few numbers.
    """
    watch, numbers = ScaledStream(detector), np.asarray(values, np.float64)
    if len(numbers) <= WARM_UP:
        raise InvalidError(f"There are {len(numbers)} numbers, but more than {WARM_UP} are needed. Wait for more.")
    rows = [at for at, value in enumerate(numbers.tolist()) if watch.update(value)]
    ends = [0, *rows, len(numbers)]
    return [
        Change(row=row, before=float(numbers[start:row].mean()), after=float(numbers[row:end].mean()))
        for start, row, end in zip(ends, rows, ends[2:], strict=False)
    ]
