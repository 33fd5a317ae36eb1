"""The critical points: the few samples whose labels help the model most (thesis 5.5.2).

A strange sample tells little when the model reads it well, and twenty alike ones tell hardly more than one. So points
are chosen among outliers and samples the model is unsure of, by how strange and unsure they are and by how far they lie
from those chosen before (greedy k-centre: Sener and Savarese, 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from scanflow.drift.contract import Purpose
from scanflow.drift.detectors.detector_port import Floats, Indices, Samples, check_samples
from scanflow.errors import InvalidError


class CriticalPoint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    run: str
    """The run, or another identifier, in which the sample was predicted."""

    index: int
    """The index of the sample in its batch."""

    guess: int | str
    """The model's prediction."""

    score: float
    """The value of its label for training, 0 to 1."""

    purpose: Purpose = "train"
    """The purpose of its label."""

    row: dict[str, Any] | None = None
    """Its values by column, if it comes from a table."""


def compute_uncertainty(probabilities: Samples) -> Floats:
    """Compute the model's uncertainty, (n,): 0 if one class has all probability, 1 if the two highest are equal.

    Probabilities are (n, classes), of two or more classes.
    """
    array = check_samples("batch", probabilities)
    if array.ndim != 2 or array.shape[1] < 2 or array.min() < 0 or array.max() > 1 + 1e-5:
        raise InvalidError(
            f"The model's scores have the shape {array.shape} and are from {array.min():g} to {array.max():g}. "
            "Give probabilities of two or more classes, (n, classes)."
        )
    best = np.sort(array, axis=1)
    return np.clip(1 - (best[:, -1] - best[:, -2]), 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSamples:
    """n samples, with what a model and a detector say of each.

    Raises:
        InvalidError: there is not one of each for every sample, or an id occurs twice.
    """

    ids: Sequence[str]
    """(n,), each another."""

    runs: Sequence[str]
    """(n,): the run in which each was predicted."""

    guesses: Sequence[int | str]
    """(n,): the model's predictions."""

    strangeness: Floats
    """(n,): the detector's values; only their order counts."""

    uncertainty: Floats
    """(n,), 0 to 1: see :func:`compute_uncertainty`."""

    outliers: Indices
    """The indices of the detector's outliers."""

    features: Floats
    """(n, d): similar samples are close."""

    def __post_init__(self) -> None:
        count = len(self.ids)
        lengths = {
            name: len(getattr(self, name)) for name in ("runs", "guesses", "strangeness", "features", "uncertainty")
        }
        if wrong := {name: length for name, length in lengths.items() if length != count}:
            raise InvalidError(f"There are {count} ids, but {wrong}. Give one of each for every sample.")
        if len(set(self.ids)) != count:
            raise InvalidError("Some ids occur twice, so a label would match two samples. Give each sample its own id.")

    def take(self, places: Sequence[int]) -> ScoredSamples:
        """Return the samples at these indices, in their order."""
        return ScoredSamples(
            ids=[self.ids[at] for at in places],
            runs=[self.runs[at] for at in places],
            guesses=[self.guesses[at] for at in places],
            strangeness=self.strangeness[places],
            uncertainty=self.uncertainty[places],
            outliers=np.flatnonzero(np.isin(places, self.outliers)),
            features=self.features[places],
        )


def pick(samples: ScoredSamples, most: int, *, unsure_above: float = 0.5) -> list[CriticalPoint]:
    """Select up to ``most`` critical points, the most informative first, independent of the order of samples: ties are
    broken by ids.

    Args:
        samples: Of these.
        most: The most points.
        unsure_above: A sample of more uncertainty may be selected though it is no outlier.
    """
    if most < 0:
        raise InvalidError(f"most={most} is below 0. Give 0 for none.")
    ids, count = samples.ids, len(samples.ids)
    if count == 0:
        return []
    strange = check_samples("strangeness", samples.strangeness)
    unsure = check_samples("uncertainty", samples.uncertainty)
    locations = check_samples("features", samples.features).reshape(count, -1)

    scores = (compute_ranks(strange) + np.clip(unsure, 0.0, 1.0)) / 2
    eligible = unsure > unsure_above
    eligible[samples.outliers] = True
    candidates = np.array(sorted(np.flatnonzero(eligible).tolist(), key=ids.__getitem__), dtype=np.intp)
    chosen: list[int] = candidates[select_spread_out(locations[candidates], scores[candidates], most)].tolist()
    return [
        CriticalPoint(
            id=ids[at], run=samples.runs[at], index=at, guess=samples.guesses[at], score=round(float(scores[at]), 6)
        )
        for at in chosen
    ]


def compute_ranks(values: Floats) -> Floats:
    """Return the share of values below each value, 0 to 1; ties are equal."""
    if len(values) == 1:
        return np.ones(1)
    return np.searchsorted(np.sort(values), values, side="left") / (len(values) - 1)


def select_spread_out(places: Floats, scores: Floats, most: int) -> Indices:
    """Return up to ``most`` indices: the best score first, then always the greatest score times distance to those.

    Among equals the first one is taken; what lies exactly where a chosen one does comes last, by score.
    """
    count = min(most, len(places))
    chosen: list[int] = []
    remaining = np.ones(len(places), dtype=bool)
    nearest = np.full(len(places), np.inf)
    for _ in range(count):
        worth = scores if not chosen else scores * nearest
        if chosen and not (worth[remaining] > 0).any():
            worth = scores
        at = int(np.where(remaining, worth, -1.0).argmax())
        chosen.append(at)
        remaining[at] = False
        nearest = np.minimum(nearest, np.linalg.norm(places - places[at], axis=1))
    return np.array(chosen, dtype=np.intp)
