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
    found = []
    for seed in range(SEEDS):
        digits = Digits(seed)
        model = digits.model(seed)
        answers = right(model, digits.clean)
        known = Calibration.fit(digits.clean.scored(model), answers)
        for drift in DRIFTS:
            window = digits.unseen.drifted(drift, digits.generator)
            scores = window.scored(model)
            estimated, sure = known.estimate(scores).value, float(scores.max(axis=1).mean())
            true = float(right(model, window).mean())
            found.append(Estimate(drift, float(answers.mean()), estimated, sure, true))
    return found


def missed(drift: str, of: str = "estimated") -> float:
    return float(np.mean([abs(getattr(one, of) - one.true) for one in estimates() if one.drift == drift]))


def test_without_drift_the_estimate_is_right_and_the_scores_alone_are_not() -> None:
    assert missed(CLEAN) < 0.03 < missed(CLEAN, "sure")


def test_what_the_model_is_unsure_of_is_seen_as_a_loss() -> None:
    for one in estimates():
        if one.drift in {"noise", "moved", "hidden"}:
            assert one.estimated < one.expected - 0.05


def main() -> None:
    for drift in DRIFTS:
        some = [one for one in estimates() if one.drift == drift]
        means = (np.mean([getattr(one, of) for one in some]) for of in ("true", "estimated", "sure"))
        print(f"| {drift} | " + " | ".join(f"{100 * mean:.1f} %" for mean in means) + " |")


if __name__ == "__main__":
    main()
