"""How many instances a service should have: a pure decision, and the memory around it.

The formula is that of Kubernetes' HorizontalPodAutoscaler, ``ceil(instances x sample / target)``, so that the same rule
means the same there. It counts only outside the band between the two thresholds, and instances are taken away only once
the cool-down has passed.
"""

from __future__ import annotations

import math
from typing import cast

from scanflow.app.scaling import Scaling
from scanflow.backends.local.services.spec.service_spec import ServiceSpec
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
            changed=self._changed,
            active=max(window.active, self._changed),
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


def decide(
    scaling: Scaling, *, service: str, instances: int, sample: float | None, now: float, changed: float, active: float
) -> Explanation:
    """Return how many instances there should be, and why. Pure.

    ``now``, ``changed`` (when their number last changed) and ``active`` (when a request was last seen) are seconds on
    one clock.

    ``sample`` is the metric's value per instance, None where nothing was measured: no requests, which counts as
    nothing to do. No instance at all is for a service that has seen no request for the cool-down; the first request
    ends that, and not this function.
    """
    cool_down = cast("float", scaling.cool_down)
    raw, formula = _wanted(scaling, instances, sample)
    least = scaling.min if instances == 0 else max(scaling.min, 1)
    bounded = min(max(raw, least), scaling.max)
    if bounded != raw:
        formula += f", at least {least}" if raw < least else f", at most max={scaling.max}"
    wanted, decision = bounded, _describe(bounded - instances)
    if scaling.min == 0 and instances > 0 and wanted <= 1:
        idle = now - active
        if idle >= cool_down and now - changed >= cool_down:
            wanted, decision = 0, f"sleep: no request for {idle:.0f} s"
    if wanted < instances <= scaling.max and (left := cool_down - (now - changed)) > 0:
        wanted, decision = instances, f"stay: {math.ceil(left)} s of the cool-down are left"
    return Explanation(
        service=service,
        at=now,
        metric=scaling.metric,
        sample=sample,
        target=scaling.target,
        up=scaling.up_threshold,
        down=scaling.down_threshold,
        instances=instances,
        wanted=wanted,
        formula=formula,
        decision=decision,
    )


def _wanted(scaling: Scaling, instances: int, sample: float | None) -> tuple[int, str]:
    """Return what the formula asks for, without bounds and waiting."""
    if instances == 0:
        return 0, "0: the first request wakes an instance"
    value = 0.0 if sample is None else max(0.0, sample)
    if scaling.down_threshold <= value <= scaling.up_threshold:
        return instances, (f"{value:g} is between {scaling.down_threshold:g} and {scaling.up_threshold:g}: {instances}")
    # A sample far beyond the bounds must not make a number that no integer holds.
    needed = math.ceil(min(instances * value / scaling.target, 1e9))
    formula = f"ceil({instances} x {value:g} / {scaling.target:g}) = {needed}"
    if value > scaling.up_threshold:
        return max(needed, instances + 1), formula
    return min(needed, instances), formula


def _describe(change: int) -> str:
    if change == 0:
        return "stay"
    return f"add {change}" if change > 0 else f"take away {-change}"
