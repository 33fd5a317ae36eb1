"""What a service did under load, and what of it is wanted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scanflow.tuning.candidates import Candidate

GoalName = Literal["throughput", "latency", "cost"]
GOALS: tuple[GoalName, ...] = ("throughput", "latency", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a service did under load; latencies in seconds."""

    rate: float
    """Requests a second that succeeded."""

    p50_s: float
    p90_s: float
    p99_s: float
    requests: int
    failed: int = 0
    reason: str = ""
    """Why most of those failed."""

    others: float = 0.0
    """Cores that neither the service nor its load used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``throughput``: requests a second. ``latency``: the 90th percentile that a single caller sees, as in MLPerf's
    SingleStream. ``cost``: requests a second of each core."""

    name: GoalName = "throughput"
    p99_s: float | None = None
    """The bound that has to be kept."""

    def value(self, one: Candidate, found: Measurement) -> float:
        """Return what is to be as large as possible; above 0."""
        if self.name == "latency":
            return 1 / found.p90_s
        return found.rate / (one.instances * one.cores) if self.name == "cost" else found.rate

    def excess(self, found: Sequence[Measurement]) -> float:
        """Return how many times the bound the latency is; at most 1: it is kept."""
        return 1.0 if self.p99_s is None else statistics.median(one.p99_s for one in found) / self.p99_s
