"""What instances say of themselves, asked through the API server's proxy of their pods."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, path_of
from scanflow.backends.kubernetes.online.pods import MANAGEMENT_PORT
from scanflow.backends.service_metrics import MetricsWindow, Samples, Totals, parsed, summed, totals_of
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import ScanflowError

_AT_ONCE: Final = 16
_ANSWERS_S: Final = 5.0
"""One that takes longer hangs, or its node is gone: nobody waits for it."""

_COUNTERS: Final = ("_total", "_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class InstanceLook:
    """One instance's account of itself."""

    threads: int | None = None
    cpus: tuple[int, ...] = ()
    """The CPUs that its kernel lets it use, as it read them itself, inside its container."""

    in_flight: int = 0
    rss_bytes: int | None = None
    unwell: str = ""
    samples: Samples = field(default_factory=dict)


def look_at(cluster: Cluster, groups: Sequence[Sequence[Manifest]]) -> list[dict[str, InstanceLook]]:
    """Return, for each group of pods, what its pods say, all asked at once; of one that does not answer, nothing."""
    known = [pod for pods in groups for pod in pods]
    if not known:
        return [{} for _ in groups]
    with ThreadPoolExecutor(min(_AT_ONCE, len(known))) as pool:
        said = pool.map(lambda pod: _look(cluster, pod), known)
        return [{pod["metadata"]["name"]: one for pod in pods if (one := next(said)) is not None} for pods in groups]


def look_of(document: Mapping[str, Any]) -> InstanceLook:
    """Return what an instance's ``/state`` says."""
    return InstanceLook(
        threads=document.get("threads"),
        cpus=tuple(document.get("cpus") or ()),
        in_flight=int(document.get("in_flight") or 0),
        rss_bytes=document.get("rss_bytes"),
        unwell=str(document.get("unwell") or ""),
        samples=parsed(document.get("metrics") or ()),
    )


def _look(cluster: Cluster, pod: Manifest) -> InstanceLook | None:
    metadata = pod["metadata"]
    path = path_of("Pod", f"{metadata['name']}:{MANAGEMENT_PORT}", namespace=metadata["namespace"])
    if pod.get("status", {}).get("phase") != "Running":
        return None
    try:
        return look_of(json.loads(cluster.text(f"{path}/proxy/state", timeout_s=_ANSWERS_S)))
    except (ScanflowError, ValueError, TypeError, AttributeError):
        return None  # it starts, ends or hangs: its pod says more


@dataclass
class ServiceLooks:
    """What was seen of a service by this process: the counters of instances that are gone are kept."""

    live: dict[str, Samples] = field(default_factory=dict)
    gone: Samples = field(default_factory=dict)
    window: MetricsWindow = field(default_factory=lambda: MetricsWindow(0.0))
    looks: Mapping[str, InstanceLook] = field(default_factory=dict)
    """What its instances said when they were asked last."""

    asked: float = -math.inf
    reported: tuple[Any, ServiceRecord] | None = None
    """The record that was made last, and what it was made of."""

    def is_due(self, now: float, pause_s: float) -> bool:
        """Say whether the instances were asked longer ago than that."""
        return now - self.asked >= pause_s

    def see(self, there: Iterable[str], looks: Mapping[str, InstanceLook], now: float) -> Totals:
        """Take in one look at all instances; return what was counted until now."""
        names, self.looks, self.asked = set(there), looks, now
        for name in [name for name in self.live if name not in names]:
            counters = {key: value for key, value in self.live.pop(name).items() if key[0].endswith(_COUNTERS)}
            self.gone = summed([self.gone, counters])
        self.live |= {name: dict(one.samples) for name, one in looks.items()}
        totals = totals_of(summed([self.gone, *self.live.values()]))
        self.window.look(totals, now, in_flight=sum(one.in_flight for one in looks.values()))
        return totals
