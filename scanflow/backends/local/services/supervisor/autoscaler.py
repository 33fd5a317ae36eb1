"""The autoscaler: a pure scaling decision, and its state.

The formula is that of Kubernetes' HorizontalPodAutoscaler, ``ceil(ready x sample / target)``: within the tolerance
nothing changes, instances are added at once, and they are removed once fewer were enough for the stabilization window.
Latency is not proportional to the number of instances: it is predicted.
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
from scanflow.placement.queueing import Load, Recommendation, recommend, stabilise

_MANUAL_SCALING = Scaling(metric="queue", target=1, min=0, max=1)
"""A service that was scaled to zero by hand: its first request wakes it, and it is scaled to zero again when idle."""


class Autoscaler:
    """The desired number of instances: the shape's, or the decision of the scaling rule."""

    def __init__(self, definition: ServiceSpec, now: float, count: int | None) -> None:
        self._last: Explanation | None = None
        self._past: list[Recommendation] = []
        self.begin(definition, now, count=count)

    def begin(self, definition: ServiceSpec, now: float, *, count: int | None = None) -> None:
        """Start from a definition, or from ``count``, the decision of an earlier supervisor."""
        self._service, instances = definition.workflow, definition.shape.instances
        self._scaling = scaling = definition.scaling or (None if instances else _MANUAL_SCALING)
        if scaling is None:
            self.count = instances
        elif count is not None:
            self.count = min(max(count, scaling.min), scaling.max)
        else:  # a service that may be scaled to zero is started once, so that errors are found now
            self.count = min(max(instances, scaling.min, 1), scaling.max)
        self._looked = now
        if count is None or not self._past:
            self._past, self._changed = [Recommendation(now, self.count)], now

    def is_due(self, now: float) -> bool:
        return self._scaling is not None and now - self._looked >= cast("float", self._scaling.polling)

    def update(self, window: MetricsWindow, ready: list[Instance], now: float, wall: float) -> str | None:
        """Decide again; return a description of a change. ``wall``: seconds since the epoch."""
        scaling = self._scaling
        assert scaling is not None
        self._looked = now
        polling = cast("float", scaling.polling)
        window_s = max(polling, 1.0)
        observation = Observation(
            at=now,
            sample=window.sample(
                scaling.metric,
                window_s,
                queues=[float(instance.state.get("queue") or 0) for instance in ready],
                shares=[instance.find_share(scaling.metric, window_s) for instance in ready],
            ),
            ready=len(ready),
            active=max(window.active, self._changed),
            load=window.load(len(ready), polling),
        )
        decision = decide(scaling, self.count, observation, self._past)
        oldest = now - cast("float", scaling.stabilization_window_s)
        self._past = [
            *(recommendation for recommendation in self._past if recommendation.at > oldest),
            decision.recommended,
        ]
        self._last = self._build_explanation(
            decision.wanted, decision.formula, decision.words, observation.sample, wall
        )
        if decision.wanted == self.count:
            return None
        message = f"scaling from {self.count} to {decision.wanted}: {decision.formula}"
        self.count, self._changed = decision.wanted, now
        return message

    def wake(self, now: float) -> None:
        """Scale from zero to one instance, because a client is waiting."""
        if self.count == 0:
            self.count, self._changed = 1, now

    def explain(self, wall: float) -> Explanation:
        """Return the last decision, or the reason that there is none."""
        if self._last is not None and self._scaling is not None:
            return self._last
        why = "stay: no measurement yet" if self._scaling else "stay: the service has no scaling"
        return self._build_explanation(self.count, f"{self.count}", why, None, wall)

    def _build_explanation(
        self, wanted: int, formula: str, words: str, sample: float | None, wall: float
    ) -> Explanation:
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
    """A sample of a service's load, in seconds on any clock."""

    at: float
    sample: float | None
    """The metric's value per ready instance; None: not measured, which counts as no load, but of GPUs."""

    ready: int
    active: float
    """The time of the last request, or of the last change of the number of instances."""

    load: Load | None


class ScalingDecision(NamedTuple):
    wanted: int
    formula: str
    words: str
    recommended: Recommendation


def decide(
    scaling: Scaling, instances: int, observation: Observation, past: Sequence[Recommendation] = ()
) -> ScalingDecision:
    """Return the desired number of instances, and the reason. Pure.

    ``past``: the recommendations in the stabilization window. A service without requests for the cool-down is scaled to
    zero; the first request scales it up again, not this function.
    """
    idle = observation.at - observation.active
    recommended, formula = _compute_recommendation(scaling, instances, observation, past)
    raw = recommended.instances
    least = scaling.min if instances == 0 else max(scaling.min, 1)
    bounded = min(max(raw, least), scaling.max)
    if bounded != raw:
        formula += f", at least {least}" if raw < least else f", at most max={scaling.max}"
    recommended = recommended._replace(instances=bounded)
    wanted = min(stabilise(instances, [*past, recommended]), scaling.max)
    change = wanted - instances
    words = "stay" if change == 0 else f"add {change}" if change > 0 else f"remove {-change}"
    is_quiet = bounded <= 1 or scaling.metric == "gpu_memory"  # who computes nothing keeps what it holds
    if scaling.min == 0 and instances > 0 and is_quiet and idle >= cast("float", scaling.cool_down):
        wanted, words = 0, f"scale to zero: no request for {idle:.0f} s"
    elif bounded < wanted == instances:
        words = f"stay: more were needed in the last {scaling.stabilization_window_s:g} s"
    return ScalingDecision(wanted, formula, words, recommended)


def _compute_recommendation(
    scaling: Scaling, instances: int, observation: Observation, past: Sequence[Recommendation]
) -> tuple[Recommendation, str]:
    """Return the recommendation of the formula, without bounds and stabilization."""
    if instances == 0:
        return Recommendation(observation.at, 0), "0: the first request starts an instance"
    if observation.ready == 0:
        return Recommendation(observation.at, instances), f"{instances}: none is ready"
    if scaling.reads_gpus and observation.sample is None:  # a GPU that failed is not idle
        return Recommendation(observation.at, instances), f"{instances}: the driver does not say what its GPUs do"
    value, up, down = max(0.0, observation.sample or 0.0), scaling.up_threshold, scaling.down_threshold
    has_thresholds = scaling.up is not None or scaling.down is not None
    is_predicted = scaling.metric == "p95" and observation.load is not None
    if down <= value <= up and (has_thresholds or not is_predicted):
        return Recommendation(observation.at, instances), f"{value:g} is between {down:g} and {up:g}: {instances}"
    if is_predicted and observation.load is not None:
        recommendation = recommend(
            observation.load,
            instances,
            past,
            now=observation.at,
            target_p95_s=scaling.target,
            most=scaling.max,
            tolerance=scaling.tolerance,
        )
        at = f"{observation.load.rate:.3g} requests/s, p95 {value:.3g} s on {observation.ready}"
        formula = f"{recommendation.instances} for p95 {scaling.target:g} s: {at}"
        return recommendation, formula
    # Limit the number: a sample far beyond the bounds would overflow.
    needed = math.ceil(min(observation.ready * value / scaling.target, 1e9))
    formula = f"ceil({observation.ready} x {value:g} / {scaling.target:g}) = {needed}"
    if value > up:
        return Recommendation(
            observation.at, max(needed, instances if observation.ready < instances else instances + 1)
        ), formula
    return Recommendation(observation.at, min(needed, instances)), formula
