"""How many instances a service should have: a pure decision, and the memory around it.

The formula is that of Kubernetes' HorizontalPodAutoscaler, ``ceil(instances x sample / target)``, so that the same rule
means the same there. It counts only outside the band between the two thresholds, and instances are taken away only once
the cool-down has passed.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

from scanflow.app.scaling import Scaling
from scanflow.backends.local.services.spec.service_spec import ServiceSpec
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.metrics import MetricsWindow
from scanflow.backends.service_records import Explanation

_BY_HAND = Scaling(metric="queue", target=1, min=0, max=1)
"""A service that was scaled to zero by hand: its first request wakes it, and it sleeps again when it is left alone."""


class Autoscaler:
    """How many instances there should be: as many as the shape says, or what the rule decides."""

    def __init__(self, definition: ServiceSpec, now: float, count: int | None) -> None:
        self._last: Explanation | None = None
        self.begin(definition, now, count=count)

    def begin(self, definition: ServiceSpec, now: float, *, count: int | None = None) -> None:
        """Start from what a definition says, or from ``count``, what an earlier supervisor had decided."""
        self._service, instances = definition.workflow, definition.shape.instances
        self._scaling = scaling = definition.scaling or (None if instances else _BY_HAND)
        if scaling is None:
            self.count = instances
        elif count is not None:
            self.count = min(max(count, scaling.min), scaling.max)
        else:  # even what may sleep is started once, so that what cannot start is known now
            self.count = min(max(instances, scaling.min, 1), scaling.max)
        self._changed = self._looked = now

    def due(self, now: float) -> bool:
        return self._scaling is not None and now - self._looked >= cast("float", self._scaling.polling)

    def look(self, window: MetricsWindow, ready: list[Instance], now: float, wall: float) -> str | None:
        """Decide again; return what changed, in words. ``wall``: seconds since the epoch."""
        scaling = self._scaling
        assert scaling is not None
        self._looked = now
        sample = window.sample(
            scaling.metric,
            max(cast("float", scaling.polling), 1.0),
            queues=[float(one.state.get("queue") or 0) for one in ready],
            cpu_shares=[one.cpu_share for one in ready if one.cpu_share is not None],
        )
        active = max(window.active, self._changed)
        made = decide(scaling, self.count, sample, now=now, changed=self._changed, active=active)
        self._last = self._explained(made, sample, wall)
        if made.wanted == self.count:
            return None
        said = f"scaling from {self.count} to {made.wanted}: {made.formula}"
        self.count, self._changed = made.wanted, now
        return said

    def wake(self, now: float) -> None:
        """Have one instance, since a client waits."""
        if self.count == 0:
            self.count, self._changed = 1, now

    def explanation(self, wall: float) -> Explanation:
        """Return the last decision, or why there is none."""
        if self._last is not None and self._scaling is not None:
            return self._last
        why = "stay: nothing was measured yet" if self._scaling else "stay: it has no scaling"
        return self._explained(ScalingDecision(self.count, f"{self.count}", why), None, wall)

    def _explained(self, made: ScalingDecision, sample: float | None, wall: float) -> Explanation:
        scaling = self._scaling
        return Explanation(
            service=self._service,
            at=wall,
            metric=scaling.metric if scaling else "none",
            sample=sample,
            target=scaling.target if scaling else 0.0,
            up=scaling.up_threshold if scaling else 0.0,
            down=scaling.down_threshold if scaling else 0.0,
            instances=self.count,
            wanted=made.wanted,
            formula=made.formula,
            decision=made.words,
        )


class ScalingDecision(NamedTuple):
    wanted: int
    formula: str
    words: str


def decide(
    scaling: Scaling, instances: int, sample: float | None, *, now: float, changed: float, active: float
) -> ScalingDecision:
    """Return how many instances there should be, and why. Pure.

    ``sample`` is the metric's value per instance, None where nothing was measured: no requests, which counts as
    nothing to do. No instance at all is for a service that has seen no request for the cool-down; the first request
    ends that, and not this function. ``changed``: when their number last changed; ``active``: when a request was last
    seen, both in seconds on the clock of ``now``.
    """
    cool_down = cast("float", scaling.cool_down)
    raw, formula = _wanted(scaling, instances, sample)
    least = scaling.min if instances == 0 else max(scaling.min, 1)
    wanted = min(max(raw, least), scaling.max)
    if wanted != raw:
        formula += f", at least {least}" if raw < least else f", at most max={scaling.max}"
    change = wanted - instances
    words = "stay" if change == 0 else f"add {change}" if change > 0 else f"take away {-change}"
    if scaling.min == 0 and instances > 0 and wanted <= 1:
        idle = now - active
        if idle >= cool_down and now - changed >= cool_down:
            wanted, words = 0, f"sleep: no request for {idle:.0f} s"
    if wanted < instances <= scaling.max and (left := cool_down - (now - changed)) > 0:
        wanted, words = instances, f"stay: {math.ceil(left)} s of the cool-down are left"
    return ScalingDecision(wanted, formula, words)


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
