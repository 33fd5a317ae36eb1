"""Detectors of change in a stream of numbers, one after the other: errors of a model, latencies, a feature.

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
from scipy import stats

from scanflow.errors import InvalidError, did_you_mean

WARM_UP = 100
"""So many numbers of a stream say what its unit is."""


class StreamDetector(Protocol):
    """Looks at numbers one by one."""

    def update(self, value: float) -> bool:
        """Take a number; return whether the stream has changed."""
        ...


class PageHinkley:
    """A cumulative sum of deviations from the mean (Page, 1954): the quickest for a mean that rises, with no window."""

    def __init__(self, *, delta: float = 0.005, threshold: float = 50.0, least: int = 30) -> None:
        """Alarm when the sum is ``threshold`` above its lowest.

        Args:
            delta: Rises of less than this, in the unit of the values, do not count.
            threshold: In the unit of the values: higher is slower, with fewer false alarms.
            least: So many numbers are taken before any alarm.
        """
        if threshold <= 0 or least < 1:
            raise InvalidError(f"threshold={threshold} and least={least} are above 0. Give 50 and 30, say.")
        self._delta, self._threshold, self._least = delta, threshold, least
        self._reset()

    def _reset(self) -> None:
        self._count, self._mean, self._sum, self._lowest = 0, 0.0, 0.0, 0.0

    def update(self, value: float) -> bool:
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum += value - self._mean - self._delta
        self._lowest = min(self._lowest, self._sum)
        changed = self._count >= self._least and self._sum - self._lowest > self._threshold
        if changed:
            self._reset()
        return changed


class ADWIN:
    """A window as long as it is alike (Bifet and Gavaldà, 2007): it is cut where two parts have the most unlike means.

    The window is kept as exponentially larger buckets, so n numbers take O(log n) memory.
    """

    MOST_BUCKETS = 5

    def __init__(self, *, delta: float = 0.002, every: int = 32) -> None:
        """Alarm with a probability of ``delta`` at most in a stream that does not change; look at each ``every``-th."""
        if not 0 < delta < 1:
            raise InvalidError(f"delta={delta} is not between 0 and 1. Give 0.002, say.")
        self._delta, self._every, self._seen = delta, every, 0
        self._rows: list[deque[tuple[float, float]]] = [deque()]
        """Of each size 2^i, the newest last: (sum, sum of squared deviations)."""

    @property
    def width(self) -> int:
        """How many numbers are in the window."""
        return sum(len(row) << at for at, row in enumerate(self._rows))

    @property
    def mean(self) -> float:
        """The mean of the window; 0 when it is empty."""
        return sum(total for row in self._rows for total, _ in row) / max(self.width, 1)

    def update(self, value: float) -> bool:
        self._seen += 1
        self._rows[0].append((value, 0.0))
        for at, row in enumerate(self._rows):
            if len(row) <= self.MOST_BUCKETS:
                break
            (one, spread), (two, other) = row.popleft(), row.popleft()
            if at + 1 == len(self._rows):
                self._rows.append(deque())
            apart = (one - two) / 2**at
            self._rows[at + 1].append((one + two, spread + other + apart**2 * 2**at / 2))
        return self._seen % self._every == 0 and self._cut()

    def _cut(self) -> bool:
        """Drop what is before the split whose two parts have the most unlike means, if they are that unlike."""
        buckets = [(1 << at, *one) for at, row in reversed(list(enumerate(self._rows))) for one in row]
        n, total = sum(size for size, _, _ in buckets), sum(one for _, one, _ in buckets)
        if n < 10:
            return False
        mean = total / n
        variance = sum(spread + size * (one / size - mean) ** 2 for size, one, spread in buckets) / n
        log = math.log(2 * math.log(n) / self._delta)
        old, held, furthest, dropped = 0, 0.0, 1.0, 0
        for count, (size, one, _) in enumerate(buckets[:-1], start=1):
            old, held = old + size, held + one
            if min(old, n - old) < 5:
                continue
            harmonic = 1 / (1 / old + 1 / (n - old))
            bound = math.sqrt(2 / harmonic * variance * log) + 2 / (3 * harmonic) * log
            apart = abs(held / old - (total - held) / (n - old)) / bound
            if apart > furthest:
                furthest, dropped = apart, count
        for _ in range(dropped):
            next(row for row in reversed(self._rows) if row).popleft()
        return dropped > 0


class KSWIN:
    """The newest numbers of a window against as many drawn from the rest, by Kolmogorov and Smirnov's test: sees
    changes of any kind, not of the mean alone (Raab et al., 2020)."""

    def __init__(self, *, level: float = 0.005, window: int = 100, newest: int = 30, seed: int = 0) -> None:
        """Alarm where the test's p-value is at most ``level``, at each number once the window is full."""
        if not 0 < level < 1 or not 2 <= newest <= window // 2:
            raise InvalidError(
                f"level={level}, newest={newest} of window={window} cannot be. Give 0.005, 30 of 100, say."
            )
        self._level, self._newest = level, newest
        self._values: deque[float] = deque(maxlen=window)
        self._generator = np.random.default_rng(seed)

    def update(self, value: float) -> bool:
        self._values.append(value)
        if len(self._values) < (self._values.maxlen or 0):
            return False
        values = np.array(self._values)
        drawn = self._generator.choice(values[: -self._newest], self._newest, replace=False)
        _, p = map(float, stats.ks_2samp(drawn, values[-self._newest :]))
        changed = p <= self._level
        if changed:
            self._values = deque(values[-self._newest :].tolist(), maxlen=self._values.maxlen)
        return changed


class _EitherWay:
    """Page and Hinkley's test for a mean that rises or falls, of numbers whose deviation is 1."""

    def __init__(self) -> None:
        self._up, self._down = (PageHinkley(delta=0.25, threshold=20.0) for _ in range(2))

    def update(self, value: float) -> bool:
        return self._up.update(value) | self._down.update(-value)


DETECTORS: Mapping[str, Callable[[], StreamDetector]] = {
    "adwin": ADWIN,
    "kswin": lambda: KSWIN(level=1e-4),
    "page-hinkley": _EitherWay,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Where a stream was found to have changed."""

    row: int
    """Counted from 0; the change itself came before."""

    before: float
    """The mean of the numbers since the last change."""

    after: float
    """The mean of those up to the next."""


def changes(values: Sequence[float] | NDArray[Any], detector: str = "adwin") -> list[Change]:
    """Return where numbers that came one after the other changed: by ``adwin``, ``kswin`` or ``page-hinkley``.

    They are measured in deviations of the first ``WARM_UP``, so that their unit does not matter.

    Raises:
        InvalidError: no such detector, or too few numbers.
    """
    if detector not in DETECTORS:
        raise InvalidError(
            f"There is no detector of streams {detector!r}.{did_you_mean(detector, DETECTORS)} "
            f"There are {', '.join(DETECTORS)}."
        )
    numbers = np.asarray(values, np.float64)
    if len(numbers) <= WARM_UP:
        raise InvalidError(f"There are {len(numbers)} numbers, and more than {WARM_UP} are needed. Wait for more.")
    first = numbers[:WARM_UP]
    scaled = (numbers - first.mean()) / (float(first.std()) or 1.0)
    watch = DETECTORS[detector]()
    rows = [at for at, value in enumerate(scaled.tolist()) if watch.update(value)]
    ends = [0, *rows, len(numbers)]
    return [
        Change(row=row, before=float(numbers[start:row].mean()), after=float(numbers[row:end].mean()))
        for start, row, end in zip(ends, rows, ends[2:], strict=False)
    ]
