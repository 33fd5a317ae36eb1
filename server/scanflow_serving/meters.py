"""What an instance counts, for Prometheus: shared with the other instances of its service through files in one folder.

``prometheus_client`` decides where values live when it is first imported, by a variable: so it is imported in here,
after that is set. A label's child is looked up once, since a lookup takes longer than a count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

__all__ = ["BUCKETS", "Meters", "NodeMeter", "RevisionMeter"]

BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0,
)  # fmt: skip
"""Upper bounds of latencies, in seconds."""

_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MOST_CUSTOM: Final = 100
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")
_CUSTOM_KINDS: Final[Mapping[str, Callable[[Any, float], None]]] = {
    "COUNTER": lambda meter, value: meter.inc(max(0.0, value)),
    "GAUGE": lambda meter, value: meter.set(value),
    "TIMER": lambda meter, value: meter.observe(value / 1000),  # Seldon's timers are in milliseconds
}
_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


class NodeMeter:
    """The figures of one node of one revision."""

    __slots__ = ("_failed", "_rows", "_seconds")

    def __init__(self, seconds: Histogram, failed: Counter, rows: Histogram) -> None:
        self._seconds, self._failed, self._rows = seconds, failed, rows

    def worked(self, seconds: float) -> None:
        """Count a call that ended well."""
        self._seconds.observe(seconds)

    def failed(self) -> None:
        """Count a call that raised."""
        self._failed.inc()

    def batch(self, rows: int) -> None:
        """Count how many rows one call had."""
        self._rows.observe(rows)


class RevisionMeter:
    """The figures of one revision."""

    __slots__ = ("_answers", "_meters", "_nodes", "_seconds", "revision")

    def __init__(self, meters: Meters, revision: str) -> None:
        self.revision = revision
        self._meters = meters
        self._seconds: Histogram = meters.request_seconds.labels(meters.service, revision)
        self._answers: dict[int, Counter] = {}
        self._nodes: dict[str, NodeMeter] = {}

    def answered(self, status: int, seconds: float) -> None:
        """Count a request, with its HTTP status and how long it took from its first byte."""
        counter = self._answers.get(status)
        if counter is None:
            counter = self._answers[status] = self._meters.requests.labels(
                self._meters.service, self.revision, str(status)
            )
        counter.inc()
        self._seconds.observe(seconds)

    def node(self, name: str) -> NodeMeter:
        """Return the figures of one of its nodes."""
        if name not in self._nodes:
            labels = (self._meters.service, self.revision, name)
            self._nodes[name] = NodeMeter(
                self._meters.node_seconds.labels(*labels),
                self._meters.node_errors.labels(*labels),
                self._meters.batch_rows.labels(*labels),
            )
        return self._nodes[name]


class Meters:
    """The figures of one instance. Made once a process: the folder cannot be changed afterwards."""

    def __init__(self, folder: str, service: str) -> None:
        """``folder`` empty: the figures are this process' own."""
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            os.environ[_VARIABLE] = folder
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.service = service
        self._folder = folder
        self._registry = CollectorRegistry()
        shared: dict[str, Any] = {"registry": self._registry}
        by_node = ("service", "revision", "node")
        self.requests = Counter("scanflow_requests", "Requests answered.", ("service", "revision", "code"), **shared)
        self.request_seconds = Histogram(
            "scanflow_request_seconds", "From a request's first byte to its answer.", ("service", "revision"),
            buckets=BUCKETS, **shared,
        )  # fmt: skip
        self.node_seconds = Histogram(
            "scanflow_node_seconds", "One call of a node's component.", by_node, buckets=BUCKETS, **shared
        )
        self.node_errors = Counter(
            "scanflow_node_errors", "Calls of a node's component that raised.", by_node, **shared
        )
        self.batch_rows = Histogram("scanflow_batch_rows", "Rows in one call.", by_node, buckets=_ROWS, **shared)
        self._refused = Counter(
            "scanflow_refused", "Requests refused before anything was done.", ("service", "reason"), **shared
        )
        self._compared = Counter(
            "scanflow_shadow",
            "A shadow's answers, compared with those that callers got.",
            ("service", "revision", "outcome"),
            **shared,
        )
        in_flight = Gauge(
            "scanflow_in_flight", "Requests that wait or run.", ("service",), multiprocess_mode="livesum", **shared
        )
        self._recorded = Counter("scanflow_recorded", "Predictions written down.", ("service",), **shared).labels(
            service
        )
        self._dropped = Counter(
            "scanflow_dropped", "Predictions that were to be written down and were not.", ("service",), **shared
        ).labels(service)
        self._in_flight = in_flight.labels(service)
        self._reasons: dict[str, Counter] = {}
        self._custom: dict[str, tuple[str, Any]] = {}

    def revision(self, id: str) -> RevisionMeter:
        """Return the figures of a revision; ``""`` for requests that never came to one."""
        return RevisionMeter(self, id)

    def refused(self, reason: str) -> None:
        """Count a request that was refused: ``queue``, ``draining``, ``too-large``."""
        counter = self._reasons.get(reason)
        if counter is None:
            counter = self._reasons[reason] = self._refused.labels(self.service, reason)
        counter.inc()

    def compared(self, revision: str, outcome: str) -> None:
        """Count a shadow's answer: ``equal``, ``different``, ``failed``, or ``dropped`` where it was too busy."""
        self._compared.labels(self.service, revision, outcome).inc()

    def custom(self, revision: str, metrics: Iterable[tuple[str, Any]]) -> None:
        """Count what components say in Seldon's ``metrics()``: ``{"type", "key", "value"}`` of each node.

        What is none is left out, and so is a name beyond the first hundred.
        """
        for node, said in metrics:
            if not isinstance(said, dict) or not isinstance(said.get("value"), (int, float)):
                continue
            kind, key = str(said.get("type", "COUNTER")).upper(), _NOT_IN_NAMES.sub("_", str(said.get("key", "")))
            if key not in self._custom:
                if not key or len(self._custom) >= _MOST_CUSTOM or kind not in _CUSTOM_KINDS:
                    continue
                self._custom[key] = kind, self._make(kind, key)
            known, meter = self._custom[key]
            if known == kind:
                _CUSTOM_KINDS[kind](meter.labels(self.service, revision, node), float(said["value"]))

    def _make(self, kind: str, key: str) -> Any:
        from prometheus_client import Counter, Gauge, Histogram

        name, words, labels = f"scanflow_custom_{key}", "As a component says.", ("service", "revision", "node")
        if kind == "GAUGE":
            return Gauge(name, words, labels, multiprocess_mode="mostrecent", registry=self._registry)
        if kind == "TIMER":
            return Histogram(f"{name}_seconds", words, labels, buckets=BUCKETS, registry=self._registry)
        return Counter(name, words, labels, registry=self._registry)

    def in_flight(self, count: int) -> None:
        """Say how many requests wait or run now."""
        self._in_flight.set(count)

    def recorded(self, rows: int) -> None:
        """Count predictions that were written down."""
        self._recorded.inc(rows)

    def dropped(self, rows: int) -> None:
        """Count predictions that were to be written down and were not."""
        self._dropped.inc(rows)

    def render(self) -> tuple[bytes, str]:
        """Return the figures of all instances together, and their content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        if not self._folder:
            return generate_latest(self._registry), CONTENT_TYPE_LATEST
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone, path=self._folder)  # type: ignore[no-untyped-call]
        return generate_latest(everyone), CONTENT_TYPE_LATEST

    def close(self) -> None:
        """Take back what only a living process has; counts stay."""
        from prometheus_client.multiprocess import mark_process_dead

        if self._folder:
            mark_process_dead(os.getpid(), self._folder)  # type: ignore[no-untyped-call]
