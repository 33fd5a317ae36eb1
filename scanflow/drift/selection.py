"""Selects the points of a window with drift to label: some for training, and some to evaluate models.

Those to learn from are the critical ones, the few samples whose labels help the model most (thesis 5.5.2). A strange
sample tells little when the model reads it well, and twenty alike ones tell hardly more than one. So they are chosen
among outliers and samples the model is unsure of, by how strange and unsure they are and by how far they lie from those
chosen before (greedy k-centre: Sener and Savarese, 2018).

The accuracy on them says little of the window's. So others are drawn at random from all of it, and no model may learn
from these, nor from any like them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from scanflow.drift.contract import Purpose
from scanflow.drift.detectors.detector_port import Floats, Indices, check_samples
from scanflow.drift.evaluation import are_for_evaluation
from scanflow.drift.samples import Samples, compute_digests, list_first_occurrences, read_row
from scanflow.errors import InvalidError


class CriticalPoint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    run: str
    """The run, or another identifier, in which the sample was predicted."""

    index: int
    """The index of the sample in its batch."""

    guess: int | float | str
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

    guesses: Sequence[int | float | str]
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

    def build_point(self, at: int, score: float, purpose: Purpose = "train") -> CriticalPoint:
        """Return the point of a sample, with the value of its label."""
        return CriticalPoint(
            id=self.ids[at],
            run=self.runs[at],
            index=at,
            guess=self.guesses[at],
            score=round(float(score), 6),
            purpose=purpose,
        )


def select(
    x: Samples, samples: ScoredSamples, *, most: int, evaluation_share: float, generator: np.random.Generator
) -> list[CriticalPoint]:
    """Select up to ``most`` points of n samples, a share of them for evaluation; equal samples once.

    Those for evaluation have scores like the others', in random order: whoever labels the highest ones first labels
    both kinds, and a random part of those for evaluation.

    Args:
        x: The samples' values.
        samples: What is known of them.
        evaluation_share: The share of points that are for evaluation, 0 to 1.
        most: The most points.
        generator: Draws those for evaluation.
    """
    if not 0 <= evaluation_share < 1:
        raise InvalidError(f"evaluation_share={evaluation_share} is not a share. Give 0 or more, and less than 1.")
    sample_digests = compute_digests(x)
    first, for_evaluation = list_first_occurrences(sample_digests), are_for_evaluation(sample_digests, evaluation_share)
    candidates = first[for_evaluation[first]]
    drawn: list[int] = generator.permutation(candidates)[: round(most * evaluation_share)].tolist()
    free: list[int] = first[~for_evaluation[first]].tolist()
    trainable, remaining = samples.take(free), most - len(drawn)
    picked = pick(trainable, remaining)
    if len(picked) < remaining:
        # A model may be sure of what it has never seen, and be wrong: the others tell something, too.
        picked_ids = {point.id for point in picked}
        everything = pick(replace(trainable, outliers=np.arange(len(free))), remaining)
        picked += [point for point in everything if point.id not in picked_ids][: remaining - len(picked)]
    places = 1 - (np.arange(len(drawn)) + 0.5) / max(len(drawn), 1)
    scores = np.quantile([point.score for point in picked], places) if picked else places
    evaluated = [samples.build_point(at, score, "evaluate") for at, score in zip(drawn, scores, strict=True)]
    points = [point.model_copy(update={"index": free[point.index]}) for point in picked] + evaluated
    return [point.model_copy(update={"row": read_row(x, point.index)}) for point in points]


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
    return [samples.build_point(at, scores[at]) for at in chosen]


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
