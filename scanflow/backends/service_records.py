"""Records of deployed services, which are stored and sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

from pydantic import ConfigDict, Field

from scanflow.app.resources import AffinityMode
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.backends.device_load import compute_mean
from scanflow.backends.run_records import DeviceUse, Record
from scanflow.placement.queueing import Load
from scanflow.text.masking import Masker

InstanceState = Literal["starting", "ready", "draining", "waiting", "failed"]
"""``waiting``: it ended and will be restarted after a pause, or cannot start yet; ``failed``: it will not."""

ServiceState = Literal["starting", "ready", "degraded", "backup", "idle", "failed", "unsupervised"]
"""``degraded``: fewer instances are ready than desired; ``backup``: another service answers for it; ``idle``: scaled to
zero, the first request wakes it; ``unsupervised``: it has no supervisor (the machine was restarted, or its supervisor
was killed): any command on it starts a new one, which adopts the running instances."""

SHARES: Final[tuple[ScalingMetric, ...]] = ("cpu", "gpu", "gpu_memory")
"""The metrics that are a share of what an instance has."""


class Shape(Record):
    """The number, size and placement of a service's instances. It is stored with each model version."""

    instances: int = Field(default=1, ge=0)
    cores: float | None = Field(default=None, gt=0)
    """Cores of one instance; None: not limited."""

    memory_bytes: int | None = None
    """Memory of one instance."""

    gpu: int | float | str = 0
    """GPUs of one instance: whole ones, a share of one, or a MIG profile."""

    gpu_memory_bytes: int | None = None
    """Of a share, the most that an instance may use; else what each of its GPUs must have."""

    affinity: AffinityMode = "any"
    pool_threads: int | None = None
    """Threads in each of an instance's pools. None: one for each core."""

    threads: dict[str, str] = Field(default_factory=dict)
    """The thread variables of its environment, as derived."""


class CanaryPolicy(Record):
    """The rule by which a canary is promoted or removed automatically. See ``scanflow traffic --help``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    metric: Literal["errors", "p95", "mean"] = "errors"
    """Share of failed requests; 95th percentile or mean of the latency in seconds."""

    ratio: float = 1.0
    """Promote while the canary's value is at most this many times that of the current version ..."""

    slack: float = 0.0
    """... plus this much."""

    after_requests: int = 100
    """Decide when the canary has answered this many requests."""

    within_s: float = 600.0
    """Remove the canary if it has not answered that many requests within this many seconds."""

    @property
    def rule(self) -> str:
        """The rule as ``scanflow traffic --promote-if`` takes it: ``errors<=1x+0.01``."""
        slack = f"+{self.slack:g}" if self.slack else ""
        return f"{self.metric}<={self.ratio:g}x{slack}"


class InstanceRecord(Record):
    """One instance. A backend may add details of its own, such as process ids."""

    model_config = ConfigDict(frozen=True, extra="allow")

    instance: str
    state: InstanceState
    place: str | None = None
    """The cluster node it runs on. None: the backend has one machine."""

    began: float | None = None
    """Seconds since the epoch."""

    restarts: int = 0
    cores: float | None = None
    threads: int | None = None
    """Its number of threads, counted after warm-up."""

    rss_bytes: int | None = None
    cpu_share: float | None = None
    """Share of its cores used since the last sample."""

    in_flight: int = 0
    error: str | None = None
    """The reason for its last end, with the command that shows its log."""

    waits_for: str | None = None
    """What it waits for before it can start: ``a GPU: GPU 0 is granted to digits/1``."""

    @property
    def pid(self) -> int | None:
        """The process id, if it runs on this machine."""
        pid: int | None = (self.model_extra or {}).get("pid")
        return pid

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs it may use, as read back from the kernel; none: any."""
        return tuple((self.model_extra or {}).get("cpus", ()))

    @property
    def devices(self) -> tuple[DeviceUse, ...]:
        """The GPUs that it was granted, and what was seen of their use."""
        return tuple(map(DeviceUse.model_validate, (self.model_extra or {}).get("devices", ())))

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes it allocates memory from; none: any."""
        return tuple((self.model_extra or {}).get("memory_nodes", ()))

    @property
    def gpu_power_w(self) -> float | None:
        """The power that its GPUs take together. None: it has no whole ones, or they do not say."""
        powers = [use.power_w for use in self.devices if use.power_w is not None]
        return sum(powers) if powers else None

    def find_share(self, metric: ScalingMetric) -> float | None:
        """Return how much it uses of its cores (``cpu``), of the time of its GPUs (``gpu``) or of their memory
        (``gpu_memory``), as a share of what it has; None: not known, or the metric is another one."""
        if metric == "cpu":
            return self.cpu_share
        if metric == "gpu":
            return compute_mean(use.busy_share for use in self.devices)
        return compute_mean(use.memory_share for use in self.devices) if metric == "gpu_memory" else None


class NodeTraffic(Record):
    """Requests that reached a node of a graph in the last minute."""

    rps: float
    error_share: float = 0.0
    """Share of the requests whose call of the node's component failed."""

    p95_s: float | None = None
    """95th percentile of the calls' latency."""


class RevisionRecord(Record):
    """A served version of the graph, and its share of the requests."""

    id: str
    models: dict[str, str] = Field(default_factory=dict)
    """For each node that is a registered model: ``models:/name/3``."""

    weight: float = 1.0
    shadow: bool = False
    role: Literal["current", "canary", "shadow"] = "current"
    requests: int = 0
    errors: int = 0
    rps: float | None = None
    """Recent requests per second."""

    error_share: float | None = None
    """Recent share of failed requests. None: not measured."""

    p50_s: float | None = None
    p95_s: float | None = None
    nodes: dict[str, NodeTraffic] = Field(default_factory=dict)
    """Recent traffic of the nodes of its graph. Empty: not measured."""

    buckets: tuple[tuple[float, int], ...] = ()
    """Cumulative counts of requests by latency limit in seconds, since the service started. The rest of the valid ones
    took longer than the last limit. Empty: this backend counts none."""

    invalid: int = 0
    """Those of ``requests`` that were refused before any model got them. Their latency is not counted."""

    @property
    def counts(self) -> dict[float, float]:
        """The buckets, and that of all valid requests."""
        return {**dict(self.buckets), math.inf: self.requests - self.invalid} if self.buckets else {}

    def compute_latency(self, share: float) -> float | None:
        """Return the latency in seconds within which a share of all its requests was answered; None: not measured."""
        return compute_quantile(self.counts, share)


class Explanation(Record):
    """The last scaling decision, with its inputs."""

    service: str
    at: float
    metric: str
    sample: float | None
    """The last value of the metric; None: not measured yet."""

    target: float
    up: float
    down: float
    instances: int
    """The number before the decision."""

    wanted: int
    formula: str
    """The formula with its numbers: ``ceil(2 x 31.0 / 20.0) = 4, at most max=3``."""

    decision: str
    """The decision: ``add 1``, ``stay: 12 s of the cool-down are left``."""


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
    """The number of changes requested."""

    settled: int = 0
    """The newest generation that is completely in effect."""

    shape: Shape
    """The desired shape, by the last deploy, scale or autoscaling decision."""

    previous: bool = False
    """Whether there is an earlier definition to roll back to."""

    previous_models: dict[str, str] = Field(default_factory=dict)
    """The models of that definition, as ``models`` of a revision; with a canary those that stay."""

    policy: CanaryPolicy | None = None
    """The rule that promotes or removes its canary; None: there is none, or a person decides."""

    tracker: str | None = None
    """The address of its application's tracker; None: the default one."""

    backup: str | None = None
    ready: int = 0
    """The number of ready instances of the current revision."""

    instances: tuple[InstanceRecord, ...] = ()
    revisions: tuple[RevisionRecord, ...] = ()
    source: str | None = None
    created: float = 0.0
    recorded: int = 0
    """Predictions uploaded to the tracker."""

    dropped: int = 0
    """Predictions that should have been recorded and were lost."""

    error: str | None = None
    """Why the last change did not take effect; if none failed, why an instance ended or cannot start."""

    failed_change: int | None = None
    """The generation of the last change, if it failed."""

    scaling: Scaling | None = None
    """The autoscaling rule; None: the number of instances is the shape's."""

    load: Load | None = None
    """The recent load; None: not measured."""

    explanation: Explanation | None = None
    """The last scaling decision, only if a single service was requested. None: there is none yet."""

    @property
    def folder(self) -> str:
        """The folder of its files, if the backend has one; else empty."""
        return str((self.model_extra or {}).get("folder", ""))

    @property
    def gpu_power_w(self) -> float | None:
        """The power that the GPUs of its instances take together. None: there are no whole ones, or they do not say."""
        powers = [power for instance in self.instances if (power := instance.gpu_power_w) is not None]
        return sum(powers) if powers else None

    def compute_share(self, metric: ScalingMetric) -> float | None:
        """Return the share that each ready instance uses in the mean of its cores (``cpu``), of the time of its GPUs
        (``gpu``) or of their memory (``gpu_memory``); None: not known, or the metric is another one."""
        return compute_mean(instance.find_share(metric) for instance in self.instances if instance.state == "ready")

    @property
    def current(self) -> RevisionRecord | None:
        """The stable revision, beside which there may be a canary."""
        return next((revision for revision in self.revisions if revision.role == "current"), None)


def mask_errors(record: ServiceRecord, masker: Masker) -> ServiceRecord:
    """Return a service's record with secrets masked in its errors and its instances'."""
    instances = tuple(
        instance if instance.error is None else instance.model_copy(update={"error": masker.mask_text(instance.error)})
        for instance in record.instances
    )
    error = None if record.error is None else masker.mask_text(record.error)
    return record.model_copy(update={"error": error, "instances": instances})


class Progress(Record):
    """A progress message of a change, for people."""

    service: str
    text: str
    """``instance 2 is ready on core 1 (1.2 s)``"""


ServiceObserver = Callable[[Progress], None]


def compute_quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the quantile of a cumulative histogram; None: it is empty.

    Observations are interpolated linearly inside a bucket, as in Prometheus' ``histogram_quantile``; above the last
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
