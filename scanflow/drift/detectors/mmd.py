"""Maximum mean discrepancy: are two samples as a whole drawn from one distribution? (Gretton et al., 2012.)

With a Gaussian kernel as wide as the median distance, the unbiased estimate, and a permutation test, whose level holds
for any distribution and any sample size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from scanflow.drift.detectors.port import Floats, Samples, Scores
from scanflow.drift.detectors.samples import OnDirections, Reference, distance
from scanflow.drift.detectors.statistics import check_share
from scanflow.drift.detectors.storage import Persistent
from scanflow.errors import InvalidError

SEEDS = 2**63


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedMMD(Persistent):
    """MMD with its reference. The statistic is the unbiased estimate of the squared discrepancy; about 0, or below."""

    KIND = "mmd"

    reference: Reference
    points: Floats
    """(m, features): those of the reference that are compared with."""

    seed: int
    level: float
    permutations: int
    most: int

    def score(self, batch: Samples) -> Scores:
        features = self.reference.features_of(batch)
        if len(features) < 2:
            raise InvalidError(f"The batch has {len(features)} sample, and MMD needs 2. Wait for more data.")
        generator = np.random.default_rng(self.seed)
        in_order = features[np.lexsort(features.T)]  # that does not depend on the order they came in
        new = some(in_order, self.most, generator)
        kernel = gaussian_kernel(np.concatenate([new, self.points]))
        are_new = (np.arange(len(kernel)) < len(new)).astype(np.float64)[None]
        statistic = discrepancies(kernel, are_new)[0]
        by_chance = discrepancies(kernel, generator.permuted(are_new.repeat(self.permutations, axis=0), axis=1))
        allowed = math.floor(self.level * (self.permutations + 1)) - 1
        return Scores(
            values=distance(features),
            outlier_threshold=self.reference.outlier_threshold,
            statistic=float(statistic),
            threshold=float(np.sort(by_chance)[::-1][allowed]),
            p_value=float((1 + (by_chance >= statistic).sum()) / (1 + self.permutations)),
        )


@dataclass(frozen=True, kw_only=True)
class MMD(OnDirections):
    """Looks for drift in all features together, so also in how they depend on each other."""

    generator: np.random.Generator = field(repr=False, compare=False)
    """Where chance comes from. Fitting draws one seed from it, and scoring is determined by that."""

    level: float = 0.01
    """How often a batch without drift raises an alarm, at most."""

    permutations: int = 400
    most: int = 1000
    """So many samples of either side are compared, drawn at random from more: time and memory grow as its square."""

    def fit(self, reference: Samples) -> FittedMMD:
        check_share(self, "level")
        if math.floor(self.level * (self.permutations + 1)) < 1:
            raise InvalidError(
                f"With {self.permutations} permutations no p-value is as small as level={self.level}. "
                f"Give permutations={math.ceil(1 / self.level) - 1} or more."
            )
        if self.most < 2:
            raise InvalidError(f"most={self.most} leaves nothing to compare. Give 2 or more.")
        known = self.reference_of(reference)
        seed = int(self.generator.integers(SEEDS))
        return FittedMMD(
            reference=known,
            points=some(known.features, self.most, np.random.default_rng(seed)),
            seed=seed,
            level=self.level,
            permutations=self.permutations,
            most=self.most,
        )

    load = FittedMMD.load


def some(features: Floats, most: int, generator: np.random.Generator) -> Floats:
    if len(features) <= most:
        return features
    return features[np.sort(generator.choice(len(features), most, replace=False))]


def gaussian_kernel(points: Floats) -> Floats:
    """Return (n, n): exp(-|x - y|² / (2 w²)), w the median distance between different points; zero on the diagonal."""
    squares = (points**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2.0 * points @ points.T, 0.0)
    above = apart[np.triu_indices(len(points), 1)]
    different = above[above > 1e-12]
    width = float(np.median(different)) if len(different) else 1.0
    kernel: Floats = np.exp(apart / (-2.0 * width))
    np.fill_diagonal(kernel, 0.0)  # the unbiased estimate leaves out each point's likeness to itself
    return kernel


def discrepancies(kernel: Floats, members: Floats) -> Floats:
    """Return the unbiased squared discrepancy for each row of ``members``, (rows, n) of ones and zeros."""
    ones = members.sum(axis=1)
    zeros = len(kernel) - ones
    toward = members @ kernel
    inside = (toward * members).sum(axis=1)
    across = toward.sum(axis=1) - inside
    outside = kernel.sum() - inside - 2.0 * across
    result: Floats = inside / (ones * (ones - 1)) + outside / (zeros * (zeros - 1)) - 2.0 * across / (ones * zeros)
    return result
