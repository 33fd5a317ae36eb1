"""The class prior: does the model predict the classes as often as it did on the reference? (Lipton et al., 2018.)

A test of homogeneity on predicted classes. It needs no labels and no features, and sees what changes predictions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError
from scanflow_agents.detectors import storage
from scanflow_agents.detectors.port import Floats, Samples, Scores
from scanflow_agents.detectors.samples import LEAST_REFERENCE, checked
from scanflow_agents.detectors.statistics import chi_square_above, chi_square_critical

__all__ = ["ClassPrior", "FittedClassPrior"]

Test = Literal["chi-square", "g"]


@dataclass(frozen=True, kw_only=True)
class ClassPrior:
    """Looks for drift in how often each class is predicted. Samples are class numbers, (n,)."""

    level: float = 0.01
    """How often a batch without drift raises an alarm, about; counts below 5 make it more."""

    test: Test = "chi-square"
    """Pearson's chi-square, or the G test of likelihood ratios."""

    def fit(self, reference: Samples) -> FittedClassPrior:
        if not 0 < self.level < 1:
            raise InvalidError(f"level={self.level} is not between 0 and 1. Give 0.01, say.")
        if self.test not in ("chi-square", "g"):
            raise InvalidError(f"test={self.test!r} is not known. Give 'chi-square' or 'g'.")
        classes, counts = np.unique(class_numbers("reference", reference, LEAST_REFERENCE), return_counts=True)
        return FittedClassPrior(classes=classes, counts=counts.astype(np.int64), level=self.level, test=self.test)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedClassPrior:
    """A class prior with its reference. The statistic is chi-square or G; a sample's value is its class' excess."""

    classes: NDArray[np.int64]
    """(c,), ascending."""

    counts: NDArray[np.int64]
    """(c,): how often the reference has each."""

    level: float
    test: Test

    def score(self, batch: Samples) -> Scores:
        new = class_numbers("batch", batch, 1)
        classes = np.union1d(self.classes, new)
        table = np.zeros((2, len(classes)))
        table[0, np.searchsorted(classes, self.classes)] = self.counts
        np.add.at(table[1], np.searchsorted(classes, new), 1)
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
        statistic = chi_square(table, expected) if self.test == "chi-square" else likelihood_ratio(table, expected)
        freedom = max(1, len(classes) - 1)
        excess = residuals(table, expected)
        return Scores(
            values=excess[np.searchsorted(classes, new)],
            outlier_threshold=NormalDist().inv_cdf(1 - self.level / len(classes)),
            statistic=statistic,
            threshold=chi_square_critical(self.level, freedom),
            p_value=chi_square_above(statistic, freedom),
            by_feature=excess,
        )

    def save(self, folder: Path) -> None:
        arrays = {"classes": self.classes, "counts": self.counts}
        storage.write(folder, "prior", {"level": self.level, "test": self.test}, arrays)

    @classmethod
    def load(cls, folder: Path) -> FittedClassPrior:
        """Read what was saved."""
        options, arrays = storage.read(folder)
        test: Test = "g" if options["test"] == "g" else "chi-square"
        return cls(classes=arrays["classes"], counts=arrays["counts"], level=float(options["level"]), test=test)


def class_numbers(what: str, samples: Samples, least: int) -> NDArray[np.int64]:
    """Return the predicted classes as integers, (n,), or say what is wrong with them."""
    array = checked(what, samples, least=least)
    if array.ndim != 1:
        raise InvalidError(
            f"The {what} has the shape {array.shape}, and the class prior compares class numbers, (n,). "
            "Give the predicted classes: scores.argmax(axis=1), say."
        )
    if (array != np.rint(array)).any():
        raise InvalidError(f"The {what} holds fractions, and classes are whole numbers. Give the predicted classes.")
    return array.astype(np.int64)


def chi_square(table: Floats, expected: Floats) -> float:
    """Return Pearson's statistic of observed and expected counts, all expected ones above 0."""
    return float(((table - expected) ** 2 / expected).sum())


def likelihood_ratio(table: Floats, expected: Floats) -> float:
    """Return the G statistic of observed and expected counts."""
    seen = table > 0
    return float(2.0 * (table[seen] * np.log(table[seen] / expected[seen])).sum())


def residuals(table: Floats, expected: Floats) -> Floats:
    """Return (classes,): in standard deviations, how much more often than expected the new data has each class."""
    total = table.sum()
    others = (1 - table.sum(axis=0) / total) * (1 - table[1].sum() / total)
    spread = np.sqrt(expected[1] * others)
    return np.asarray((table[1] - expected[1]) / np.where(spread > 0, spread, 1.0), dtype=np.float64)
