"""Thresholds of CPU use, and one of a service's own metric (thesis 5.5.3, Fig. 5.12 and 5.13). Simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from scanflow_research.experiment import Experiment, MeasureRound, Observe
from scanflow_research.figure import Round

QUALITY = 20.0
"""The most queries a second that a replica is to answer."""

CPUS_PER_QUERY = 0.36
REPLICA_CPUS = 10.0
"""A replica's limit."""

MAX_INSTANCES = 10
STEP_S = 15.0
SCALE_DOWN_S = 300.0
MINUTES = 40


def measure_replicas(seed: int, threshold: float, metric: Callable[[float], float]) -> tuple[float, float, list[float]]:
    """Return the share of the time within the quality, the replica-hours, and the replicas over time.

    ``metric`` maps a replica's queries per second to the metric of the threshold. The rule is the
    HorizontalPodAutoscaler's: ``ceil(replicas × metric / threshold)``, a tolerance of 10 %, and down over five minutes.
    """
    generator = Random(seed)  # noqa: S311  to draw, not to hide
    replicas, within, used = 1, 0, 0.0
    past: list[int] = []
    curve: list[float] = []
    steps = int(MINUTES * 60 / STEP_S)
    for step in range(steps):
        minutes = step * STEP_S / 60
        mean = 12.0 if minutes < 5 or minutes >= 30 else 75.0
        rate = max(0.0, generator.gauss(mean, 0.08 * mean))
        replica_rate = rate / replicas
        within += replica_rate <= QUALITY
        used += replicas * STEP_S / 3600
        curve.append(float(replicas))
        ratio = metric(replica_rate) / threshold
        desired = replicas if abs(ratio - 1) <= 0.1 else min(MAX_INSTANCES, max(1, math.ceil(replicas * ratio)))
        past = [*past[-int(SCALE_DOWN_S / STEP_S) + 1 :], desired]
        replicas = max(past) if desired < replicas else desired
    return within / steps, used, curve


def compute_cpu_usage(rate: float) -> float:
    """Return the CPUs that a replica uses at a rate of queries per second."""
    return min(REPLICA_CPUS, CPUS_PER_QUERY * rate)


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    rules: dict[str, tuple[float, Callable[[float], float]]] = {
        f"{threshold:g} CPUs": (threshold, compute_cpu_usage) for threshold in (5.0, 8.0, 10.0)
    }
    rules["tuned: queries/s"] = (0.9 * QUALITY, lambda rate: rate)

    def measure_round(number: int) -> Round:
        arms, curves = {}, {}
        for name, (threshold, metric) in rules.items():
            observe(name)
            share, hours, curves[name] = measure_replicas(number, threshold, metric)
            arms[name] = {"within": 100 * share, "hours": hours, "most": max(curves[name])}
        return Round(arms=arms, curves={"replicas": curves})

    yield measure_round


EXPERIMENT = Experiment(
    name="autoscaling",
    method=(
        f"Simulated: a service whose replicas have {REPLICA_CPUS:g} CPUs and take {CPUS_PER_QUERY:g} CPU-seconds for a "
        f"query, and are to answer at most {QUALITY:g} queries/s; {MINUTES} minutes of 12, 75 and 12 queries/s with "
        "noise. Replicas by the formula of Kubernetes' HorizontalPodAutoscaler."
    ),
    rounds=5,
    round_s=0.1,
    find_problem=lambda: None,
    open=open_rounds,
    simulated=True,
)
