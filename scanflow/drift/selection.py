"""Selects the points of a window with drift to label: some for training, and some to evaluate models.

Those to learn from are the critical ones, on which the model in use is weak: its accuracy on them says little of the
window's. So others are drawn at random from all of it, and no model may learn from these, nor from any like them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scanflow.drift.detectors.critical import CriticalPoint, ScoredSamples, pick
from scanflow.drift.evaluation import are_for_evaluation
from scanflow.drift.samples import Samples, compute_digests, list_first_occurrences, read_row
from scanflow.errors import InvalidError


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
    evaluated = [
        CriticalPoint(
            id=samples.ids[at],
            run=samples.runs[at],
            index=at,
            guess=samples.guesses[at],
            score=round(float(score), 6),
            purpose="evaluate",
        )
        for at, score in zip(drawn, scores, strict=True)
    ]
    points = [point.model_copy(update={"index": free[point.index]}) for point in picked] + evaluated
    return [point.model_copy(update={"row": read_row(x, point.index)}) for point in points]
