"""What is decided about a service from what it was seen to do: who answers for it, and what becomes of a canary. Pure.

Whoever keeps a service alive, a supervisor or a controller, decides by these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scanflow.backends.service_records import CanaryPolicy, quantile


@dataclass(frozen=True, slots=True)
class Failover:
    """Who answers now, and how many looks in a row found the service healthy."""

    active: Literal["primary", "backup"] = "primary"
    healthy: int = 0


def look(before: Failover, *, ready: int, wanted: int, backup: bool, hand_back_after: int) -> Failover:
    """Return who answers after one more look at the service. Pure.

    Failover is immediate, since nobody else would respond; failing back waits for ``hand_back_after`` successful looks
    in a row, so that a service that comes and goes does not take its callers along. ``backup``: whether it has one that
    could answer. With no instances ``wanted`` the service sleeps, and its backup is not asked.
    """
    healthy = before.healthy + 1 if ready else 0
    if before.active == "primary":
        takes_over = backup and wanted > 0 and ready == 0
        return Failover("backup" if takes_over else "primary", 0 if takes_over else healthy)
    hands_back = healthy >= hand_back_after or not backup or wanted == 0
    return Failover("primary" if hands_back else "backup", healthy)


@dataclass(slots=True)
class RevisionStats:
    """What one revision did until now, or between two moments."""

    requests: float = 0.0
    errors: float = 0.0  # answered with 500 or more
    seconds: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)
    """Requests that took at most so many seconds, those of smaller limits included; the last limit is infinity."""

    @property
    def timed(self) -> float:
        """Requests whose latency is known."""
        return max(self.buckets.values(), default=0.0)

    @property
    def mean_s(self) -> float | None:
        return self.seconds / self.timed if self.timed else None


def between(before: RevisionStats, after: RevisionStats) -> RevisionStats:
    """Return what was done between two moments; a count that fell (an instance was killed) counts as nothing."""
    return RevisionStats(
        requests=max(0.0, after.requests - before.requests),
        errors=max(0.0, after.errors - before.errors),
        seconds=max(0.0, after.seconds - before.seconds),
        buckets={limit: max(0.0, count - before.buckets.get(limit, 0.0)) for limit, count in after.buckets.items()},
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, and why, for people."""

    decision: Literal["promote", "take back", "wait"]
    reason: str


def analyse(policy: CanaryPolicy, *, current: RevisionStats, canary: RevisionStats, elapsed_s: float) -> Verdict:
    """Return what becomes of the canary, from what both revisions did since it began. Pure.

    Where the current revision answered nothing meanwhile, there is nothing to compare with: its value counts as 0, so
    that only ``slack`` lets a canary through. A canary that fails nothing always passes on ``errors``.
    """
    if canary.requests < policy.after_requests:
        seen = f"{canary.requests:.0f} of {policy.after_requests} requests"
        if elapsed_s >= policy.within_s:
            return Verdict("take back", f"it answered {seen} within {policy.within_s:g} s")
        return Verdict("wait", f"it has answered {seen}")
    own, other = _value(policy, canary), _value(policy, current)
    limit = policy.ratio * other + policy.slack
    compared = (
        f"{policy.metric} {own:.4g} against at most {policy.ratio:g} x {other:.4g} + {policy.slack:g} = {limit:.4g}"
    )
    return Verdict("promote" if own <= limit else "take back", compared)


def _value(policy: CanaryPolicy, stats: RevisionStats) -> float:
    if policy.metric == "errors":
        return stats.errors / stats.requests if stats.requests else 0.0
    return (quantile(stats.buckets, 0.95) if policy.metric == "p95" else stats.mean_s) or 0.0
