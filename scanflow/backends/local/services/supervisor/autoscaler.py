"""How many instances there should be now, over time: the autoscaler's memory around its pure decision."""

from __future__ import annotations

from typing import cast

from scanflow.app.scaling import Scaling
from scanflow.backends.local.services.spec.service_spec import ServiceSpec
from scanflow.backends.local.services.supervisor.autoscaling import History, decide
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.metrics import MetricsWindow
from scanflow.backends.service_records import Explanation

_BY_HAND = Scaling(metric="queue", target=1, min=0, max=1)
"""A service that was scaled to zero by hand: its first request wakes it, and it sleeps again when it is left alone."""


def scaling_of(definition: ServiceSpec) -> Scaling | None:
    """Return the rule by which instances are counted; None: there are always as many as the shape says."""
    if definition.scaling is not None:
        return definition.scaling
    return _BY_HAND if definition.shape.instances == 0 else None


class Autoscaler:
    """The number of instances wanted, and why."""

    def __init__(self, now: float) -> None:
        self.count = 1
        self.explanation: Explanation | None = None
        self._changed = now
        self._looked = now

    def begin(self, definition: ServiceSpec, now: float, *, count: int | None = None) -> None:
        """Start from what a definition says, or from ``count``, what an earlier supervisor had decided."""
        scaling = scaling_of(definition)
        if scaling is None:
            self.count = definition.shape.instances
        elif count is not None:
            self.count = min(max(count, scaling.min), scaling.max)
        else:  # even what may sleep is started once, so that what cannot start is known now
            self.count = min(max(definition.shape.instances, scaling.min, 1), scaling.max)
        self._changed = self._looked = now

    def due(self, definition: ServiceSpec, now: float) -> bool:
        """Say whether it is time to look at the metric again."""
        scaling = scaling_of(definition)
        return scaling is not None and now - self._looked >= cast("float", scaling.polling)

    def look(
        self, definition: ServiceSpec, window: MetricsWindow, ready: list[Instance], now: float, wall: float
    ) -> str | None:
        """Decide again; return what changed, in words. ``wall``: seconds since the epoch."""
        scaling = scaling_of(definition)
        if scaling is None:
            return None
        self._looked = now
        made = decide(
            scaling,
            service=definition.workflow,
            instances=self.count,
            sample=window.sample(
                scaling.metric,
                max(cast("float", scaling.polling), 1.0),
                queues=[float(one.state.get("queue") or 0) for one in ready],
                cpu_shares=[one.cpu_share for one in ready if one.cpu_share is not None],
            ),
            now=now,
            history=History(changed=self._changed, active=max(window.active, self._changed)),
        )
        self.explanation = made.model_copy(update={"at": wall})
        if made.wanted == self.count:
            return None
        said = f"scaling from {self.count} to {made.wanted}: {made.formula}"
        self.count, self._changed = made.wanted, now
        return said

    def wake(self, now: float) -> None:
        """Have one instance, since a client waits."""
        if self.count == 0:
            self.count, self._changed = 1, now

    def still(self, definition: ServiceSpec, wall: float) -> Explanation:
        """Return the last decision, or why there is none."""
        if self.explanation is not None and scaling_of(definition) is not None:
            return self.explanation
        scaling = scaling_of(definition)
        return Explanation(
            service=definition.workflow,
            at=wall,
            metric=scaling.metric if scaling else "none",
            sample=None,
            target=scaling.target if scaling else 0.0,
            up=scaling.up_threshold if scaling else 0.0,
            down=scaling.down_threshold if scaling else 0.0,
            instances=self.count,
            wanted=self.count,
            formula=f"{self.count}",
            decision="stay: nothing was measured yet" if scaling else "stay: it has no scaling",
        )
