"""Metrics of a service: the sums of its instances' counters, and rates over the last minute. Pure.

Instances report the samples of their own Prometheus registries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from scanflow.app.scaling import ScalingMetric
from scanflow.backends.canary_analysis import RevisionStats, subtract_stats
from scanflow.backends.device_load import compute_mean
from scanflow.backends.service_records import SHARES, NodeTraffic, compute_quantile
from scanflow.instance_messages import INVALID_STATUSES
from scanflow.placement.queueing import Load

WINDOW_S = 60.0
REQUESTS = "scanflow_requests_total"
SECONDS = "scanflow_request_seconds"
NODE_SECONDS = "scanflow_node_seconds"
NODE_ERRORS = "scanflow_node_errors_total"
RECORDED_METRIC = "scanflow_recorded_total"
DROPPED_METRIC = "scanflow_dropped_total"

SampleKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
Samples: TypeAlias = dict[SampleKey, float]


@dataclass(slots=True)
class Totals:
    """Counters since the service started."""

    revisions: dict[str, RevisionStats] = field(default_factory=dict)
    nodes: dict[tuple[str, str], RevisionStats] = field(default_factory=dict)
    """Requests that reached the nodes of revisions, by the names of both."""

    recorded: float = 0.0
    dropped: float = 0.0

    def get_revision(self, revision: str) -> RevisionStats:
        return self.revisions.get(revision, RevisionStats())

    @property
    def requests(self) -> float:
        """The number of requests answered by any revision, or refused before one was chosen."""
        return sum(stats.requests for stats in self.revisions.values())


class MetricsWindow:
    """A sliding window of counters over the last minute."""

    def __init__(self, now: float) -> None:
        self._looks: deque[tuple[float, Totals, int]] = deque()
        self.active = now
        """When the last request was seen."""

    @property
    def totals(self) -> Totals:
        return self._looks[-1][1] if self._looks else Totals()

    def record(self, totals: Totals, now: float, *, in_flight: int) -> None:
        if in_flight or (self._looks and totals.requests > self.totals.requests):
            self.active = now
        self._looks.append((now, totals, in_flight))
        while self._looks[0][0] < now - WINDOW_S:
            self._looks.popleft()

    def compute_recent_stats(self, revision: str, window_s: float = WINDOW_S) -> RevisionStats:
        return subtract_stats(
            self._get_window_start(window_s)[1].get_revision(revision), self.totals.get_revision(revision)
        )

    def compute_node_traffic(self, revision: str) -> dict[str, NodeTraffic]:
        """Return the recent traffic of each node of a revision; empty: there are fewer than two samples."""
        seconds, before, _ = self._get_window_start(WINDOW_S)
        if seconds <= 0:
            return {}
        recent = {
            node: subtract_stats(before.nodes.get((own, node), RevisionStats()), stats)
            for (own, node), stats in self.totals.nodes.items()
            if own == revision
        }
        return {
            node: NodeTraffic(
                rps=round(stats.requests / seconds, 2),
                error_share=stats.error_share,
                p95_s=compute_quantile(stats.buckets, 0.95),
            )
            for node, stats in recent.items()
        }

    def compute_rps(self, revision: str) -> float | None:
        """Return a revision's recent requests per second; None: there are fewer than two samples."""
        seconds = self._get_window_start(WINDOW_S)[0]
        return round(self.compute_recent_stats(revision).requests / seconds, 2) if seconds > 0 else None

    def sample(
        self, metric: ScalingMetric, window_s: float, *, queues: Sequence[float], shares: Sequence[float | None] = ()
    ) -> float | None:
        """Return a metric's value per instance over ``window_s``; None: nothing was measured.

        ``queues``: waiting requests of each ready instance; ``shares``: the share that each uses of its cores, or of
        its GPUs, if the metric is that.
        """
        if not queues:
            return None
        if metric == "queue":
            return sum(queues) / len(queues)
        if metric in SHARES:
            return compute_mean(shares)
        recent = self._compute_recent(window_s)
        if metric == "rps":
            return None if recent is None else recent[0] / len(queues)
        return None if recent is None else compute_quantile(recent[1].buckets, 0.95)

    def load(self, ready: int, polling_s: float) -> Load | None:
        """Return the recent load of all revisions together: see :func:`compute_latest_load`."""
        return compute_latest_load(self._load(ready, WINDOW_S), self._load(ready, max(polling_s, 1.0)))

    def _load(self, ready: int, window_s: float) -> Load | None:
        recent = self._compute_recent(window_s)
        if recent is None or not ready:
            return None
        seconds, (rate, done) = self._get_window_start(window_s)[0], recent
        p95_s = compute_quantile(done.buckets, 0.95)
        if not done.mean_s or not p95_s:
            return None
        return Load(rate=rate, ready=ready, done=done.timed / seconds, mean_s=done.mean_s, p95_s=p95_s)

    def _compute_recent(self, window_s: float) -> tuple[float, RevisionStats] | None:
        """Return the arrival rate in requests per second and the stats of all revisions; None: no samples yet."""
        seconds, _, waiting = self._get_window_start(window_s)
        if seconds <= 0:
            return None
        total = RevisionStats()
        for stats in (self.compute_recent_stats(revision, window_s) for revision in self.totals.revisions):
            total.requests += stats.requests
            total.seconds += stats.seconds
            for limit, count in stats.buckets.items():
                total.buckets[limit] = total.buckets.get(limit, 0.0) + count
        return max(0.0, total.requests + self._looks[-1][2] - waiting) / seconds, total

    def _get_window_start(self, window_s: float) -> tuple[float, Totals, int]:
        """Return the seconds from the oldest sample in the window to the last one, and the oldest's counters."""
        if not self._looks:
            return 0.0, Totals(), 0
        end = self._looks[-1][0]
        at, totals, in_flight = next(look for look in self._looks if look[0] >= end - window_s - 0.05)
        return end - at, totals, in_flight


def compute_latest_load(minute: Load | None, last: Load | None) -> Load | None:
    """Return the load of the last minute, or of its last part if the load has changed by more than a fifth."""
    if minute is None or last is None:
        return minute
    pairs = (last.rate, minute.rate), (last.done, minute.done)
    return last if any(abs(now - before) > 0.2 * before for now, before in pairs) else minute


def compute_totals(samples: Mapping[SampleKey, float]) -> Totals:
    totals = Totals()
    for (name, labels), value in samples.items():
        tags = dict(labels)
        revision = tags.get("revision", "")
        if name == REQUESTS:
            stats = totals.revisions.setdefault(revision, RevisionStats())
            stats.requests += value
            stats.errors += value if _is_error(tags.get("code", "")) else 0.0
            stats.invalid += value if _is_invalid(tags.get("code", "")) else 0.0
        elif name == f"{SECONDS}_bucket":
            stats = totals.revisions.setdefault(revision, RevisionStats())
            limit = float(tags.get("le", "inf"))
            stats.buckets[limit] = stats.buckets.get(limit, 0.0) + value
        elif name == f"{SECONDS}_sum":
            totals.revisions.setdefault(revision, RevisionStats()).seconds += value
        elif name in {NODE_ERRORS, f"{NODE_SECONDS}_bucket", f"{NODE_SECONDS}_count"}:
            stats = totals.nodes.setdefault((revision, tags.get("node", "")), RevisionStats())
            _add_node_sample(stats, name, tags, value)
        elif name == RECORDED_METRIC:
            totals.recorded += value
        elif name == DROPPED_METRIC:
            totals.dropped += value
    return totals


def _add_node_sample(stats: RevisionStats, name: str, tags: Mapping[str, str], value: float) -> None:
    if name == NODE_ERRORS:
        stats.errors += value
        stats.requests += value  # those that failed are not among the timed ones
    elif name.endswith("_count"):
        stats.requests += value
    else:
        limit = float(tags.get("le", "inf"))
        stats.buckets[limit] = stats.buckets.get(limit, 0.0) + value


def _is_error(code: str) -> bool:
    """Whether a response counts against its revision: it failed, or its model refused the input (422), which another
    version may take."""
    return code.startswith("5") or code == "422"


def _is_invalid(code: str) -> bool:
    """Whether a request was refused before any model got it, such as for a column that it lacks."""
    return code.isdecimal() and int(code) in INVALID_STATUSES


def parse_samples(samples: Iterable[Any]) -> Samples:
    """Parse the samples that an instance reports: name, labels and value of each."""
    return {
        (str(name), tuple(sorted((str(label), str(text)) for label, text in labels.items()))): float(value)
        for name, labels, value in samples
    }


def format_samples(samples: Samples) -> list[list[Any]]:
    """Return samples as JSON lists, as an instance takes them."""
    return [[name, dict(labels), value] for (name, labels), value in samples.items()]


def sum_samples(all_samples: Iterable[Samples]) -> Samples:
    """Return the sums of several instances' samples."""
    sums: Samples = {}
    for samples in all_samples:
        for key, value in samples.items():
            sums[key] = sums.get(key, 0.0) + value
    return sums
