"""A queue whose servers are a service's instances, and the rules that decide on their number.

``python -m tests.science.scaling`` prints the table of docs/science.md: the minutes in which 95 of 100 requests took at
most 0.3 s, instance-hours and changes of the number, of each rule under each load.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np

from scanflow.app.scaling import Scaling
from scanflow.backends.local.services.supervisor.autoscaler import Observation, decide
from scanflow.backends.service_metrics import WINDOW_S, compute_latest_load
from scanflow.backends.service_records import compute_quantile
from scanflow.placement.queueing import Load, Recommendation
from scanflow_agents.templates.threshold_tuning import ScalingOptions, compute_threshold
from scanflow_serving.serving_metrics import BUCKETS

OPTIONS = ScalingOptions.model_fields
WATCH_S = OPTIONS["watch_interval_s"].default
SERVICE_RATE = 20.0
SLO_S = 0.3
MAX = 8
POLLING_S = 15.0


@dataclass(frozen=True)
class Trace:
    """What comes: requests a second, and how many times slower than usual an instance is, at a moment."""

    minutes: int
    rate: Callable[[float], float]
    slower: Callable[[float], float] = lambda _: 1.0


def _make_step_load(begin: float, end: float, inside: float, outside: float) -> Callable[[float], float]:
    return lambda t: inside if begin <= t / 60 < end else outside


TRACES = {
    "steady 22 rps": Trace(60, lambda _: 22.0),
    "diurnal 5-59 rps": Trace(120, lambda t: 32 - 27 * math.cos(2 * math.pi * t / 7200)),
    "step 10, 60, 10 rps": Trace(80, _make_step_load(20, 60, 60, 10)),
    "spike above the maximum": Trace(120, _make_step_load(40, 50, 200, 10)),
    "service 4 times slower": Trace(120, lambda _: 22.0, _make_step_load(40, 55, 4.0, 1.0)),
}

Service = Callable[[np.random.Generator], float]
"""Draw how long an idle instance takes, in multiples of the mean."""

SERVICES: dict[str, Service] = {
    "M": lambda g: g.exponential(),
    "D": lambda _: 1.0,
    "G": lambda g: g.lognormal(-0.805, 1.269),  # a coefficient of variation of 2
}


@dataclass
class Window:
    """What a service did in some seconds."""

    seconds: float
    came: int
    times: list[float]
    ready: int

    @property
    def rate(self) -> float:
        return self.came / self.seconds

    @property
    def done(self) -> float:
        return len(self.times) / self.seconds


class Rule(Protocol):
    actions: int
    """Changes of a threshold."""

    def look(self, now: float, window: Callable[[float], Window]) -> int:
        """Return how many instances there should be; called every POLLING_S."""
        ...


class Result(NamedTuple):
    within: float
    """The minutes within the SLO, in percent."""

    hours: float
    """Of instances, those included that start."""

    actions: float
    """Changes of the number of instances, and of a threshold."""


def simulate(trace: Trace, rule: Rule, *, seed: int, service: str = "M", start_s: float = 30.0) -> Result:
    generator = np.random.default_rng(seed)
    draw = SERVICES[service]
    end = trace.minutes * 60.0
    peak = max(trace.rate(t) for t in np.arange(0, end, 1.0))
    times = np.cumsum(generator.exponential(1 / peak, int(end * peak * 1.1 + 100)))
    times = times[times < end]
    mask = generator.random(len(times)) * peak < np.array([trace.rate(t) for t in times])
    arrivals: list[float] = [*times[mask], math.inf]
    waiting: deque[float] = deque()
    busy: list[tuple[float, float]] = []  # when it is done, when it came
    starting: list[float] = []
    ready = wanted = 1
    log: deque[tuple[float, float]] = deque()
    minutes: list[list[float]] = [[] for _ in range(trace.minutes)]
    place, used, changes, now = 0, 0.0, 0, 0.0

    def make_window(seconds: float) -> Window:
        seconds = min(seconds, max(now, 1e-9))
        since = now - seconds
        came = int(np.searchsorted(came_array, now) - np.searchsorted(came_array, since))
        return Window(seconds, came, [took for at, took in log if at > since], ready)

    came_array = np.array(arrivals)
    look_at = POLLING_S
    while True:
        at = min(arrivals[place], busy[0][0] if busy else math.inf, starting[0] if starting else math.inf, look_at, end)
        used += (at - now) * (ready + len(starting))
        now = at
        if now >= end:
            break
        if busy and busy[0][0] == now:
            _, came = heapq.heappop(busy)
            log.append((now, now - came))
            minutes[int(now // 60)].append(now - came)
        elif arrivals[place] == now:
            waiting.append(now)
            place += 1
        elif starting and starting[0] == now:
            starting.pop(0)
            ready += 1
        else:
            look_at += POLLING_S
            while log and log[0][0] < now - 120:
                log.popleft()
            before, wanted = wanted, rule.look(now, make_window)
            changes += wanted != before
            while ready + len(starting) < wanted:
                starting.append(now + start_s)
            while ready + len(starting) > wanted:
                if starting:
                    starting.pop()
                else:
                    ready -= 1
        while waiting and len(busy) < ready:
            came = waiting.popleft()
            heapq.heappush(busy, (now + draw(generator) / SERVICE_RATE * trace.slower(now), came))
    within = [float(np.quantile(minute, 0.95)) <= SLO_S if minute else not waiting for minute in minutes]
    return Result(100 * float(np.mean(within)), used / 3600, changes + rule.actions)


class Hpa:
    """Kubernetes' HorizontalPodAutoscaler on requests a second of a pod: tolerance 10 %, down over 300 s."""

    def __init__(self, target: float) -> None:
        self.target, self.count, self.actions = target, 1, 0
        self.past = deque([(0.0, 1)])

    def look(self, now: float, window: Callable[[float], Window]) -> int:
        seen = window(POLLING_S)
        ratio, count = seen.rate / seen.ready / self.target, self.count
        if abs(ratio - 1) > 0.1:
            count = min(max(math.ceil(seen.ready * ratio), 1), MAX)
        self.past.append((now, count))
        while self.past[0][0] <= now - 300:
            self.past.popleft()
        self.count = (
            count if count >= self.count else min(self.count, max(recommendation for _, recommendation in self.past))
        )
        return self.count


class Ours:
    """The local backend's autoscaler by a scaling, and the planner's threshold agent where a latency is wanted."""

    def __init__(self, scaling: Scaling, *, tuned: bool = False, instances: int = 1) -> None:
        self.scaling, self.tuned, self.count, self.actions = scaling, tuned, instances, 0
        self.past, self.thresholds = [Recommendation(0.0, instances)], list[Recommendation]()

    def look(self, now: float, window: Callable[[float], Window]) -> int:
        seen, load = window(POLLING_S), make_load_reader(window)
        if self.tuned and load is not None and now % WATCH_S == 0:
            self.thresholds = [
                threshold
                for threshold in self.thresholds
                if threshold.at > now - OPTIONS["stabilization_window_s"].default
            ]
            target, new_threshold = compute_threshold(
                self.scaling, load, load.rate / load.ready, self.thresholds, now=now, target_p95_s=SLO_S, lowest=1.0
            )
            self.thresholds.append(new_threshold)
            if target is not None:
                self.scaling = self.scaling.replace(target=target)
                self.actions += 1
        sample = seen.rate / seen.ready if self.scaling.metric == "rps" else compute_p95(seen)
        observed = Observation(at=now, sample=sample, ready=seen.ready, active=now, load=load)
        decision = decide(self.scaling, self.count, observed, self.past)
        self.past = [
            count for count in self.past if count.at > now - cast("float", self.scaling.stabilization_window_s)
        ]
        self.past.append(decision.recommended)
        self.count = decision.wanted
        return self.count


def compute_p95(window: Window) -> float | None:
    """Return the percentile as a service reports it: from the buckets of its histogram."""
    counts = np.searchsorted(np.sort(window.times), [*BUCKETS, math.inf], side="right")
    return compute_quantile(dict(zip([*BUCKETS, math.inf], map(float, counts), strict=True)), 0.95)


def make_load_reader(window: Callable[[float], Window]) -> Load | None:
    def measure_load(seconds: float) -> Load | None:
        seen = window(seconds)
        if not seen.times:
            return None
        mean_s, p95_s = float(np.mean(seen.times)), compute_p95(seen) or 0.0
        return Load(rate=seen.rate, ready=seen.ready, done=seen.done, mean_s=mean_s, p95_s=p95_s)

    return compute_latest_load(measure_load(WINDOW_S), measure_load(POLLING_S))


RULES: dict[str, Callable[[], Rule]] = {
    "threshold agent": lambda: Ours(Scaling(metric="rps", target=12, max=MAX), tuned=True),
    "p95 rule": lambda: Ours(Scaling(metric="p95", target=SLO_S, max=MAX)),
    "rps rule at 12": lambda: Ours(Scaling(metric="rps", target=12, max=MAX)),
    "Kubernetes at 12": lambda: Hpa(12.0),
    "Kubernetes at 9": lambda: Hpa(9.0),
}


def simulate_runs(load: str, rule: str, *, seeds: int, service: str = "M", start_s: float = 30.0) -> Result:
    """Return the mean of some runs."""
    runs = [simulate(TRACES[load], RULES[rule](), seed=seed, service=service, start_s=start_s) for seed in range(seeds)]
    return Result(*(float(np.mean([getattr(run, name) for run in runs])) for name in Result._fields))


if __name__ == "__main__":
    print(f"| load | {' | '.join(RULES)} |\n|---|{'---|' * len(RULES)}")
    for load in TRACES:
        cells = [simulate_runs(load, rule, seeds=2) for rule in RULES]
        print(
            f"| {load} | {' | '.join(f'{cell.within:.1f} / {cell.hours:.2f} / {cell.actions:.0f}' for cell in cells)} |"
        )
