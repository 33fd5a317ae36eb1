"""Query instances for their state, through the API server's pod proxy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, build_object_path
from scanflow.backends.kubernetes.online.instance_pods import MANAGEMENT_PORT
from scanflow.backends.service_metrics import MetricsWindow, Samples, Totals, compute_totals, parse_samples, sum_samples
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import ScanflowError

_THREADS: Final = 16
_TIMEOUT_S: Final = 5.0
"""The timeout of a query: an instance that takes longer hangs, or its node is gone."""

_COUNTERS: Final = ("_total", "_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The state that one instance reports."""

    threads: int | None = None
    cpus: tuple[int, ...] = ()
    """The CPUs of its affinity mask, as read inside its container."""

    in_flight: int = 0
    rss_bytes: int | None = None
    problem: str = ""
    devices: tuple[Mapping[str, Any], ...] = ()
    """The GPUs that it was granted, as it reads them back; see :class:`~scanflow.backends.run_records.DeviceUse`."""

    samples: Samples = field(default_factory=dict)


def query_instances(cluster: Cluster, groups: Sequence[Sequence[Manifest]]) -> list[dict[str, InstanceStatus]]:
    """Return the state of each pod by name, for each group of pods; without those that do not respond."""
    all_pods = [pod for pods in groups for pod in pods]
    if not all_pods:
        return [{} for _ in groups]
    with ThreadPoolExecutor(min(_THREADS, len(all_pods))) as pool:
        statuses = pool.map(lambda pod: _query_instance(cluster, pod), all_pods)
        return [
            {pod["metadata"]["name"]: status for pod in pods if (status := next(statuses)) is not None}
            for pods in groups
        ]


def parse_instance_status(document: Mapping[str, Any]) -> InstanceStatus:
    """Parse the response of an instance's ``/state``."""
    return InstanceStatus(
        threads=document.get("threads"),
        cpus=tuple(document.get("cpus") or ()),
        in_flight=int(document.get("in_flight") or 0),
        rss_bytes=document.get("rss_bytes"),
        problem=str(document.get("unwell") or ""),
        devices=tuple(document.get("devices") or ()),
        samples=parse_samples(document.get("metrics") or ()),
    )


def _query_instance(cluster: Cluster, pod: Manifest) -> InstanceStatus | None:
    metadata = pod["metadata"]
    path = build_object_path("Pod", f"{metadata['name']}:{MANAGEMENT_PORT}", namespace=metadata["namespace"])
    if pod.get("status", {}).get("phase") != "Running":
        return None
    try:
        return parse_instance_status(json.loads(cluster.fetch_text(f"{path}/proxy/state", timeout_s=_TIMEOUT_S)))
    except (ScanflowError, ValueError, TypeError, AttributeError):
        return None  # it is starting, ending or hanging: the status of its pod says more


@dataclass
class ServiceStatusCache:
    """The states that this process read from a service; includes the counters of removed instances."""

    live: dict[str, Samples] = field(default_factory=dict)
    gone: Samples = field(default_factory=dict)
    window: MetricsWindow = field(default_factory=lambda: MetricsWindow(0.0))
    statuses: Mapping[str, InstanceStatus] = field(default_factory=dict)
    """The state of each instance at the last query."""

    queried_at: float = -math.inf
    cached_record: tuple[Any, ServiceRecord] | None = None
    """The last record, and its cache key."""

    def is_due(self, now: float, pause_s: float) -> bool:
        """Return whether the last query was at least ``pause_s`` ago."""
        return now - self.queried_at >= pause_s

    def record_statuses(self, pod_names: Iterable[str], statuses: Mapping[str, InstanceStatus], now: float) -> Totals:
        """Record one query of all instances; return the totals."""
        present, self.statuses, self.queried_at = set(pod_names), statuses, now
        for name in [name for name in self.live if name not in present]:
            counters = {key: value for key, value in self.live.pop(name).items() if key[0].endswith(_COUNTERS)}
            self.gone = sum_samples([self.gone, counters])
        self.live |= {name: dict(status.samples) for name, status in statuses.items()}
        totals = compute_totals(sum_samples([self.gone, *self.live.values()]))
        self.window.record(totals, now, in_flight=sum(status.in_flight for status in statuses.values()))
        return totals
