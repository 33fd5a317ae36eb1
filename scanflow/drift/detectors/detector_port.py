"""The interface of detectors: fit on reference data once, then score any number of batches against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError

if TYPE_CHECKING:
    from scanflow.drift.two_sample import ColumnDrift

__all__ = ["Detector", "FittedDetector", "Scores"]

Samples = NDArray[Any]
"""Samples along the first axis: (n, ...) numbers, all finite."""

MIN_REFERENCE = 20

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """A detector's scores of one batch of n samples, and of each sample in it."""

    values: Floats
    """(n,): how much each sample differs; higher is more unusual. The unit is the detector's own."""

    outlier_threshold: float
    """A sample whose value is above this is an outlier."""

    statistic: float
    """The distance of the whole batch from the reference. The unit is the detector's own."""

    threshold: float
    """The batch has drifted if and only if ``statistic`` is above this."""

    p_value: float | None
    """Probability that a batch without drift differs at least as much; None if a detector has no such test."""

    columns: tuple[ColumnDrift, ...] = ()
    """The drifted columns, worst first, if the detector knows columns."""

    regimes: tuple[float, ...] = ()
    """The share of each known regime in the mixture closest to the batch, by number; empty if a detector does not
    know regimes."""

    @property
    def drifted(self) -> bool:
        """Whether the batch as a whole has drifted."""
        return self.statistic > self.threshold

    @property
    def outliers(self) -> Indices:
        """Indices of the samples that are outliers, ascending."""
        return np.flatnonzero(self.values > self.outlier_threshold)


class FittedDetector(Protocol):
    """A detector fitted to a reference. Scoring changes nothing: the same batch always gets the same scores."""

    def score(self, batch: Any) -> Scores:
        """Compare a batch with the reference; the samples' order affects only that of ``values`` and ``outliers``.

        It may take ``predicted`` too, if ``fit`` does.

        Raises:
            InvalidError: the batch is too small, of another form than the reference, or of what cannot be compared.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write the fitted detector into ``folder``, which is created if missing; :func:`catalogue.load` reads it."""
        ...


class Detector(Protocol):
    """A configured, unfitted detector."""

    def fit(self, reference: Any) -> FittedDetector:
        """Learn the distribution of data without drift.

        Two keyword arguments more are given to detectors that take them, by :func:`catalogue.fit`. ``regimes``, (n,):
        which regime each sample is of, by number; batches of any one, and of any mixture, are no drift. ``predicted``,
        (n, classes): the served model's scores of the samples; a change of these is drift too.

        Args:
            reference: Data without drift: samples (n, ...), or a table.

        Raises:
            InvalidError: the reference is too small, or of a form that does not fit.
        """
        ...

    @staticmethod
    def load(folder: Path) -> FittedDetector:
        """Load the detector that :meth:`Fitted.save` wrote into ``folder``."""
        ...


def check_samples(what: str, samples: Samples, *, shape: tuple[int, ...] | None = None, least: int = 1) -> Floats:
    """Validate samples and return them as float64, (n, ...); errors call them ``what``, "batch" or "reference".

    Raises:
        InvalidError: not numbers, fewer than ``least``, not of ``shape`` each, NaN or infinite values.
    """
    array: NDArray[Any] = np.asarray(samples)
    if array.dtype.kind not in "biuf":
        raise InvalidError(f"The {what} holds {array.dtype}, but a detector compares numbers. Convert it to floats.")
    if array.ndim == 0:
        raise InvalidError(f"The {what} is one number. Give an array with the samples along its first axis.")
    if len(array) < least:
        raise InvalidError(
            f"The {what} has {len(array)} samples, but at least {least} are needed. "
            + ("Wait for more data before looking for drift." if what == "batch" else "Give more of the training data.")
        )
    if shape is not None and array.shape[1:] != shape:
        raise InvalidError(
            f"The {what}'s samples have the shape {array.shape[1:]}, those of the reference {shape}. "
            "Prepare both in the same way, or fit the detector again."
        )
    if array.size == 0:
        raise InvalidError(f"The {what}'s samples are empty: its shape is {array.shape}. Give at least one feature.")
    bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
    if len(bad):
        raise InvalidError(
            f"{len(bad)} of the {what}'s {len(array)} samples have NaN or infinite values, the first at index "
            f"{bad[0]}. Drop or repair them first."
        )
    return array.astype(np.float64)


def check_share(detector: Any, *names: str) -> None:
    """Reject options that are shares or p-values and not between 0 and 1."""
    for name in names:
        value = getattr(detector, name)
        if not 0 < value < 1:
            raise InvalidError(f"{name}={value} is not between 0 and 1. Give a value such as 0.01, or omit it.")
