"""How many instances a load needs: by the queue that they are, M/M/c, fitted to what was measured. Pure.

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
"""The share of the wanted latency that is planned for: the load may grow before another instance is ready."""

MOST_BUSY = 0.75
"""The largest share of their time that instances are planned to be busy, whatever they take."""

LEAST_WAIT = 1.25
"""No less than so many times the latency of an idle instance is planned for: more instances make none quicker."""

LEAST_FACTOR = 0.5
"""Of a service that always takes as long, requests wait half as long as where that varies as in M/M/c."""


class Load(Model):
    """What a service was measured at, all its instances together."""

    rate: float
    """Requests a second that came."""

    ready: int
    """Instances that answered them."""

    done: float
    """Requests a second that were answered."""

    mean_s: float
    p95_s: float


class Recommendation(NamedTuple):
    """How many instances were found to be right, at a moment in seconds."""

    at: float
    instances: int
    factor: float | None = None
    """So many times longer than predicted from their mean the slowest 5 of 100 requests took; None: not measured."""


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
    """Return with how many instances 95 of 100 requests take at most ``target_p95_s``; ``most``: with none up to that.

    It is ``instances`` where that many are right for a load within half the ``tolerance`` of what was measured. What an
    instance takes is estimated from the mean latency; the factor that corrects the 95th percentile for services of
    other kinds is the median of those in ``past``. Where an idle instance takes longer than the target, instances are
    only kept from being busy all the time.
    """
    service_rate = _service_rate(load.done, load.ready, load.mean_s)
    seen = load.p95_s / _p95(load.done, load.ready, service_rate)
    factor = max(LEAST_FACTOR, median([seen, *(one.factor for one in past if one.factor is not None)]))
    idle_p95_s = factor * math.log(20) / service_rate
    goal = math.inf if idle_p95_s > target_p95_s else max(HEADROOM * target_p95_s, LEAST_WAIT * idle_p95_s)

    def needed(rate: float) -> int:
        first = math.floor(rate / service_rate / MOST_BUSY) + 1
        fitting = (n for n in range(first, most) if factor * _p95(rate, n, service_rate) <= goal)
        return next(fitting, most)

    least, enough = needed(load.rate * (1 - tolerance / 2)), needed(load.rate * (1 + tolerance / 2))
    return Recommendation(now, instances if least <= instances <= enough else needed(load.rate), seen)


def stabilised(instances: int, past: Sequence[Recommendation]) -> int:
    """Return how many instances there should be: more by the last recommendation alone, fewer by all in the window."""
    wanted = past[-1].instances
    return wanted if wanted >= instances else min(instances, max(one.instances for one in past))


def _waiting(rate: float, instances: int, service_rate: float) -> float:
    """Return the share of requests that find no idle instance."""
    offered, blocked = rate / service_rate, 1.0
    for busy in range(1, instances + 1):
        blocked = offered * blocked / (busy + offered * blocked)
    return blocked / (1 - offered / instances * (1 - blocked))


def _mean(rate: float, instances: int, service_rate: float) -> float:
    return 1 / service_rate + _waiting(rate, instances, service_rate) / (instances * service_rate - rate)


def _p95(rate: float, instances: int, service_rate: float) -> float:
    waiting, left = _waiting(rate, instances, service_rate), instances * service_rate - rate
    if abs(left - service_rate) < 1e-5 * service_rate:
        left = service_rate * (1 + 1e-5)

    def enough(t: float) -> bool:
        served, gone = math.exp(-service_rate * t), math.exp(-left * t)
        return (1 - waiting) * served + waiting * (left * served - service_rate * gone) / (left - service_rate) <= 0.05

    return _least(enough, math.log(20) / service_rate)


def _service_rate(rate: float, instances: int, mean_s: float) -> float:
    """Return the requests a second of a busy instance, of which so many answer ``rate`` with that mean latency."""
    each = rate / instances
    return each + _least(lambda more: _mean(rate, instances, each + more) <= mean_s, 1e-3 / mean_s)


def _least(enough: Callable[[float], bool], start: float) -> float:
    """Return the least number from ``start`` that is enough, where all larger ones are."""
    low = high = start
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
