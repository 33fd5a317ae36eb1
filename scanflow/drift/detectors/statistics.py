"""The tests that detectors use, by scipy, which is imported when one is first used."""

from __future__ import annotations

from typing import Any

import numpy as np

from scanflow.drift.detectors.port import Floats, Indices
from scanflow.errors import InvalidError


def check_share(detector: Any, *names: str) -> None:
    """Refuse options that are shares or p-values and are not between 0 and 1."""
    for name in names:
        value = getattr(detector, name)
        if not 0 < value < 1:
            raise InvalidError(f"{name}={value} is not between 0 and 1. Give 0.01, say, or leave it out.")


def ks(new: Floats, old: Floats, level: float) -> tuple[Floats, Floats, float]:
    """Compare samples (n, features) and (m, features), one feature after the other: :func:`scipy.stats.ks_2samp`.

    Return the distances (features,), 0 to 1; their p-values (features,), by the distribution for the effective sample
    size; and the distance whose p-value is ``level``.
    """
    from scipy import stats

    # The stubs of scipy do not know the axis yet.
    found = stats.ks_2samp(new, old, axis=0, method="asymp")  # pyright: ignore[reportCallIssue]
    size = round(len(new) * len(old) / (len(new) + len(old)))
    return np.asarray(found.statistic), np.asarray(found.pvalue), float(stats.kstwo.isf(level, max(1, size)))


def chi_square(value: Floats, freedom: Indices) -> Floats:
    """Return the probability that chi-square of ``freedom`` degrees, 0 or more, is above ``value``."""
    from scipy import stats

    return np.where(freedom > 0, stats.chi2.sf(value, np.maximum(freedom, 1)), 1.0)


def chi_square_critical(level: float, freedom: Indices) -> Floats:
    """Return the value that chi-square of ``freedom`` degrees, 0 or more, exceeds with probability ``level``."""
    from scipy import stats

    return np.where(freedom > 0, stats.chi2.isf(level, np.maximum(freedom, 1)), 0.0)


def exceedances_at_least(count: int, new: int, old: int, rank: int) -> float:
    """Return the probability that at least ``count`` of ``new`` values are above the ``rank``-th largest of ``old``.

    All are drawn from one continuous distribution, whichever it is: the number is beta-binomial. This accounts for the
    threshold being itself estimated from ``old`` values.
    """
    from scipy import stats

    return float(stats.betabinom.sf(count - 1, new, rank, old - rank + 1))


def exceedances_allowed(level: float, new: int, old: int, rank: int) -> int:
    """Return the least number of such values that chance exceeds no more often than ``level``."""
    from scipy import stats

    return int(stats.betabinom.isf(level, new, rank, old - rank + 1))
