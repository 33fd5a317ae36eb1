"""The few distributions that detectors test with, in numpy and the standard library; arrays are of one axis."""

from __future__ import annotations

import math

import numpy as np

from scanflow_agents.detectors.port import Floats

__all__ = [
    "chi_square_above",
    "chi_square_critical",
    "exceedances_at_least",
    "holm",
    "ks_critical",
    "ks_distance",
    "ks_p_value",
]

TERMS = 100
BISECTIONS = 200


def ks_distance(one: Floats, other: Floats) -> float:
    """Return the largest difference between the two empirical distribution functions, 0 to 1."""
    one, other = np.sort(one), np.sort(other)
    at = np.concatenate([one, other])
    below_one = np.searchsorted(one, at, side="right") / len(one)
    below_other = np.searchsorted(other, at, side="right") / len(other)
    return float(np.abs(below_one - below_other).max())


def ks_p_value(distance: float, one: int, other: int) -> float:
    """Return how often samples of sizes ``one`` and ``other`` of one distribution are at least that far apart.

    The limit of large samples with Stephens' correction (1970), good from about four samples on; with ties, too large.
    """
    reach = distance * stephens(one, other)
    if reach < 0.2:  # the series converges slowly there, and the answer is 1 to ten digits
        return 1.0
    signs = (-1.0) ** np.arange(TERMS)
    terms = signs * np.exp(-2.0 * (np.arange(1, TERMS + 1) * reach) ** 2)
    return float(np.clip(2.0 * terms.sum(), 0.0, 1.0))


def ks_critical(level: float, one: int, other: int) -> float:
    """Return the distance that samples of one distribution exceed with probability ``level``, 0.1 or less."""
    return math.sqrt(-math.log(level / 2.0) / 2.0) / stephens(one, other)


def stephens(one: int, other: int) -> float:
    root = math.sqrt(one * other / (one + other))
    return root + 0.12 + 0.11 / root


def chi_square_above(value: float, freedom: int) -> float:
    """Return the probability that chi-square of that many degrees of freedom, 1 or more, is above ``value``."""
    if value <= 0:
        return 1.0
    half = value / 2.0
    if freedom % 2 == 0:
        terms = [k * math.log(half) - half - math.lgamma(k + 1) for k in range(freedom // 2)]
        return min(1.0, math.fsum(map(math.exp, terms)))
    terms = [(k + 0.5) * math.log(half) - half - math.lgamma(k + 1.5) for k in range((freedom - 1) // 2)]
    return min(1.0, math.erfc(math.sqrt(half)) + math.fsum(map(math.exp, terms)))


def chi_square_critical(level: float, freedom: int) -> float:
    """Return the value that chi-square exceeds with probability ``level``, between 0 and 1."""
    low, high = 0.0, float(freedom)
    while chi_square_above(high, freedom) > level:
        high *= 2.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        if chi_square_above(middle, freedom) > level:
            low = middle
        else:
            high = middle
    return high


def exceedances_at_least(count: int, new: int, old: int, rank: int) -> float:
    """Return the probability that at least ``count`` of ``new`` values are above the ``rank``-th largest of ``old``.

    All are drawn from one continuous distribution, whichever it is: the number is beta-binomial. That the threshold is
    itself estimated from ``old`` values is thus accounted for.
    """
    if count <= 0:
        return 1.0
    counts = np.arange(count, new + 1)
    if len(counts) == 0:
        return 0.0
    first, second = rank, old - rank + 1
    logs = [
        log_choose(new, int(k)) + log_beta(int(k) + first, new - int(k) + second) - log_beta(first, second)
        for k in counts
    ]
    return min(1.0, math.fsum(map(math.exp, logs)))


def log_choose(whole: int, part: int) -> float:
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)


def log_beta(one: float, other: float) -> float:
    return math.lgamma(one) + math.lgamma(other) - math.lgamma(one + other)


def holm(p_values: Floats) -> Floats:
    """Return Holm's adjusted p-values (1979): those at most ``level`` are wrong, any of them, that seldom at most."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * factors))
    return adjusted
