"""The population stability index: how differently samples fill the bins that the reference fills evenly.

By custom, 0.1 to 0.25 is a moderate change and more is a major one. A small batch scatters more than that by chance, so
the threshold is raised to what chance reaches (Yurdakul, 2018: the index over 1/n + 1/m is chi-square, with one degree
of freedom less than there are bins in use).

A value that repeats so often that quantiles fall on it has a bin of its own: between the values below it and those
above, it could else change places with either, and no bin would be the fuller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.detectors.port import Floats, Samples, Scores
from scanflow.drift.detectors.samples import OnDirections, Reference, distance
from scanflow.drift.detectors.statistics import check_share, chi_square, chi_square_critical
from scanflow.drift.detectors.storage import Persistent
from scanflow.errors import InvalidError

MAJOR = 0.25

OWN_SHARE = 0.25
"""An edge at which more values lie than this share of an even bin has a bin of its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedPSI(Persistent):
    """PSI with its reference.

    The statistic is the index of the feature that changed most, measured by what it may change: chance does more to a
    feature of many values than to one of two, so each has its own threshold, and the batch that of this one.
    """

    KIND = "psi"

    reference: Reference
    edges: Floats
    """(features, bins - 1): where one bin ends and the next begins; the same twice where values repeat."""

    alarm_above: float
    level: float

    def score(self, batch: Samples) -> Scores:
        features = self.reference.features_of(batch)
        columns = zip(features.T, self.reference.features.T, self.edges, strict=True)
        filled = [in_bins(new, old, edges) for new, old, edges in columns]
        indices = np.array([index_of(new, old) for new, old in filled])
        freedoms = np.array([int(((new + old) > 0).sum()) - 1 for new, old in filled])
        chance = 1 / len(features) + 1 / len(self.reference.features)
        by_chance = chance * chi_square_critical(self.level / len(indices), freedoms)
        thresholds = np.maximum(self.alarm_above, by_chance)
        most = int((indices / thresholds).argmax())
        return Scores(
            values=distance(features),
            outlier_threshold=self.reference.outlier_threshold,
            statistic=float(indices[most]),
            threshold=float(thresholds[most]),
            p_value=min(1.0, len(indices) * float(chi_square(indices / chance, freedoms).min())),
            by_feature=indices,
        )


@dataclass(frozen=True, kw_only=True)
class PSI(OnDirections):
    """Looks for drift in how each feature's values spread over quantile bins; the worst feature counts."""

    alarm_above: float = MAJOR
    """The batch has drifted when the index of a feature is above this (and above what chance reaches)."""

    bins: int = 10
    level: float = 0.01
    """How often chance may reach what raises an alarm, for all features together."""

    def fit(self, reference: Samples) -> FittedPSI:
        if self.bins < 2:
            raise InvalidError(f"bins={self.bins} cannot tell anything apart. Give 2 or more; 10 is the custom.")
        if self.alarm_above <= 0:
            raise InvalidError(f"alarm_above={self.alarm_above} is always exceeded. Give 0.1 or {MAJOR}, say.")
        check_share(self, "level")
        known = self.reference_of(reference)
        inner = np.quantile(known.features, np.arange(1, self.bins) / self.bins, axis=0)
        return FittedPSI(reference=known, edges=inner.T, alarm_above=self.alarm_above, level=self.level)

    load = FittedPSI.load


def in_bins(new: Floats, old: Floats, edges: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many of a feature's values (n,) lie in each bin, and how many of the reference's (m,): (bins,) each.

    A bin ends with its edge, (bins - 1,) ascending, unless so many values of both lie there that it has its own.
    """
    distinct = np.unique(edges)
    both = np.concatenate([new, old])
    at_edge = (both[:, None] == distinct).sum(axis=0)
    own = at_edge > OWN_SHARE * len(both) / (len(edges) + 1)
    first = np.arange(len(distinct) + 1) + np.concatenate([[0], np.cumsum(own)])

    def counts(values: Floats) -> NDArray[np.int64]:
        bins = np.searchsorted(distinct, values, side="left")
        inside = np.minimum(bins, len(distinct) - 1)
        return np.bincount(first[bins] + (own[inside] & (values == distinct[inside])), minlength=int(first[-1]) + 1)

    return counts(new), counts(old)


def index_of(new: NDArray[np.int64], old: NDArray[np.int64]) -> float:
    """Return the index of two counts over the same bins. Half a sample more in each: no bin is ever quite empty.

    Bins that both leave empty do not count.
    """
    used = (new + old) > 0
    new_share = (new[used] + 0.5) / (new[used] + 0.5).sum()
    old_share = (old[used] + 0.5) / (old[used] + 0.5).sum()
    return float(((new_share - old_share) * np.log(new_share / old_share)).sum())
