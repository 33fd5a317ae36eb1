"""Placement acts on interference that is there, and on none that is not: services and neighbours of known effect.

A day of a service that is looked at once a minute: the load goes up and down, the latency grows with it, is noisy and
wanders; a batch workflow runs now and then. The quick form runs with the suite; the long one
(``SCANFLOW_SCIENCE=long``) has the repetitions of ``docs/science.md``, and prints its table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median

import numpy as np
import pytest

from scanflow.placement.interference import Disturbance, InterferenceWatch, LoadPoint, Window, compare_move

LONG = os.environ.get("SCANFLOW_SCIENCE") == "long"
DAYS, LOOKS = (400, 720) if LONG else (12, 240)
JOB = frozenset({"workflow/training"})
pytestmark = [pytest.mark.science, pytest.mark.timeout(3600 if LONG else 600)]


def day(seed: int, effect: float, *, noise: float = 0.25, wander: float = 0.1) -> Iterator[Window]:
    """Yield a window a minute. ``effect``: so many times as slow is the service beside the workflow."""
    generator = np.random.default_rng(seed)
    drift, running, remaining_looks = 0.0, False, 0
    for minute in range(LOOKS):
        if remaining_looks == 0:
            running, remaining_looks = not running, int(generator.integers(5, 40))
        remaining_looks -= 1
        load = 20 + 12 * np.sin(2 * np.pi * minute / 360) + generator.normal(0, 1)
        drift = 0.95 * drift + generator.normal(0, wander * np.sqrt(1 - 0.95**2))
        latency = 0.03 / (1 - load / 50) * np.exp(drift + generator.normal(0, noise))
        point = LoadPoint(float(load), float(latency * (effect if running else 1)))
        yield Window(ended=60.0 * minute, point=point, revision="r", beside=JOB if running else frozenset())


def first(seed: int, effect: float, **options: float) -> tuple[int, Disturbance] | None:
    """Return at which look it is moved, and why; None: it is not."""
    watch = InterferenceWatch()
    return next(
        (
            (look, disturbance)
            for look, window in enumerate(day(seed, effect, **options))
            if (disturbance := watch.observe(window))
        ),
        None,
    )


@pytest.mark.parametrize(
    ("effect", "least", "most"),
    [(1.0, 0.0, 0.04), (1.1, 0.0, 0.2), (1.5, 0.8, 1.0), (2.0, 0.99, 1.0), (3.0, 0.99, 1.0)],
)
def test_a_neighbour_is_moved_as_often_as_it_should_be(effect: float, least: float, most: float) -> None:
    detections = [first(seed, effect) for seed in range(DAYS)]
    looks = [detection[0] for detection in detections if detection is not None]
    share = len(looks) / DAYS
    if LONG:
        ratios = [detection[1].slowdown.ratio for detection in detections if detection is not None]
        summary = f"{median(looks):.0f} looks, {median(ratios):.2f} times" if looks else "-"
        print(f"\neffect {effect:.1f}: moved within 12 h in {share:.1%} of {DAYS} days; median {summary}")
    assert least <= share <= most


@pytest.mark.parametrize(("effect", "least", "most"), [(1.0, 0.0, 0.12), (1.3, 0.4, 1.0), (2.0, 0.95, 1.0)])
def test_a_move_stands_where_it_helped_and_else_not(effect: float, least: float, most: float) -> None:
    """``effect``: of the move. Before it the service was twice as slow beside the workflow.

    One that changed nothing stands in 10 % of 4,000: latencies that wander agree with each other, unknown to p.
    """
    verdicts = []
    for seed in range(10 * DAYS):
        before = [window.point for window in day(seed, 2.0) if window.beside][:12]
        after = [window.point for window in day(seed + 10_000, 2.0 / effect) if window.beside]
        verdicts.append(compare_move(before, after)[1])
    assert None not in verdicts
    share = float(np.mean([verdict is True for verdict in verdicts]))
    if LONG:
        print(f"\nmove that makes it {effect:.1f} times as quick: stands in {share:.1%} of {len(verdicts)}")
    assert least <= share <= most
