"""The class prior: does the model predict the classes as often as it did on the reference? (Lipton et al., 2018.)

A test of homogeneity on predicted classes. It needs no labels and no features, and sees what changes predictions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.detectors.port import Floats, Samples, Scores
from scanflow.drift.detectors.samples import LEAST_REFERENCE, checked
from scanflow.drift.detectors.statistics import check_share, chi_square_critical
from scanflow.drift.detectors.storage import Persistent
from scanflow.errors import InvalidError

Test = Literal["chi-square", "g"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedClassPrior(Persistent):
    """A class prior with its reference. The statistic is chi-square or G; a sample's value is its class' excess."""

    KIND = "prior"

    classes: NDArray[np.int64]
    """(c,), ascending."""

    counts: NDArray[np.int64]
    """(c,): how often the reference has each."""

    level: float
    test: Test

    def score(self, batch: Samples) -> Scores:
        from scipy.stats import chi2_contingency

        new = class_numbers("batch", batch, 1)
        classes = np.union1d(self.classes, new)
        table = np.zeros((2, len(classes)))
        table[0, np.searchsorted(classes, self.classes)] = self.counts
        np.add.at(table[1], np.searchsorted(classes, new), 1)
        found: Any = chi2_contingency(
            table, correction=False, lambda_="log-likelihood" if self.test == "g" else "pearson"
        )
        excess = residuals(table, found.expected_freq)
        return Scores(
            values=excess[np.searchsorted(classes, new)],
            outlier_threshold=NormalDist().inv_cdf(1 - self.level / len(classes)),
            statistic=float(found.statistic),
            threshold=float(chi_square_critical(self.level, np.array(len(classes) - 1))),
            p_value=float(found.pvalue),
            by_feature=excess,
        )


@dataclass(frozen=True, kw_only=True)
class ClassPrior:
    """Looks for drift in how often each class is predicted. Samples are class numbers, (n,)."""

    level: float = 0.01
    """How often a batch without drift raises an alarm, about; counts below 5 make it more."""

    test: Test = "chi-square"
    """Pearson's chi-square, or the G test of likelihood ratios."""

    def fit(self, reference: Samples) -> FittedClassPrior:
        check_share(self, "level")
        if self.test not in ("chi-square", "g"):
            raise InvalidError(f"test={self.test!r} is not known. Give 'chi-square' or 'g'.")
        classes, counts = np.unique(class_numbers("reference", reference, LEAST_REFERENCE), return_counts=True)
        return FittedClassPrior(classes=classes, counts=counts.astype(np.int64), level=self.level, test=self.test)

    load = FittedClassPrior.load


def class_numbers(what: str, samples: Samples, least: int) -> NDArray[np.int64]:
    array = checked(what, samples, least=least)
    if array.ndim != 1:
        raise InvalidError(
            f"The {what} has the shape {array.shape}, and the class prior compares class numbers, (n,). "
            "Give the predicted classes: scores.argmax(axis=1), say."
        )
    if (array != np.rint(array)).any():
        raise InvalidError(f"The {what} holds fractions, and classes are whole numbers. Give the predicted classes.")
    return array.astype(np.int64)


def residuals(table: Floats, expected: Floats) -> Floats:
    """Return (classes,): in standard deviations, how much more often than expected the new data has each class."""
    total = table.sum()
    others = (1 - table.sum(axis=0) / total) * (1 - table[1].sum() / total)
    spread = np.sqrt(expected[1] * others)
    return np.asarray((table[1] - expected[1]) / np.where(spread > 0, spread, 1.0), dtype=np.float64)
