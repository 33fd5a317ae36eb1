"""What every detector promises: fit on reference data once, then score any number of batches against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[Any]
"""Samples along the first axis: (n, ...) numbers, all finite."""

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What a detector says of one batch of n samples, and of each sample in it."""

    values: Floats
    """(n,): how foreign each sample is; higher is stranger. The unit is the detector's own."""

    outlier_threshold: float
    """A sample whose value is above this is an outlier."""

    statistic: float
    """How far the batch as a whole is from the reference. The unit is the detector's own."""

    threshold: float
    """The batch has drifted when, and only when, ``statistic`` is above this."""

    p_value: float | None
    """How often a batch without drift looks at least as far off, by chance; None where a detector has no such test."""

    by_feature: Floats | None = None
    """(features,): the statistic of each feature, where the detector looks at one after the other."""

    @property
    def drifted(self) -> bool:
        """Whether the batch as a whole has drifted."""
        return self.statistic > self.threshold

    @property
    def outliers(self) -> Indices:
        """Indices of the samples that are outliers, ascending."""
        return np.flatnonzero(self.values > self.outlier_threshold)


class Fitted(Protocol):
    """A detector that knows its reference. Scoring changes nothing: the same batch gets the same scores again."""

    def score(self, batch: Samples) -> Scores:
        """Compare a batch with the reference; the order of its samples only orders ``values`` and ``outliers``.

        Raises:
            InvalidError: the batch is empty, has NaN or infinite values, or samples of another shape.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write what is known into ``folder``, which is made if need be; :func:`catalogue.load` reads it."""
        ...


class Detector(Protocol):
    """How drift is looked for; its options are given when it is made."""

    def fit(self, reference: Samples) -> Fitted:
        """Learn what data without drift looks like.

        Raises:
            InvalidError: the reference is too small, has NaN or infinite values, or is of a form that does not fit.
        """
        ...

    @staticmethod
    def load(folder: Path) -> Fitted:
        """Return what :meth:`Fitted.save` wrote into ``folder``."""
        ...
