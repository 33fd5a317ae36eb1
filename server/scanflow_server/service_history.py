"""What services did lately: their rates, errors, latencies and instances over the last hour, in memory.

The controller of services looks at each once a second; what it sees is kept here, a sample for every five seconds. It
begins anew with the server: Prometheus, or the events of agents, have more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scanflow.app.scaling import ScalingMetric
from scanflow.backends.canary_analysis import RevisionStats, Verdict, analyse, subtract_stats
from scanflow.backends.service_records import CanaryPolicy, RevisionRecord, ServiceRecord, compute_quantile
from scanflow.reports.load_drawing import LoadSample

INTERVAL_S: Final = 5.0
MAX_SAMPLES: Final = 720
"""Of a service: an hour, in which the load never rests."""


@dataclass(slots=True)
class _Watched:
    """One deployment of a service."""

    created: float
    at: float
    totals: Mapping[str, RevisionStats]
    """The counters of each revision at that time, when the last sample was taken."""

    revisions_since: float
    baseline: Mapping[str, RevisionStats]
    """The counters when the set of revisions last changed: when a canary began."""

    samples: deque[LoadSample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    rest: LoadSample | None = None
    """The last sample that was as the one before it, and was left out."""


class ServiceHistory:
    """Thread-safe."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._values: Mapping[str, object] = {}
        self._changes = 0
        self._lock = threading.Lock()

    @property
    def changes(self) -> int:
        """How often services were seen to have had requests, or to differ in size or state, since the last look."""
        return self._changes

    def observe(self, records: Iterable[ServiceRecord], now: float) -> None:
        """Note what services do now; those that are not among them are forgotten."""
        by_name = {record.name: record for record in records}
        values = {name: (_get_size(record), _count_requests(record)) for name, record in by_name.items()}
        with self._lock:
            self._changes, self._values = self._changes + (values != self._values), values
            self._watched = {name: self._observe(record, now) for name, record in by_name.items()}

    def list_samples(self, record: ServiceRecord) -> list[LoadSample]:
        """Return the samples of a service since it was deployed or the server began, the oldest first."""
        with self._lock:
            watched = self._find(record)
            return [] if watched is None else list(watched.samples)

    def analyse_canary(self, record: ServiceRecord, policy: CanaryPolicy, now: float) -> Verdict | None:
        """Return what a policy says of a canary by now; None: there is none, or when it began is not known."""
        with self._lock:
            watched = self._find(record)
            if watched is None or set(watched.baseline) != {revision.id for revision in record.revisions}:
                return None
            began, before = watched.revisions_since, watched.baseline
        stats = {
            revision.role: subtract_stats(before[revision.id], read_stats(revision)) for revision in record.revisions
        }
        canary, current = stats.get("canary", stats.get("shadow")), stats.get("current")
        if canary is None or current is None:
            return None
        if policy.metric == "mean" and canary.requests >= policy.after_requests:
            return Verdict("wait", "its supervisor judges it by the mean latency")
        return analyse(policy, current=current, canary=canary, elapsed_s=now - began)

    def _find(self, record: ServiceRecord) -> _Watched | None:
        watched = self._watched.get(record.name)
        return watched if watched is not None and watched.created == record.created else None

    def _observe(self, record: ServiceRecord, now: float) -> _Watched:
        totals = {revision.id: read_stats(revision) for revision in record.revisions}
        watched = self._find(record)
        if watched is None:
            watched = _Watched(record.created, now, totals, now, totals)
            watched.samples.append(_build_sample(record, RevisionStats(), now, 0.0))
            return watched
        if watched.baseline.keys() != totals.keys():
            watched.revisions_since, watched.baseline = now, totals
        last = watched.rest or watched.samples[-1]
        passed_s = now - watched.at
        if passed_s < INTERVAL_S and (last.state, last.ready, last.wanted, last.restarts) == _get_size(record):
            return watched
        _add(watched, _build_sample(record, _sum_since(record, watched.totals), now, passed_s))
        watched.at, watched.totals = now, totals
        return watched


def read_stats(revision: RevisionRecord) -> RevisionStats:
    """Return a revision's counters since its service started; its record does not say the sum of the latencies."""
    return RevisionStats(
        requests=revision.requests, errors=revision.errors, invalid=revision.invalid, buckets=revision.counts
    )


def _add(watched: _Watched, sample: LoadSample) -> None:
    """Add a sample, unless it differs from the one before it in nothing but its time: an idle service adds none."""
    if sample._replace(at=watched.samples[-1].at) == watched.samples[-1]:
        watched.rest = sample
        return
    if watched.rest is not None:
        watched.samples.append(watched.rest)
        watched.rest = None
    watched.samples.append(sample)


def _get_size(record: ServiceRecord) -> tuple[str, int, int, int]:
    return record.state, record.ready, record.shape.instances, _count_restarts(record)


def _count_requests(record: ServiceRecord) -> list[int]:
    return [revision.requests for revision in record.revisions]


def _count_restarts(record: ServiceRecord) -> int:
    return sum(instance.restarts for instance in record.instances)


def _sum_since(record: ServiceRecord, before: Mapping[str, RevisionStats]) -> RevisionStats:
    """Return what the revisions that answer have done since."""
    total = RevisionStats()
    for revision in record.revisions:
        if not revision.shadow:
            stats = subtract_stats(before.get(revision.id, RevisionStats()), read_stats(revision))
            total.requests += stats.requests
            total.errors += stats.errors
            for limit, count in stats.buckets.items():
                total.buckets[limit] = total.buckets.get(limit, 0.0) + count
    return total


def _build_sample(record: ServiceRecord, stats: RevisionStats, at: float, passed_s: float) -> LoadSample:
    rate = round(stats.requests / passed_s, 2) if passed_s > 0 else 0.0
    return LoadSample(
        at=at,
        rate=rate,
        error_rate=round(stats.errors / passed_s, 2) if passed_s > 0 else 0.0,
        p50_s=compute_quantile(stats.buckets, 0.5),
        p99_s=compute_quantile(stats.buckets, 0.99),
        ready=record.ready,
        wanted=record.shape.instances,
        state=record.state,
        restarts=_count_restarts(record),
        load=None if record.scaling is None else _measure(record.scaling.metric, record, stats, rate),
    )


def _measure(metric: ScalingMetric, record: ServiceRecord, stats: RevisionStats, rate: float) -> float | None:
    """Return the value per instance of the metric that the autoscaler goes by."""
    ready = [instance for instance in record.instances if instance.state == "ready"]
    if metric == "p95":
        return compute_quantile(stats.buckets, 0.95)
    if not ready:
        return None
    if metric == "queue":
        return sum(instance.in_flight for instance in ready) / len(ready)
    if metric == "rps":
        return round(rate / len(ready), 2)
    share = record.compute_share(metric)
    return None if share is None else round(share, 2)
