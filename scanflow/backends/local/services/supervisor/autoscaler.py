"""How many instances a service should have: a pure decision, and the memory around it.

The formula is that of Kubernetes' HorizontalPodAutoscaler, ``ceil(ready x sample / target)``, so that the same rule
means the same there: within the tolerance nothing changes, instances are added at once, and they are taken away once
fewer were enough for the stabilization window. A latency is in no proportion to the instances: it is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

from scanflow.app.scaling import Scaling
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import Explanation
from scanflow.backends.service_spec import ServiceSpec
from scanflow.placement.scaling import Load, Recommendation, recommend, stabilised

_BY_HAND = Scaling(metric="queue", target=1, min=0, max=1)
"""A service that was scaled to zero by hand: its first request wakes it, and it sleeps again when it is left alone."""


class Autoscaler:
    """How many instances there should be: as many as the shape says, or what the rule decides."""

    def __init__(self, definition: ServiceSpec, now: float, count: int | None) -> None:
        self._last: Explanation | None = None
        self._past: list[Recommendation] = []
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
        self._looked = now
        if count is None or not self._past:
            self._past, self._changed = [Recommendation(now, self.count)], now

    def due(self, now: float) -> bool:
        return self._scaling is not None and now - self._looked >= cast("float", self._scaling.polling)

    def look(self, window: MetricsWindow, ready: list[Instance], now: float, wall: float) -> str | None:
        """Decide again; return what changed, in words. ``wall``: seconds since the epoch."""
        scaling = self._scaling
        assert scaling is not None
        self._looked = now
        polling = cast("float", scaling.polling)
        seen = Observation(
            at=now,
            sample=window.sample(
                scaling.metric,
                max(polling, 1.0),
                queues=[float(one.state.get("queue") or 0) for one in ready],
                cpu_shares=[one.cpu_share for one in ready if one.cpu_share is not None],
            ),
            ready=len(ready),
            active=max(window.active, self._changed),
            load=window.load(len(ready), polling),
        )
        made = decide(scaling, self.count, seen, self._past)
        oldest = now - cast("float", scaling.stabilization_window_s)
        self._past = [*(one for one in self._past if one.at > oldest), made.recommended]
        self._last = self._explained(made.wanted, made.formula, made.words, seen.sample, wall)
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
        return self._explained(self.count, f"{self.count}", why, None, wall)

    def _explained(self, wanted: int, formula: str, words: str, sample: float | None, wall: float) -> Explanation:
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
            wanted=wanted,
            formula=formula,
            decision=words,
        )


class Observation(NamedTuple):
    """What a service was seen to do, in seconds on any clock."""

    at: float
    sample: float | None
    """The metric's value for each instance that is ready; None: nothing was measured, which counts as nothing to do."""

    ready: int
    active: float
    """When a request was last seen, or the number of instances last changed."""

    load: Load | None = None


class ScalingDecision(NamedTuple):
    wanted: int
    formula: str
    words: str
    recommended: Recommendation


def decide(scaling: Scaling, instances: int, seen: Observation, past: Sequence[Recommendation] = ()) -> ScalingDecision:
    """Return how many instances there should be, and why. Pure.

    ``past``: what was recommended in the stabilization window. No instance at all is for a service that has seen no
    request for the cool-down; the first request ends that, and not this function.
    """
    idle = seen.at - seen.active
    recommended, formula = _recommended(scaling, instances, seen, past)
    raw = recommended.instances
    least = scaling.min if instances == 0 else max(scaling.min, 1)
    bounded = min(max(raw, least), scaling.max)
    if bounded != raw:
        formula += f", at least {least}" if raw < least else f", at most max={scaling.max}"
    recommended = recommended._replace(instances=bounded)
    wanted = min(stabilised(instances, [*past, recommended]), scaling.max)
    change = wanted - instances
    words = "stay" if change == 0 else f"add {change}" if change > 0 else f"take away {-change}"
    if scaling.min == 0 and instances > 0 and bounded <= 1 and idle >= cast("float", scaling.cool_down):
        wanted, words = 0, f"sleep: no request for {idle:.0f} s"
    elif bounded < wanted == instances:
        words = f"stay: more were needed in the last {scaling.stabilization_window_s:g} s"
    return ScalingDecision(wanted, formula, words, recommended)


def _recommended(
    scaling: Scaling, instances: int, seen: Observation, past: Sequence[Recommendation]
) -> tuple[Recommendation, str]:
    """Return what the formula asks for, without bounds and waiting."""
    if instances == 0:
        return Recommendation(seen.at, 0), "0: the first request wakes an instance"
    if seen.ready == 0:
        return Recommendation(seen.at, instances), f"{instances}: none is ready"
    value, up, down = max(0.0, seen.sample or 0.0), scaling.up_threshold, scaling.down_threshold
    given = scaling.up is not None or scaling.down is not None
    predicted = scaling.metric == "p95" and seen.load is not None
    if down <= value <= up and (given or not predicted):
        return Recommendation(seen.at, instances), f"{value:g} is between {down:g} and {up:g}: {instances}"
    if predicted and seen.load is not None:
        found = recommend(
            seen.load,
            instances,
            past,
            now=seen.at,
            target_p95_s=scaling.target,
            most=scaling.max,
            tolerance=scaling.tolerance,
        )
        at = f"{seen.load.rate:.3g} requests/s, p95 {value:.3g} s on {seen.ready}"
        formula = f"{found.instances} for p95 {scaling.target:g} s: {at}"
        return found, formula
    # A sample far beyond the bounds must not make a number that no integer holds.
    needed = math.ceil(min(seen.ready * value / scaling.target, 1e9))
    formula = f"ceil({seen.ready} x {value:g} / {scaling.target:g}) = {needed}"
    if value > up:
        return Recommendation(seen.at, max(needed, instances if seen.ready < instances else instances + 1)), formula
    return Recommendation(seen.at, min(needed, instances)), formula
