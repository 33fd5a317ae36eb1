"""How good a model is on data that nobody has labelled yet, by what its own scores say once they are calibrated.

Confidence-based performance estimation: the expected share of right answers is the mean probability of being right,
where scores were made probabilities by isotonic regression on labelled points (Guo et al., 2017, for why scores alone
are not; Guillory et al., 2021, and NannyML's CBPE for the estimate). It sees drift of inputs that the model is unsure
of; what it cannot see is a model that is wrong and sure of it (concept drift): for that labels are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from scanflow.errors import InvalidError

Floats = NDArray[np.float64]

LEAST = 50
"""Labelled points that a calibration needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A share of right answers, measured or estimated, and where it may really be."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """From a model's confidence to the probability that it is right."""

    confidence: Floats
    """(k,), ascending."""

    right: Floats
    """(k,), not descending: 0 to 1."""

    n: int
    """So many points it was learnt from."""

    @classmethod
    def of(cls, scores: Any, labels: Any) -> Calibration:
        """Learn from labelled points.

        Args:
            scores: (n, classes), what the model gives each class; the highest is its answer. Or (n,), of a class 1.
            labels: (n,), the number of the right class.

        Raises:
            InvalidError: too few points, or shapes that do not fit.
        """
        confidence, answers = _confidence(scores)
        truth = np.asarray(labels)
        if truth.shape != answers.shape:
            raise InvalidError(f"There are {truth.shape} labels for {answers.shape} points. Give one for each.")
        if len(truth) < LEAST:
            raise InvalidError(f"There are {len(truth)} labelled points, and a calibration needs {LEAST}. Label more.")
        order = np.argsort(confidence, kind="stable")
        fitted = optimize.isotonic_regression((answers == truth)[order].astype(np.float64))
        # Points of one confidence have one probability.
        levels, first = np.unique(confidence[order], return_index=True)
        counts = np.diff(np.append(first, len(order)))
        return cls(confidence=levels, right=np.add.reduceat(fitted.x, first) / counts, n=len(truth))

    def estimate(self, scores: Any) -> Accuracy:
        """Return how many of the answers are expected to be right, without labels; the interval is at 95 %.

        It holds what chance does in these points and in those that were learnt from, and no change of the concept.
        """
        confidence, _ = _confidence(scores)
        if not len(confidence):
            raise InvalidError("There are no scores. Wait for predictions.")
        p = np.interp(confidence, self.confidence, self.right)
        value, n = float(p.mean()), len(p)
        spread = np.sqrt((p * (1 - p)).sum() / n**2 + value * (1 - value) / self.n)
        half = float(stats.norm.isf(0.025) * spread)
        return Accuracy(value=value, low=max(0.0, value - half), high=min(1.0, value + half), n=n)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what is to be saved."""
        return {"confidence": self.confidence, "right": self.right, "n": np.asarray(self.n)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Calibration:
        """Return what :meth:`arrays` gave."""
        return cls(confidence=arrays["confidence"], right=arrays["right"], n=int(arrays["n"]))


def measured(right: int, n: int, level: float = 0.95) -> Accuracy:
    """Return the share of right answers among labelled points, with Wilson's interval.

    Raises:
        InvalidError: no points, or more right ones than there are.
    """
    if not 0 <= right <= n or n == 0:
        raise InvalidError(f"{right} of {n} answers cannot be right. Count labelled points.")
    interval = stats.binomtest(right, n).proportion_ci(level, method="wilson")
    return Accuracy(value=right / n, low=float(interval.low), high=float(interval.high), n=n)


def _confidence(scores: Any) -> tuple[Floats, NDArray[np.intp]]:
    array = np.asarray(scores, np.float64)
    if array.ndim == 1:
        return np.maximum(array, 1 - array), (array > 0.5).astype(np.intp)
    if array.ndim != 2 or array.shape[1] < 2:
        raise InvalidError(f"Scores of the shape {array.shape} cannot be read. Give (n, classes), or (n,) of class 1.")
    return array.max(axis=1), array.argmax(axis=1)
