"""Several known regimes: new data is compared with the mixture of them that is closest to it.

After a model has learnt from drifted data, both clean and drifted data are known, and traffic may be either, or any
mixture. Compared with all known data pooled, each of these would seem to have drifted, for ever.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.column_tests import RARE
from scanflow.drift.table import DataTable, align
from scanflow.drift.two_sample import compute_joint_features, whiten

FEATURES = 512
"""Number of random Fourier features (Rahimi and Recht, 2007) that approximate the kernel: time is linear in the
rows."""

MIN_SHARE = 0.02
"""A regime with a smaller share of the mixture is left out."""


def draw_mixture(
    reference: DataTable, regimes: NDArray[np.intp], current: DataTable, generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw rows of ``reference`` without replacement, in which each regime has the share that it has in the
    mixture nearest to ``current`` by maximum mean discrepancy; all rows where there is one regime.

    Args:
        reference: The reference data of all regimes.
        regimes: (rows,): the regime of each row of the reference.
        current: New data, with the same columns.
        generator: Chooses the rows.
    """
    names, numbers = np.unique(regimes, return_inverse=True)
    if len(names) < 2:
        return np.arange(reference.rows)
    before, after = align(reference, current)
    pooled = [column.concatenate(after.columns[name]) for name, column in before.columns.items()]
    features, _ = compute_joint_features([(column, column.compute_codes(rare=RARE)) for column in pooled])
    if features.shape[1] == 0:
        return np.arange(reference.rows)
    white = whiten(features) if features.shape[1] > 1 else features
    fourier = _compute_fourier_features(white.astype(np.float64))
    means = np.stack([fourier[: reference.rows][numbers == at].mean(axis=0) for at in range(len(names))])
    shares = _fit_shares(means, fourier[reference.rows :].mean(axis=0))
    shares = np.where(shares < MIN_SHARE, 0.0, shares)
    shares /= shares.sum()
    sizes = np.bincount(numbers)
    most = min(size / share for size, share in zip(sizes, shares, strict=True) if share > 0)
    drawn = [
        generator.choice(np.flatnonzero(numbers == at), min(round(most * share), sizes[at]), replace=False)
        for at, share in enumerate(shares)
    ]
    return np.sort(np.concatenate(drawn))


def _compute_fourier_features(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n, FEATURES): products of rows approximate a Gaussian kernel as wide as the median distance."""
    generator = np.random.default_rng(0)
    first, second = generator.integers(len(points), size=(2, 1000))
    width = float(np.median(np.linalg.norm(points[first] - points[second], axis=1)))
    angles = points @ generator.normal(size=(points.shape[1], FEATURES // 2)) / max(width, 1e-12)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _fit_shares(means: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares (regimes,), that add up to 1, with which ``means`` (regimes, d) come nearest to ``target``."""
    from scipy.optimize import nnls

    heavy = 1e3  # so much does it count that the shares add up to 1
    shares, _ = nnls(np.column_stack([means, np.full(len(means), heavy)]).T, np.append(target, heavy))
    return np.asarray(shares / shares.sum(), np.float64)
