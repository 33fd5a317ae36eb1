"""Accuracy estimated without labels, beside the true one: of networks, on digits that drift.

``python -m tests.science.test_estimated_accuracy`` prints the table of docs/science.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from scanflow.drift.performance import Calibration
from tests.science.retrained_models import CLEAN, DRIFTS, Digits, right
from tests.science.test_promotion_of_models import LONG

pytestmark = pytest.mark.science
SEEDS = 40 if LONG else 4


@dataclass(frozen=True)
class Estimate:
    drift: str
    expected: float
    estimated: float
    sure: float
    """What the scores say of themselves."""

    true: float


@cache
def estimates() -> Sequence[Estimate]:
    estimates_ = []
    for seed in range(SEEDS):
        digits = Digits(seed)
        model = digits.model(seed)
        answers = right(model, digits.clean)
        calibration = Calibration.fit(digits.clean.score(model), answers)
        for drift in DRIFTS:
            window = digits.unseen.apply_drift(drift, digits.generator)
            scores = window.score(model)
            estimated, sure = calibration.estimate(scores).value, float(scores.max(axis=1).mean())
            true = float(right(model, window).mean())
            estimates_.append(Estimate(drift, float(answers.mean()), estimated, sure, true))
    return estimates_


def compute_mean_error(drift: str, of: str = "estimated") -> float:
    return float(
        np.mean([abs(getattr(estimate, of) - estimate.true) for estimate in estimates() if estimate.drift == drift])
    )


def test_without_drift_the_estimate_is_right_and_the_scores_alone_are_not() -> None:
    assert compute_mean_error(CLEAN) < 0.03 < compute_mean_error(CLEAN, "sure")


def test_what_the_model_is_unsure_of_is_seen_as_a_loss() -> None:
    for estimate in estimates():
        if estimate.drift in {"noise", "moved", "hidden"}:
            assert estimate.estimated < estimate.expected - 0.05


def main() -> None:
    for drift in DRIFTS:
        some = [estimate for estimate in estimates() if estimate.drift == drift]
        means = (np.mean([getattr(estimate, of) for estimate in some]) for of in ("true", "estimated", "sure"))
        print(f"| {drift} | " + " | ".join(f"{100 * mean:.1f} %" for mean in means) + " |")


if __name__ == "__main__":
    main()
