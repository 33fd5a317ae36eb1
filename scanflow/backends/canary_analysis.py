"""Canary analysis: whether a canary takes all requests, by its metrics beside those of the current revision. Pure.

Used by supervisors and controllers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scanflow.backends.service_records import CanaryPolicy, compute_quantile


@dataclass(slots=True)
class RevisionStats:
    """Counters of one revision, in total or within a window."""

    requests: float = 0.0
    errors: float = 0.0  # answered with 500 or more, or refused by the model (422)
    invalid: float = 0.0  # refused before any model got them: they say nothing about the revision
    seconds: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)
    """Cumulative counts of requests by latency limit in seconds; the last limit is infinity."""

    @property
    def timed(self) -> float:
        """The number of requests with a measured latency."""
        return max(self.buckets.values(), default=0.0)

    @property
    def valid(self) -> float:
        """The number of requests that the revision was to answer."""
        return self.requests - self.invalid

    @property
    def error_share(self) -> float:
        return self.errors / self.valid if self.valid else 0.0

    @property
    def mean_s(self) -> float | None:
        return self.seconds / self.timed if self.timed else None


def subtract_stats(before: RevisionStats, after: RevisionStats) -> RevisionStats:
    """Return the difference of two snapshots; a counter that fell (an instance was killed) counts as zero."""
    return RevisionStats(
        requests=max(0.0, after.requests - before.requests),
        errors=max(0.0, after.errors - before.errors),
        invalid=max(0.0, after.invalid - before.invalid),
        seconds=max(0.0, after.seconds - before.seconds),
        buckets={limit: max(0.0, count - before.buckets.get(limit, 0.0)) for limit, count in after.buckets.items()},
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A canary decision and its reason, for people."""

    decision: Literal["promote", "revert", "wait"]
    reason: str


def analyse(policy: CanaryPolicy, *, current: RevisionStats, canary: RevisionStats, elapsed_s: float) -> Verdict:
    """Decide on the canary from the stats of both revisions since it started. Pure.

    If the current revision answered no request meanwhile, its value counts as 0, so that only ``slack`` lets a canary
    pass. A canary without failures always passes on ``errors``, and one with nothing but failures on no metric.
    """
    if canary.valid < policy.after_requests:
        seen = f"{canary.valid:.0f} of {policy.after_requests} requests"
        if elapsed_s >= policy.within_s:
            return Verdict("revert", f"it answered {seen} within {policy.within_s:g} s")
        return Verdict("wait", f"it has answered {seen}")
    if canary.errors >= canary.valid:  # a failure may be quick, and the current revision may fail, too
        reason = f"it answered none of {canary.valid:.0f} requests without an error"
        fails_alone = current.errors < current.valid
        return Verdict("revert" if fails_alone or elapsed_s >= policy.within_s else "wait", reason)
    value, baseline = _get_metric(policy, canary), _get_metric(policy, current)
    limit = policy.ratio * baseline + policy.slack
    formula = f"{policy.ratio:g} x {baseline:.4g} + {policy.slack:g} = {limit:.4g}"
    reason = f"{policy.metric} {value:.4g}, limit {formula}"
    return Verdict("promote" if value <= limit else "revert", reason)


def _get_metric(policy: CanaryPolicy, stats: RevisionStats) -> float:
    if policy.metric == "errors":
        return stats.error_share
    return (compute_quantile(stats.buckets, 0.95) if policy.metric == "p95" else stats.mean_s) or 0.0
