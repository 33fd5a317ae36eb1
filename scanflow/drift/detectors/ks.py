"""Kolmogorov-Smirnov: feature by feature, are the two distributions the same? Corrected for asking many times.

On the main directions of the data rather than on its raw features, as Rabanser et al. ("Failing loudly", 2019) found to
work best; with ``components`` at least the number of features, on these as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanflow.drift.detectors.port import Samples, Scores
from scanflow.drift.detectors.samples import OnDirections, Reference, distance
from scanflow.drift.detectors.statistics import ks
from scanflow.drift.detectors.storage import Persistent
from scanflow.errors import InvalidError


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedKS(Persistent):
    """KS with its reference. The statistic is the largest distance of any feature, 0 to 1."""

    KIND = "ks"

    reference: Reference
    level: float
    alarm_above: float

    def score(self, batch: Samples) -> Scores:
        features = self.reference.features_of(batch)
        many = features.shape[1]
        distances, p_values, by_chance = ks(features, self.reference.features, self.level / many)
        return Scores(
            values=distance(features),
            outlier_threshold=self.reference.outlier_threshold,
            statistic=float(distances.max()),
            threshold=max(self.alarm_above, by_chance),
            p_value=min(1.0, many * float(p_values.min())),
            by_feature=distances,
        )


@dataclass(frozen=True, kw_only=True)
class KS(OnDirections):
    """Looks for drift in each feature; the batch has drifted when one has, after Bonferroni's correction."""

    level: float = 0.01
    """How often a batch without drift raises an alarm, at most: 0 to 0.1."""

    alarm_above: float = 0.0
    """The batch has drifted when a distance is above this too: what is certain need not be worth an alarm."""

    def fit(self, reference: Samples) -> FittedKS:
        if not 0 < self.level <= 0.1:
            raise InvalidError(f"level={self.level} is not above 0 and at most 0.1. Give 0.01, say.")
        known = self.reference_of(reference)
        return FittedKS(reference=known, level=self.level, alarm_above=self.alarm_above)

    load = FittedKS.load
