"""The metrics of an instance, for Prometheus, and their sum over the instances of its service.

They are plain numbers, since several change with each request, and become metric families of ``prometheus_client``
when they are scraped. All are counted on the loop's thread, except the recorder's two.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from scanflow.instance_messages import INVALID_STATUSES

if TYPE_CHECKING:
    from prometheus_client import Metric

Samples = Sequence[tuple[str, dict[str, str], float]]
"""Name, labels and value of each sample, as in the text format; counts since the instance started."""

BUCKETS: Final = (
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3,
    0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0,
)  # fmt: skip
"""Upper bounds of latencies, in seconds."""

_ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
_MAX_CUSTOM: Final = 100
_INVALID_CHARACTERS: Final = re.compile(r"[^a-zA-Z0-9_]")
_CUSTOM: Final = "scanflow_custom_"
_CUSTOM_KINDS: Final = {"COUNTER": "counter", "GAUGE": "gauge", "TIMER": "histogram"}
_SUFFIXES: Final = ("_total", "_bucket", "_sum", "_count")


class Family(NamedTuple):
    """A metric family."""

    kind: str
    """``counter``, ``gauge`` or ``histogram``."""

    documentation: str
    labels: tuple[str, ...] = ()
    """Its labels besides ``service``."""


FAMILIES: Final[Mapping[str, Family]] = {
    "scanflow_requests": Family("counter", "Requests answered.", ("revision", "code")),
    "scanflow_request_seconds": Family(
        "histogram", "From a request's head to its response. Invalid requests are left out.", ("revision",)
    ),
    "scanflow_node_seconds": Family("histogram", "One call of a node's component.", ("revision", "node")),
    "scanflow_node_errors": Family("counter", "Calls of a node's component that raised.", ("revision", "node")),
    "scanflow_batch_rows": Family("histogram", "Rows in one call.", ("revision", "node")),
    "scanflow_refused": Family("counter", "Requests refused before any processing.", ("reason",)),
    "scanflow_shadow": Family(
        "counter", "A shadow's responses, compared with those that clients got.", ("revision", "outcome")
    ),
    "scanflow_in_flight": Family("gauge", "Requests that wait or run."),
    "scanflow_waiting": Family("gauge", "Requests that wait."),
    "scanflow_recorded": Family("counter", "Predictions recorded."),
    "scanflow_dropped": Family("counter", "Predictions that should have been recorded, but were not."),
    "scanflow_gpu_busy_share": Family(
        "gauge", "Share of the last minute in which a GPU of the service computed.", ("uuid",)
    ),
    "scanflow_gpu_memory_bytes": Family("gauge", "What the service holds of the memory of a GPU.", ("uuid",)),
    "scanflow_gpu_power_watts": Family(
        "gauge", "Power that a GPU of the service takes, in the mean of the last minute.", ("uuid",)
    ),
}
CUSTOM: Final = Family("untyped", "Reported by a component.", ("revision", "node"))
"""Families ``scanflow_custom_NAME``: their kinds are as the component says."""

_FOREIGN: Final = Family("untyped", "Of another instance.")


class _Number(Struct, eq=False):
    """A counter or a gauge."""

    value: float = 0.0


class _Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect_samples(self, name: str, labels: dict[str, str]) -> Iterator[tuple[str, dict[str, str], float]]:
        counts = list(accumulate(self._counts))
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            yield f"{name}_bucket", {**labels, "le": bound}, count
        yield f"{name}_count", labels, counts[-1]
        yield f"{name}_sum", labels, self._sum


class NodeMetrics(NamedTuple):
    seconds: _Histogram
    failed: _Number
    rows: _Histogram


class RevisionMetrics:
    """Metrics of one revision; ``revision`` is empty for requests that reached none."""

    def __init__(self, metrics: Metrics, revision: str) -> None:
        self._revision = revision
        self._metrics = metrics
        self._seconds = metrics.get_histogram("scanflow_request_seconds", BUCKETS, revision=revision)
        self._responses: dict[int, _Number] = {}

    def count_response(self, status: int, seconds: float) -> None:
        counter = self._responses.get(status)
        if counter is None:
            counter = self._metrics.get_counter("scanflow_requests", revision=self._revision, code=str(status))
            self._responses[status] = counter
        counter.value += 1
        if status not in INVALID_STATUSES:
            self._seconds.observe(seconds)

    def make_node_metrics(self, name: str) -> NodeMetrics:
        labels, metrics = {"revision": self._revision, "node": name}, self._metrics
        return NodeMetrics(
            metrics.get_histogram("scanflow_node_seconds", BUCKETS, **labels),
            metrics.get_counter("scanflow_node_errors", **labels),
            metrics.get_histogram("scanflow_batch_rows", _ROWS, **labels),
        )


class Metrics:
    def __init__(self, service: str) -> None:
        self._service = service
        self._families: dict[str, Family] = dict(FAMILIES)
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], _Number | _Histogram] = {}
        for name in ("scanflow_recorded", "scanflow_dropped", "scanflow_in_flight", "scanflow_waiting"):
            self.get_counter(name)

    def get_counter(self, name: str, **labels: str) -> _Number:
        series = self._series.setdefault((name, (("service", self._service), *labels.items())), _Number())
        assert isinstance(series, _Number)
        return series

    def get_histogram(self, name: str, bounds: Sequence[float], **labels: str) -> _Histogram:
        series = self._series.setdefault((name, (("service", self._service), *labels.items())), _Histogram(bounds))
        assert isinstance(series, _Histogram)
        return series

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.get_counter(name, **labels).value += amount

    def count_custom(self, revision: str, metrics: Iterable[tuple[str, Any]]) -> None:
        """Count the metrics that components report by ``metrics()``, in Seldon's form: ``{"type", "key", "value"}``.

        Malformed metrics are skipped, and so are names beyond the first hundred.
        """
        for node, metric in metrics:
            if not isinstance(metric, dict) or not isinstance(metric.get("value"), (int, float)):
                continue
            kind = _CUSTOM_KINDS.get(str(metric.get("type", "COUNTER")).upper())
            key = _INVALID_CHARACTERS.sub("_", str(metric.get("key", "")))
            if not key or kind is None:
                continue
            name, value = f"{_CUSTOM}{key}" + ("_seconds" if kind == "histogram" else ""), float(metric["value"])
            if name not in self._families:
                if len(self._families) >= len(FAMILIES) + _MAX_CUSTOM:
                    continue
                self._families[name] = CUSTOM._replace(kind=kind)
            if self._families[name].kind != kind:
                continue
            if kind == "histogram":
                # Seldon's timers are in milliseconds.
                self.get_histogram(name, BUCKETS, revision=revision, node=node).observe(value / 1000)
                continue
            number = self.get_counter(name, revision=revision, node=node)
            number.value = value if kind == "gauge" else number.value + max(0.0, value)

    def collect_samples(self) -> Samples:
        samples: list[tuple[str, dict[str, str], float]] = []
        for (name, label_pairs), series in tuple(self._series.items()):
            labels = dict(label_pairs)
            if isinstance(series, _Histogram):
                samples += series.collect_samples(name, labels)
            else:
                suffix = "_total" if self._families[name].kind == "counter" else ""
                samples.append((name + suffix, labels, series.value))
        return samples

    def render(self, others: Samples) -> tuple[bytes, str]:
        """``others``: the samples of the service's other instances together."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        whole = CollectorRegistry()
        whole.register(_Sum(self._families, self.collect_samples(), others))
        return generate_latest(whole), CONTENT_TYPE_LATEST


class _Sum(Struct, eq=False):
    """A collector of ``prometheus_client``: the sums of an instance's samples and those of others."""

    families: Mapping[str, Family]
    own: Samples
    others: Samples

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import Metric

        sums: dict[tuple[str, ...], tuple[str, dict[str, str], float]] = {}
        for name, labels, value in (*self.own, *self.others):
            key = (name, *(f"{label}={labels[label]}" for label in sorted(labels)))
            before = sums.get(key)
            if before is None:
                sums[key] = name, labels, value
            elif not (name.startswith(_CUSTOM) and self.families.get(name, _FOREIGN).kind == "gauge"):
                sums[key] = name, labels, before[2] + value
        families: dict[str, Metric] = {}
        for name, labels, value in sums.values():
            family = next((name[: -len(suffix)] for suffix in _SUFFIXES if name.endswith(suffix)), name)
            kind, words, _ = self.families.get(family, _FOREIGN)
            family = name if kind == "untyped" else family
            families.setdefault(family, Metric(family, words, kind)).add_sample(name, labels, value)
        yield from families.values()
