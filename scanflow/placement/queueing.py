"""The number of instances a load needs, by an M/M/c queue fitted to measurements. Pure.

Source: Erlang's delay formula, by the recurrence of his blocking formula; the share that takes longer than a time is in
Kleinrock, Queueing Systems I, chapter 3. The stabilization window is that of Kubernetes' HorizontalPodAutoscaler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from scanflow.app.model import Model

HEADROOM = 0.8
"""The planned latency as a share of the target: the load may grow before another instance is ready."""

MAX_UTILIZATION = 0.75
"""The largest planned utilization of instances, whatever their latency."""

MIN_WAIT = 1.25
"""The planned latency is at least this multiple of an idle instance's latency: more instances do not make a request
faster."""

MIN_FACTOR = 0.5
"""With constant service times, requests wait half as long as with the varying ones of M/M/c."""


class Load(Model):
    """The measured load of a service, all its instances together."""

    rate: float
    """Arriving requests per second."""

    ready: int
    """The number of instances that answered them."""

    done: float
    """Answered requests per second."""

    mean_s: float
    p95_s: float


class Recommendation(NamedTuple):
    """The recommended number of instances, at a time in seconds."""

    at: float
    instances: int
    factor: float | None = None
    """The measured 95th percentile as a multiple of the one predicted from the mean; None: not measured."""


def recommend(
    load: Load,
    instances: int,
    past: Sequence[Recommendation],
    *,
    now: float,
    target_p95_s: float,
    most: int,
    tolerance: float,
) -> Recommendation:
    """Recommend the number of instances with which 95 of 100 requests take at most ``target_p95_s``; ``most`` if none
    suffices.

    It is ``instances`` where that many are right for a load within half the ``tolerance`` of what was measured. What an
    instance takes is estimated from the mean latency; the factor that corrects the 95th percentile for services of
    other kinds is the median of those in ``past``. Where an idle instance takes longer than the target, instances are
    only kept from being busy all the time.
    """
    service_rate = _fit_service_rate(load.done, load.ready, load.mean_s)
    seen = load.p95_s / _compute_p95(load.done, load.ready, service_rate)
    factor = max(
        MIN_FACTOR,
        median([seen, *(recommendation.factor for recommendation in past if recommendation.factor is not None)]),
    )
    idle_p95_s = factor * math.log(20) / service_rate
    goal = math.inf if idle_p95_s > target_p95_s else max(HEADROOM * target_p95_s, MIN_WAIT * idle_p95_s)

    def count_needed(rate: float) -> int:
        first = math.floor(rate / service_rate / MAX_UTILIZATION) + 1
        fitting = (n for n in range(first, most) if factor * _compute_p95(rate, n, service_rate) <= goal)
        return next(fitting, most)

    least, enough = count_needed(load.rate * (1 - tolerance / 2)), count_needed(load.rate * (1 + tolerance / 2))
    return Recommendation(now, instances if least <= instances <= enough else count_needed(load.rate), seen)


def stabilise(instances: int, past: Sequence[Recommendation]) -> int:
    """Return the instances to scale to: up to the last recommendation, down to the highest in the window."""
    latest = past[-1].instances
    return latest if latest >= instances else min(instances, max(recommendation.instances for recommendation in past))


def _compute_waiting_share(rate: float, instances: int, service_rate: float) -> float:
    """Return the share of requests that find no idle instance."""
    offered, blocked = rate / service_rate, 1.0
    for busy in range(1, instances + 1):
        blocked = offered * blocked / (busy + offered * blocked)
    return blocked / (1 - offered / instances * (1 - blocked))


def _compute_mean(rate: float, instances: int, service_rate: float) -> float:
    return 1 / service_rate + _compute_waiting_share(rate, instances, service_rate) / (instances * service_rate - rate)


def _compute_p95(rate: float, instances: int, service_rate: float) -> float:
    waiting, spare = _compute_waiting_share(rate, instances, service_rate), instances * service_rate - rate
    if abs(spare - service_rate) < 1e-5 * service_rate:
        spare = service_rate * (1 + 1e-5)

    def enough(t: float) -> bool:
        served, gone = math.exp(-service_rate * t), math.exp(-spare * t)
        return (1 - waiting) * served + waiting * (spare * served - service_rate * gone) / (
            spare - service_rate
        ) <= 0.05

    return _search_least(enough, math.log(20) / service_rate)


def _fit_service_rate(rate: float, instances: int, mean_s: float) -> float:
    """Fit the service rate of an instance, in requests a second, to a rate and mean latency of all."""
    instance_rate = rate / instances
    return instance_rate + _search_least(
        lambda more: _compute_mean(rate, instances, instance_rate + more) <= mean_s, 1e-3 / mean_s
    )


def _search_least(enough: Callable[[float], bool], start: float) -> float:
    """Find the smallest sufficient number from ``start`` on, by bisection."""
    low = high = start
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
