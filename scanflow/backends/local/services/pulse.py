"""What a service's instances did lately: their shared metrics, looked at every now and then."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from scanflow.app.scaling import ScalingMetric
from scanflow.backends.local.services.figures import Conducted, Totals, between, quantile, read_totals
from scanflow.backends.local.services.instance import Instance
from scanflow.backends.local.services.judge import Conduct

__all__ = ["Pulse", "conduct"]

WINDOW_S = 60.0


class Pulse:
    """The counters of the last minute."""

    def __init__(self, folder: Path, now: float) -> None:
        self._folder = folder
        self._looks: deque[tuple[float, Totals]] = deque()
        self.active = now
        """When a request was last seen."""

    @property
    def totals(self) -> Totals:
        """The counters as they were at the last look."""
        return self._looks[-1][1] if self._looks else Totals()

    def look(self, now: float, *, in_flight: int) -> None:
        """Read the counters."""
        totals = read_totals(self._folder)
        if in_flight or (self._looks and totals.requests > self.totals.requests):
            self.active = now
        self._looks.append((now, totals))
        while self._looks[0][0] < now - WINDOW_S:
            self._looks.popleft()

    def lately(self, revision: str, window_s: float = WINDOW_S) -> Conducted:
        """Return what a revision did in the last seconds."""
        _, before = self._at(window_s)
        return between(before.revisions.get(revision, Conducted()), self.totals.revisions.get(revision, Conducted()))

    def rps(self, revision: str) -> float | None:
        """Return the requests a second that a revision answered lately; None until it was looked at twice."""
        seconds, _ = self._at(WINDOW_S)
        return round(self.lately(revision).requests / seconds, 2) if seconds > 0 else None

    def sample(self, metric: ScalingMetric, window_s: float, ready: list[Instance]) -> float | None:
        """Return a metric's value per instance; None where nothing was measured."""
        if not ready:
            return None
        if metric == "queue":
            return sum(float(one.state.get("queue") or 0) for one in ready) / len(ready)
        if metric == "cpu":
            shares = [one.cpu_share for one in ready if one.cpu_share is not None]
            return sum(shares) / len(shares) if shares else None
        seconds, _ = self._at(window_s)
        done = [self.lately(revision, window_s) for revision in self.totals.revisions]
        if metric == "rps":
            return sum(one.requests for one in done) / seconds / len(ready) if seconds > 0 else None
        buckets: dict[float, float] = {}
        for one in done:
            for limit, count in one.buckets.items():
                buckets[limit] = buckets.get(limit, 0.0) + count
        return quantile(buckets, 0.95)

    def _at(self, window_s: float) -> tuple[float, Totals]:
        """Return the oldest look inside the window, and how many seconds lie between it and the last one."""
        if not self._looks:
            return 0.0, Totals()
        end = self._looks[-1][0]
        for at, totals in self._looks:
            if at >= end - window_s - 0.05:
                return end - at, totals
        return 0.0, self.totals


def conduct(done: Conducted) -> Conduct:
    """Return what a judgement looks at."""
    return Conduct(
        requests=int(done.requests),
        errors=int(done.errors),
        mean_s=done.seconds / done.timed if done.timed else None,
        p95_s=quantile(done.buckets, 0.95),
    )
