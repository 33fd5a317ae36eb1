"""The arrival times of an open loop's requests: a rate over time, and the times drawn from it. Pure.

The area below the rate, up to a time, is how many requests are due until then. The inverse of that area turns 0, 1, 2 …
into evenly spaced arrivals, and the sums of exponential gaps into a Poisson process whose rate changes (Çinlar,
"Introduction to Stochastic Processes", 1975, section 4.7: inversion of the integrated rate).
"""

from __future__ import annotations

import csv
import math
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise

from scanflow.errors import InvalidError

MAX_REQUESTS = 5_000_000
"""Largest number of requests of one load; 160 MB of results."""

_SINE_KNOTS = 64
"""Number of straight lines in one period of a sine: at most 0.1 % away from it."""


@dataclass(frozen=True, slots=True)
class RateTrace:
    """Requests per second over time: straight lines between knots ``(seconds, rate)``. Two knots at the same time
    are a step."""

    knots: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        times = [at for at, _ in self.knots]
        if len(times) < 2 or times[0] != 0 or times != sorted(times) or not math.isfinite(times[-1]) or times[-1] <= 0:
            raise InvalidError("A rate over time needs at least two times that begin at 0 s and increase.")
        if not all(math.isfinite(rate) and rate >= 0 for _, rate in self.knots):
            raise InvalidError("A rate must be a number of requests per second, 0 or more.")
        if not self.requests:
            raise InvalidError("This rate is always 0: no request is due.")
        if self.requests > MAX_REQUESTS:
            raise InvalidError(
                f"{self.requests:,.0f} requests are too many for one load, which can have {MAX_REQUESTS:,}."
            )

    @property
    def seconds(self) -> float:
        return self.knots[-1][0]

    @property
    def requests(self) -> float:
        """The expected number of requests."""
        return sum((late - soon) * (low + high) / 2 for (soon, low), (late, high) in pairwise(self.knots))

    def generate_arrivals(self, *, poisson: int | None = None) -> array[float]:
        """Return the due time of each request, in seconds from the beginning, in order.

        ``poisson``: the seed of a Poisson process of this rate; None: as evenly as the rate allows.
        """
        counts: Iterator[float] = count() if poisson is None else _draw_exponential_sums(random.Random(poisson))  # noqa: S311 - no secret
        due, before = array("d"), 0.0
        target_area = next(counts)
        for (soon, low), (late, high) in pairwise(self.knots):
            area = (late - soon) * (low + high) / 2
            slope = (high - low) / (late - soon) if late > soon else 0.0
            while target_area - before < area:
                due.append(soon + _solve_time(target_area - before, low, slope))
                target_area = next(counts)
            before += area
        return due


def build_constant_rate(rate: float, seconds: float) -> RateTrace:
    return RateTrace(((0.0, rate), (seconds, rate)))


def build_step_rates(rates: Sequence[float], seconds: float) -> RateTrace:
    """Return a trace of constant rates, each for an equal part of ``seconds``."""
    part = seconds / len(rates)
    knots = [((place + end) * part, rate) for place, rate in enumerate(rates) for end in (0, 1)]
    return RateTrace(tuple(knots))


def build_sine_rate(low: float, high: float, period_s: float, seconds: float) -> RateTrace:
    """Return a rate that rises from ``low`` to ``high`` and falls again in each period."""
    lines = max(1, math.ceil(_SINE_KNOTS * seconds / period_s))
    middle, swing = (low + high) / 2, (high - low) / 2
    times = [seconds * place / lines for place in range(lines + 1)]
    return RateTrace(tuple((at, middle - swing * math.cos(2 * math.pi * at / period_s)) for at in times))


def read_csv(lines: Iterable[str], source: str) -> RateTrace:
    """Return a recorded rate: rows of seconds and requests per second, with or without a header.

    Raises:
        InvalidError: names the row.
    """
    knots: list[tuple[float, float]] = []
    for number, row in enumerate(csv.reader(lines), 1):
        try:
            at, rate = (float(cell) for cell in row)
        except ValueError as error:
            if number > 1 and row:
                raise InvalidError(
                    f"{source}, row {number}: {','.join(row)!r:.60} is not seconds and requests per second."
                ) from error
            continue
        knots.append((at, rate))
    return RateTrace(tuple((at - knots[0][0], rate) for at, rate in knots))


def parse_trace(text: str, seconds: float) -> RateTrace:
    """Parse a trace: ``steps:50,100,200`` or ``sine:20,200,60s`` (lowest, highest, period), of this many seconds.

    Raises:
        InvalidError: it is neither.
    """
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(number) for number in rest.removesuffix("s").split(",")]
    except ValueError:
        numbers = []
    if kind == "steps" and numbers:
        return build_step_rates(numbers, seconds)
    if kind == "sine" and len(numbers) == 3 and numbers[2] > 0:
        low, high, period_s = numbers
        return build_sine_rate(low, high, period_s, seconds)
    raise InvalidError(
        f"The trace {text!r} cannot be read. Write steps:50,100,200 (requests per second, in order), sine:20,200,60 "
        "(lowest, highest, period in seconds), or the name of a .csv file (seconds, rate)."
    )


def _draw_exponential_sums(random_numbers: random.Random) -> Iterator[float]:
    return accumulate(iter(lambda: random_numbers.expovariate(1.0), None))


def _solve_time(area: float, rate: float, slope: float) -> float:
    """Return the time in seconds at which the area below a line that begins at ``rate`` reaches a value.

    The root of ``rate t + slope t² / 2 = area`` in the form that loses no digits where the slope is small.
    """
    if not area:
        return 0.0
    return 2 * area / (rate + math.sqrt(max(0.0, rate * rate + 2 * slope * area)))
