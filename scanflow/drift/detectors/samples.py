"""Samples as detectors compare them: checked, flat, and projected on the few directions in which they vary most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.detectors.port import Floats, Samples
from scanflow.errors import InvalidError

LEAST_REFERENCE = 20

FLOAT32_MOST = float(np.finfo(np.float32).max)
FLOAT32_STEP = float(np.finfo(np.float32).eps)
FLOAT64_STEP = float(np.finfo(np.float64).eps)
DIGITS_OFF = 4.0
"""By so many of its last digits a number may be off that was worked out in float32 rather than rounded once."""


def checked(what: str, samples: Samples, *, shape: tuple[int, ...] | None = None, least: int = 1) -> Floats:
    """Return the samples as float64, (n, ...); errors call them ``what``, "batch" or "reference".

    Raises:
        InvalidError: not numbers, fewer than ``least``, not of ``shape`` each, NaN or infinite values.
    """
    array: NDArray[Any] = np.asarray(samples)
    if array.dtype.kind not in "biuf":
        raise InvalidError(f"The {what} holds {array.dtype}, and a detector compares numbers. Convert it to floats.")
    if array.ndim == 0:
        raise InvalidError(f"The {what} is one number. Give an array with the samples along its first axis.")
    if len(array) < least:
        raise InvalidError(
            f"The {what} has {len(array)} samples, and at least {least} are needed. "
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
            f"{len(bad)} of the {what}'s {len(array)} samples have NaN or infinite values, first number {bad[0]}. "
            "Drop or repair them first."
        )
    return array.astype(np.float64)


def as_float32(what: str, array: Floats) -> Floats:
    """Return the numbers as float32 can tell them, still as float64.

    Requests mostly come as float32 and references are kept as float64. Where values repeat, 0.1 in the one is less than
    in the other, and all of them would seem to have moved.

    A batch's numbers beyond what float32 holds become the largest that it does: they are strange, and an alarm is of
    more use than an error. What differs among such numbers of a reference could not be seen, so those are refused.
    """
    beyond = np.flatnonzero((np.abs(array.reshape(len(array), -1)) > FLOAT32_MOST).any(axis=1))
    if len(beyond) and what == "reference":
        raise InvalidError(
            f"{len(beyond)} of the {what}'s {len(array)} samples have values beyond {FLOAT32_MOST:.2g}, the most that "
            f"float32 holds, first number {beyond[0]}. Scale them, those of requests too."
        )
    return np.clip(array, -FLOAT32_MOST, FLOAT32_MOST).astype(np.float32).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Reference data as features: along its main directions, and how far off all of those together a sample lies.

    Drift within the directions moves the former; what the reference never did (noise where all was black) moves the
    last. The directions are learnt on one half of the reference and the other half is kept to compare with: on the
    samples they were learnt on, they fit better than on any others, and all new data would seem to have drifted.
    """

    shape: tuple[int, ...]
    centre: Floats
    """(d,)"""

    axes: Floats
    """(k, d), orthonormal; (0, d) when samples have so few features that each is looked at as it is."""

    scale: Floats
    """(features,): what features are divided by: their standard deviation; where they do not vary, 1, or along
    directions, which all have one unit, the largest of the others."""

    features: Floats
    """(m, features): the reference's own, those that were not learnt on."""

    outlier_threshold: float
    """What :meth:`distance` seldom exceeds on the reference."""

    @classmethod
    def of(cls, samples: Samples, *, components: int, outlier_share: float) -> Reference:
        """Learn ``components`` directions from samples (n, ...), or the features themselves if they are as few."""
        if components < 1:
            raise InvalidError(f"components={components} leaves nothing to compare. Give 1 or more.")
        if not 0 < outlier_share < 1:
            raise InvalidError(f"outlier_share={outlier_share} is not between 0 and 1. Give 0.01, say.")
        array = as_float32("reference", checked("reference", samples, least=LEAST_REFERENCE))
        flat = array.reshape(len(array), -1)
        few = flat.shape[1] <= components
        learnt, kept = (flat, flat) if few else (flat[::2], flat[1::2])
        centre = learnt.mean(axis=0)
        axes = np.empty((0, flat.shape[1])) if few else directions(learnt - centre, components)
        spread, off = project(learnt, centre, axes), rounding(learnt, centre, axes)
        scale = scale_of(spread, off, one_unit=not few)
        features = project(kept, centre, axes) / scale
        own = distance(features)
        return cls(
            shape=array.shape[1:],
            centre=centre,
            axes=axes,
            scale=scale,
            features=features,
            outlier_threshold=float(np.quantile(own, 1 - outlier_share, method="higher")),
        )

    def features_of(self, batch: Samples) -> Floats:
        array = as_float32("batch", checked("batch", batch, shape=self.shape))
        return project(array.reshape(len(array), -1), self.centre, self.axes) / self.scale

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: np.asarray(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Reference:
        given: dict[str, Any] = {name: arrays[name] for name in cls.__slots__}
        given["shape"] = tuple(int(size) for size in given["shape"])
        given["outlier_threshold"] = float(given["outlier_threshold"])
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class OnDirections:
    """Options of detectors that look at the main directions of the samples."""

    components: int = 24
    """On how many main directions samples are projected."""

    outlier_share: float = 0.01
    """Which share of the reference itself counts as outliers."""

    def reference_of(self, samples: Samples) -> Reference:
        return Reference.of(samples, components=self.components, outlier_share=self.outlier_share)


def directions(centred: Floats, components: int) -> Floats:
    """Return the orthonormal directions of greatest variance, (k, d), each with its largest entry positive."""
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:components]
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
    turned: Floats = axes * np.where(largest < 0, -1.0, 1.0)[:, None]
    return turned


def project(flat: Floats, centre: Floats, axes: Floats) -> Floats:
    """Return (n, k + 1): coordinates along the axes, and the length of what they leave out; without axes, (n, d).

    What is no more than rounding may have made of nothing is 0. Else a direction in which the reference never varies
    would be full of its rounding, and a batch that was rounded otherwise would have drifted.
    """
    features = centred = flat - centre
    if len(axes):
        along = centred @ axes.T
        features = np.column_stack([along, np.linalg.norm(centred - along @ axes, axis=1)])
    return np.where(np.abs(features) > rounding(flat, centre, axes), features, 0.0)


def rounding(flat: Floats, centre: Floats, axes: Floats) -> Floats:
    """Return how far each feature of each sample may be off because samples came as float32, as :func:`project`."""
    sizes = np.maximum(np.abs(flat), np.abs(centre))
    if len(axes) == 0:
        return DIGITS_OFF * FLOAT32_STEP * sizes
    # Roundings of a sample's values are independent, so their squares add up, as far as each lies along an axis.
    shares = axes**2
    shares = np.vstack([shares, np.maximum(1.0 - shares.sum(axis=0), 0.0)])
    projected = FLOAT64_STEP * len(centre) * np.linalg.norm(sizes, axis=1)[:, None]
    off: Floats = DIGITS_OFF * (FLOAT32_STEP * np.sqrt(sizes**2 @ shares.T) + projected)
    return off


def scale_of(features: Floats, off: Floats, *, one_unit: bool) -> Floats:
    """Return what the reference's features (n, features) are divided by, (features,).

    Those that vary no more than rounding does (``off``) are taken not to. Directions are all of ``one_unit``.
    """
    deviations: Floats = features.std(axis=0)
    varies = deviations > np.sqrt((off**2).mean(axis=0))
    otherwise = float(deviations.max()) if one_unit and varies.any() else 1.0
    return np.where(varies, deviations, otherwise)


def distance(features: Floats) -> Floats:
    """Return how far each sample is from the reference's centre: the root mean square of its features, (n,)."""
    lengths: Floats = np.sqrt((features**2).mean(axis=1))
    return lengths
