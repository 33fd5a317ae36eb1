"""What a backend tells of deployed services, and what can be asked of one: records to keep and send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from scanflow.app.resources import AffinityMode

__all__ = [
    "Explanation",
    "InstanceRecord",
    "InstanceState",
    "Judgement",
    "Progress",
    "RevisionRecord",
    "ServiceObserver",
    "ServiceRecord",
    "ServiceState",
    "Shape",
]

InstanceState = Literal["starting", "ready", "draining", "waiting", "failed"]
"""``waiting``: it ended and will be started again after a pause; ``failed``: it will not."""

ServiceState = Literal["starting", "ready", "degraded", "backup", "idle", "failed", "unsupervised"]
"""``degraded``: fewer instances are ready than wanted; ``backup``: another service answers for it; ``idle``: scaled to
zero, the first request wakes it; ``unsupervised``: nobody watches it (the machine was restarted, or its supervisor was
killed): any command on it starts a new supervisor, which adopts what runs."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Shape(_Record):
    """How a service is cut and where it sits: what travels with a model version and comes back with it."""

    instances: int = Field(default=1, ge=0)
    cores: float | None = Field(default=None, gt=0)
    """Cores of one instance; None: not limited."""

    memory_bytes: int | None = None
    """Memory of one instance."""

    affinity: AffinityMode = "any"
    threads: dict[str, str] = Field(default_factory=dict)
    """The thread guard's variables, as derived."""


class Judgement(_Record):
    """When a canary is promoted or taken back without anybody's hand. See ``scanflow traffic --help``."""

    metric: Literal["errors", "p95", "mean"] = "errors"
    """Share of failed requests; 95th percentile or mean of the latency in seconds."""

    ratio: float = 1.0
    """Promote while the canary's value is at most this many times that of the current version ..."""

    slack: float = 0.0
    """... plus this much."""

    after_requests: int = 100
    """Judge when the canary has answered this many."""

    within_s: float = 600.0
    """Take the canary back if it has not answered so many until then."""


class InstanceRecord(_Record):
    """One running copy."""

    instance: str
    state: InstanceState
    pid: int | None = None
    began: float | None = None
    """Seconds since the epoch."""

    restarts: int = 0
    cpus: tuple[int, ...] = ()
    """As read back from the kernel."""

    memory_nodes: tuple[int, ...] = ()
    cores: float | None = None
    threads: int | None = None
    """Threads at work in it, counted after warm-up."""

    rss_bytes: int | None = None
    cpu_share: float | None = None
    """Share of its cores used since the last look."""

    in_flight: int = 0
    error: str | None = None
    """Why it ended the last time, with the command that shows its log."""


class RevisionRecord(_Record):
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


class ServiceRecord(_Record):
    """A deployed online workflow."""

    name: str
    """The workflow's name; unique in one home, whatever the application."""

    app: str
    team: str
    state: ServiceState
    url: str
    """``http://127.0.0.1:46700``"""

    grpc: str | None = None
    """``127.0.0.1:46701``"""

    folder: str
    generation: int
    """Counts the changes that were asked for."""

    settled: int = 0
    """The newest generation that is wholly in effect."""

    shape: Shape
    """As wanted now, by the last deploy, scale or autoscaling decision."""

    previous: bool = False
    """Whether there is something to roll back to."""

    backup: str | None = None
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

    @property
    def current(self) -> RevisionRecord | None:
        """What answers, beside a version that may be on trial."""
        return next((one for one in self.revisions if one.role == "current"), None)


class Explanation(_Record):
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


class Progress(_Record):
    """Something that happened on the way of a change, for people."""

    service: str
    text: str
    """``instance 2 is ready on core 1 (1.2 s)``"""


ServiceObserver = Callable[[Progress], None]
