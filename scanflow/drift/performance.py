"""Estimates a model's accuracy on unlabelled data from its calibrated scores.

Confidence-based performance estimation: the expected share of right answers is the mean probability of being right,
where scores were made probabilities by isotonic regression on labelled points (Guo et al., 2017, for why scores alone
are not; Guillory et al., 2021, and NannyML's CBPE for the estimate). It sees drift of inputs that the model is unsure
of; what it cannot see is a model that is wrong and sure of it (concept drift): for that labels are needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from scanflow.errors import InvalidError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Accuracy", "Calibration", "measure_accuracy"]

MIN_SAMPLES = 50
"""Minimum number of labelled points for a calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A share of correct answers, measured or estimated, with its confidence interval."""

    value: float
    """The accuracy, 0 to 1."""

    low: float
    """The lower bound of its confidence interval."""

    high: float
    """The upper bound of its confidence interval."""

    n: int
    """The number of points."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Maps a model's confidence to the probability that it is correct."""

    confidence: Floats
    """(k,): ascending."""

    right: Floats
    """(k,): not descending, 0 to 1."""

    n: int
    """The number of labelled points it was fitted on."""

    @classmethod
    def fit(cls, scores: Any, right: Any) -> Calibration:
        """Fit a calibration on labelled points.

        Args:
            scores: (n, classes), the model's score of each class. Or (n,), of class 1.
            right: (n,), whether its answer is right.

        Raises:
            InvalidError: too few points, or shapes that do not fit.
        """
        import numpy as np
        from scipy import optimize

        confidence, answers = _compute_confidence(scores), np.asarray(right, np.float64)
        if answers.shape != confidence.shape:
            raise InvalidError(
                f"There are {answers.shape} labels for {confidence.shape} points. Give one label for each point."
            )
        if len(answers) < MIN_SAMPLES:
            raise InvalidError(
                f"There are {len(answers)} labelled points, but a calibration needs {MIN_SAMPLES}. Label more."
            )
        order = np.argsort(confidence, kind="stable")
        fitted = optimize.isotonic_regression(answers[order])
        # Points of one confidence have one probability.
        levels, first = np.unique(confidence[order], return_index=True)
        counts = np.diff(np.append(first, len(order)))
        return cls(confidence=levels, right=np.add.reduceat(fitted.x, first) / counts, n=len(answers))

    def estimate(self, scores: Any) -> Accuracy:
        """Estimate the share of right answers without labels, with a 95 % interval.

        The interval covers sampling error in these points and in the calibration's, not concept drift.
        """
        import numpy as np

        confidence = _compute_confidence(scores)
        if not len(confidence):
            raise InvalidError("There are no scores yet. Wait for predictions.")
        p = np.interp(confidence, self.confidence, self.right)
        value, n = float(p.mean()), len(p)
        spread = math.sqrt(float((p * (1 - p)).sum()) / n**2 + value * (1 - value) / self.n)
        half = NormalDist().inv_cdf(0.975) * spread
        return Accuracy(value=value, low=max(0.0, value - half), high=min(1.0, value + half), n=n)


def measure_accuracy(right: int, n: int, level: float = 0.95) -> Accuracy:
    """Return the share of correct answers among labelled points, with the Wilson interval.

    Raises:
        InvalidError: no points, or more right ones than there are.
    """
    if not 0 <= right <= n or n == 0:
        raise InvalidError(f"{right} of {n} answers is not a valid count. Count labelled points.")
    z, value = NormalDist().inv_cdf(0.5 + level / 2), right / n
    middle = (value + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(value * (1 - value) / n + z**2 / (4 * n**2))
    return Accuracy(value=value, low=max(0.0, middle - half), high=min(1.0, middle + half), n=n)


def _compute_confidence(scores: Any) -> Floats:
    import numpy as np

    array = np.asarray(scores, np.float64)
    if array.ndim == 1:
        return np.maximum(array, 1 - array)
    if array.ndim != 2 or array.shape[1] < 2:
        raise InvalidError(f"Scores of the shape {array.shape} cannot be read. Give (n, classes), or (n,) of class 1.")
    confidence: Floats = array.max(axis=1)
    return confidence
