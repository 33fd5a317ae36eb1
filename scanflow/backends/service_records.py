"""What a backend tells of deployed services, and what can be asked of one: records to keep and send."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import ConfigDict, Field

from scanflow.app.resources import AffinityMode
from scanflow.app.scaling import Scaling
from scanflow.backends.records import Record
from scanflow.html_table import html_table
from scanflow.placement.scaling import Load

InstanceState = Literal["starting", "ready", "draining", "waiting", "failed"]
"""``waiting``: it ended and will be started again after a pause; ``failed``: it will not."""

ServiceState = Literal["starting", "ready", "degraded", "backup", "idle", "failed", "unsupervised"]
"""``degraded``: fewer instances are ready than wanted; ``backup``: another service answers for it; ``idle``: scaled to
zero, the first request wakes it; ``unsupervised``: nobody watches it (the machine was restarted, or its supervisor was
killed): any command on it starts a new supervisor, which adopts what runs."""


class Shape(Record):
    """How many instances a service has, how large they are and where they run. It is kept with each model version."""

    instances: int = Field(default=1, ge=0)
    cores: float | None = Field(default=None, gt=0)
    """Cores of one instance; None: not limited."""

    memory_bytes: int | None = None
    """Memory of one instance."""

    affinity: AffinityMode = "any"
    pool_threads: int | None = None
    """Threads in each of an instance's pools. None: one for each core."""

    threads: dict[str, str] = Field(default_factory=dict)
    """The thread variables of its environment, as derived."""


class CanaryPolicy(Record):
    """When a canary is promoted or removed automatically. See ``scanflow traffic --help``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    metric: Literal["errors", "p95", "mean"] = "errors"
    """Share of failed requests; 95th percentile or mean of the latency in seconds."""

    ratio: float = 1.0
    """Promote while the canary's value is at most this many times that of the current version ..."""

    slack: float = 0.0
    """... plus this much."""

    after_requests: int = 100
    """Decide when the canary has answered this many."""

    within_s: float = 600.0
    """Remove the canary if it has not answered so many within this many seconds."""


class InstanceRecord(Record):
    """One running copy. A backend may add details of its own, such as process ids."""

    model_config = ConfigDict(frozen=True, extra="allow")

    instance: str
    state: InstanceState
    place: str | None = None
    """Where it runs, where there are several places: a cluster's node. None: on the backend's only machine."""

    began: float | None = None
    """Seconds since the epoch."""

    restarts: int = 0
    cores: float | None = None
    threads: int | None = None
    """Threads at work in it, counted after warm-up."""

    rss_bytes: int | None = None
    cpu_share: float | None = None
    """Share of its cores used since the last look."""

    in_flight: int = 0
    error: str | None = None
    """Why it ended the last time, with the command that shows its log."""

    @property
    def pid(self) -> int | None:
        """The process, where it is one of this machine."""
        found: int | None = (self.model_extra or {}).get("pid")
        return found

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs of this machine that it may use, as read back from the kernel; none: any."""
        return tuple((self.model_extra or {}).get("cpus", ()))

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes of this machine that it takes memory from; none: any."""
        return tuple((self.model_extra or {}).get("memory_nodes", ()))


class RevisionRecord(Record):
    """A graph that is served, and its share."""

    id: str
    models: dict[str, str] = Field(default_factory=dict)
    """For each node that is a registered model: ``models:/name/3``."""

    weight: float = 1.0
    shadow: bool = False
    role: Literal["current", "canary", "shadow"] = "current"
    requests: int = 0
    errors: int = 0
    rps: float | None = None
    """Requests a second, lately."""

    p50_s: float | None = None
    p95_s: float | None = None
    buckets: tuple[tuple[float, int], ...] = ()
    """For each limit, in seconds, how many requests took at most that long since the service began; those of smaller
    limits included. Beyond the last are the rest of ``requests``. Empty: this backend counts none."""


class Explanation(Record):
    """Why a service has as many instances as it has."""

    service: str
    at: float
    metric: str
    sample: float | None
    """The last value of the metric; None: nothing was measured yet."""

    target: float
    up: float
    down: float
    instances: int
    """Before the decision."""

    wanted: int
    formula: str
    """With the numbers in it: ``ceil(2 x 31.0 / 20.0) = 4, at most max=3``."""

    decision: str
    """In words: ``add 1``, ``stay: 12 s of the cool-down are left``."""


class ServiceRecord(Record):
    """A deployed online workflow. A backend may add details of its own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    """The workflow's name; unique in one home, whatever the application."""

    app: str
    team: str
    state: ServiceState
    url: str
    """``http://127.0.0.1:46700``"""

    grpc: str | None = None
    """``127.0.0.1:46701``"""

    generation: int
    """Counts the changes that were asked for."""

    settled: int = 0
    """The newest generation that is wholly in effect."""

    shape: Shape
    """As wanted now, by the last deploy, scale or autoscaling decision."""

    previous: bool = False
    """Whether there is something to roll back to."""

    tracker: str | None = None
    """The address of its application's tracker; None: the default one."""

    backup: str | None = None
    ready: int = 0
    """How many instances of its current revision answer."""

    instances: tuple[InstanceRecord, ...] = ()
    revisions: tuple[RevisionRecord, ...] = ()
    source: str | None = None
    created: float = 0.0
    recorded: int = 0
    """Predictions taken to the tracker."""

    dropped: int = 0
    """Predictions that were to be recorded and could not be kept."""

    error: str | None = None
    """Why the last change did not come into effect."""

    scaling: Scaling | None = None
    """What decides on the number of instances; None: nothing, it is as many as the shape says."""

    load: Load | None = None
    """What it was measured at lately; None: nothing was."""

    explanation: Explanation | None = None
    """The last decision on the number of instances, where one service is asked for. None: nothing has decided yet."""

    @property
    def folder(self) -> str:
        """Where it keeps its files, on a backend that does; else nothing."""
        return str((self.model_extra or {}).get("folder", ""))

    @property
    def current(self) -> RevisionRecord | None:
        """The stable version, beside which there may be a canary."""
        return next((one for one in self.revisions if one.role == "current"), None)

    def _repr_html_(self) -> str:
        rows = [
            (
                one.role,
                ", ".join(one.models.values()) or one.id,
                "copies" if one.shadow else f"{one.weight:.0%}",
                one.requests,
                one.errors,
                None if one.p95_s is None else f"{one.p95_s * 1000:.3g} ms",
            )
            for one in self.revisions
        ]
        columns = ("revision", "models", "share", "requests", "errors", "p95")
        notes = [f"{self.ready} of {self.shape.instances} instances ready", *filter(None, [self.error])]
        return html_table(f"Service {self.name}, {self.state} at {self.url}", columns, rows, *notes)


class Progress(Record):
    """Something that happened on the way of a change, for people."""

    service: str
    text: str
    """``instance 2 is ready on core 1 (1.2 s)``"""


ServiceObserver = Callable[[Progress], None]


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the value below which that share of the observations lies; None if there are none.

    Inside a bucket observations are taken as spread evenly, as in Prometheus' ``histogram_quantile``; above the last
    finite limit that limit is returned.
    """
    rank = share * max(buckets.values(), default=0.0)
    if rank <= 0:
        return None
    lower = seen = 0.0
    for limit in sorted(buckets):
        count = buckets[limit]
        if count >= rank:
            inside = count - seen
            return lower if math.isinf(limit) or inside <= 0 else lower + (limit - lower) * (rank - seen) / inside
        lower, seen = limit, count
    return lower
