"""Compares two configurations beyond noise, from pairs measured one after the other.

What changes slowly (neighbours, clocks, temperature) is in both of a pair, and cancels in their ratio. The mean of the
ratios' logarithms has Student's t-distribution; the interval is the ratios' again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 0.975, for 1 to 15 degrees of freedom."""

_MANY = 2.131
"""The value for more degrees of freedom, on the safe side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The factor by which one configuration is better than the other: 1.2 is a fifth better."""

    ratio: float
    low: float
    """The bounds of the 95 % interval."""

    high: float
    pairs: int

    @property
    def is_better(self) -> bool:
        """Whether it is better beyond noise. One that is not better is reported as better once in 40 times."""
        return self.low > 1


def compare(ratios: Sequence[float]) -> PairedComparison:
    """Compare by the ratios of pairs; of a single pair, with an infinite interval.

    Raises:
        ValueError: there is none, or one is not above 0.
    """
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return PairedComparison(ratio=math.exp(middle), low=0.0, high=math.inf, pairs=len(logs))
    factor = _T[len(logs) - 2] if len(logs) - 2 < len(_T) else _MANY
    half = factor * statistics.stdev(logs) / math.sqrt(len(logs))
    return PairedComparison(
        ratio=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half), pairs=len(logs)
    )
