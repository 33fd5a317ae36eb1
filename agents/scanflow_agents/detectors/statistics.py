"""The tests that detectors use, by scipy, which is imported when one is first used."""

from __future__ import annotations

import numpy as np

from scanflow_agents.detectors.port import Floats


def ks(new: Floats, old: Floats, level: float) -> tuple[Floats, Floats, float]:
    """Compare two samples feature by feature: the two-sample Kolmogorov-Smirnov test (:func:`scipy.stats.ks_2samp`).

    Args:
        new: (n, features).
        old: (m, features).
        level: a p-value, 0 to 1.

    Returns:
        The distances (features,), 0 to 1; their p-values (features,), by the distribution for the effective sample
        size; the distance whose p-value is ``level``.
    """
    from scipy import stats

    # The stubs of scipy do not know the axis yet.
    found = stats.ks_2samp(new, old, axis=0, method="asymp")  # pyright: ignore[reportCallIssue]
    size = round(len(new) * len(old) / (len(new) + len(old)))
    return np.asarray(found.statistic), np.asarray(found.pvalue), float(stats.kstwo.isf(level, max(1, size)))


def chi_square(value: float, freedom: int) -> float:
    """Return the probability that chi-square of ``freedom`` degrees, 0 or more, is above ``value``."""
    from scipy import stats

    return float(stats.chi2.sf(value, freedom)) if freedom else 1.0


def chi_square_critical(level: float, freedom: int) -> float:
    """Return the value that chi-square of ``freedom`` degrees, 0 or more, exceeds with probability ``level``."""
    from scipy import stats

    return float(stats.chi2.isf(level, freedom)) if freedom else 0.0


def exceedances_at_least(count: int, new: int, old: int, rank: int) -> float:
    """Return the probability that at least ``count`` of ``new`` values are above the ``rank``-th largest of ``old``.

    All are drawn from one continuous distribution, whichever it is: the number is beta-binomial. This accounts for the
    threshold being itself estimated from ``old`` values.
    """
    from scipy import stats

    return float(stats.betabinom.sf(count - 1, new, rank, old - rank + 1))


def holm(p_values: Floats) -> Floats:
    """Return Holm's adjusted p-values (1979): rejecting those at most ``level`` is wrong once or more that seldom."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * factors))
    return adjusted
