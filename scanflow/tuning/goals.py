"""Measurements of a service under load, and the goals of a search."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from scanflow.tuning.candidates import Candidate

GoalName = Literal["throughput", "latency", "cost"]
GOALS: tuple[GoalName, ...] = get_args(GoalName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measurement of a service under load; latencies in seconds."""

    rate: float
    """Successful requests per second."""

    p50_s: float
    p90_s: float
    p99_s: float
    requests: int
    failed: int = 0
    reason: str = ""
    """The most frequent reason of failures."""

    energy_j_per_1000: float | None = None
    """Joules that the GPUs took for a thousand successful requests; None: it has none for itself, or they do not
    count."""

    gpu_bytes: int | None = None
    """The most of the GPUs' memory that its instances were seen to hold, together; None: not seen."""

    others: float = 0.0
    """Cores used by processes other than the service and its load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``throughput``: requests per second. ``latency``: the 90th percentile that a single caller sees, as in
    MLPerf's SingleStream. ``cost``: requests per second of each core."""

    name: GoalName = "throughput"
    p99_s: float | None = None
    """The bound of the 99th percentile."""

    def compute_value(self, candidate: Candidate, measurement: Measurement) -> float:
        """Return the value to maximise; above 0."""
        if self.name == "latency":
            return 1 / measurement.p90_s
        return measurement.rate / (candidate.instances * candidate.cores) if self.name == "cost" else measurement.rate

    def compute_excess(self, measurements: Sequence[Measurement]) -> float:
        """Return the latency as a multiple of its bound; at most 1: the bound is met."""
        return (
            1.0
            if self.p99_s is None
            else statistics.median(measurement.p99_s for measurement in measurements) / self.p99_s
        )
