"""Accuracy without labels, and with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from scanflow.drift.performance import Calibration, measure_accuracy
from scanflow.errors import InvalidError


def draw_scores(generator: np.random.Generator, n: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return over-confident scores of two classes, and labels: right more often where they are far apart."""
    signal = generator.normal(0, spread, n)
    labels = (generator.random(n) < 1 / (1 + np.exp(-signal))).astype(int)
    sure = 1 / (1 + np.exp(-3 * signal))
    return np.stack([1 - sure, sure], axis=1), labels


def test_the_estimate_is_right_where_the_inputs_drift_and_scores_are_too_sure() -> None:
    generator = np.random.default_rng(1)
    scores, labels = draw_scores(generator, 3000, 2.0)
    calibration = Calibration.fit(scores, scores.argmax(axis=1) == labels)
    for spread in (2.0, 1.0, 0.5):
        scores, labels = draw_scores(generator, 3000, spread)
        true = float((scores.argmax(axis=1) == labels).mean())
        estimate = calibration.estimate(scores)
        assert estimate.low - 0.01 <= true <= estimate.high + 0.01
        assert abs(estimate.value - true) < 0.03 < abs(scores.max(axis=1).mean() - true)
    scores, _ = draw_scores(generator, 500, 1.0)
    assert calibration.estimate(scores) == calibration.estimate(scores[:, 1])


def test_a_measured_accuracy_has_an_interval() -> None:
    few, many = measure_accuracy(9, 10), measure_accuracy(900, 1000)
    assert few.low < many.low < 0.9 < many.high < few.high < 1
    for right, n in ((0, 5), (5, 5), (123, 300)):
        interval = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
        assert (measure_accuracy(right, n).low, measure_accuracy(right, n).high) == pytest.approx(
            (interval.low, interval.high)
        )


def test_what_cannot_be_estimated_is_refused() -> None:
    scores, labels = draw_scores(np.random.default_rng(1), 60, 1.0)
    with pytest.raises(InvalidError, match="needs 50"):
        Calibration.fit(scores[:40], labels[:40])
    with pytest.raises(InvalidError, match="one label for each"):
        Calibration.fit(scores, labels[:40])
    calibration = Calibration.fit(scores, scores.argmax(axis=1) == labels)
    for wrong, says in ((np.ones((0, 2)), "no scores"), (np.ones((5, 1)), "shape")):
        with pytest.raises(InvalidError, match=says):
            calibration.estimate(wrong)
    with pytest.raises(InvalidError, match="11 of 10"):
        measure_accuracy(11, 10)
