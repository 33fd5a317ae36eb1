"""Which points of a window that drifted are to be labelled: some to learn from, and some to evaluate models by.

Those to learn from are the critical ones, on which the model in use is weak: its accuracy on them says little of the
window's. So others are drawn at random from all of it, and no model may learn from these, nor from any like them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scanflow.drift.detectors.critical import CriticalPoint, pick
from scanflow.drift.detectors.port import Floats, Indices
from scanflow.drift.evaluation import are_for_evaluation
from scanflow.drift.samples import Samples, digests, firsts, row_values
from scanflow.errors import InvalidError


def select(
    x: Samples,
    *,
    ids: Sequence[str],
    runs: Sequence[str],
    guesses: Sequence[int | str],
    strangeness: Floats,
    uncertainty: Floats,
    outliers: Indices,
    features: Floats,
    most: int,
    evaluation_share: float,
    generator: np.random.Generator,
) -> list[CriticalPoint]:
    """Return up to ``most`` points of n samples, a share of them for evaluation; of equal samples, one.

    Those for evaluation have scores like the others', in random order: whoever labels the highest ones first labels
    both kinds, and a random part of those for evaluation.

    Args:
        x: The samples.
        ids: (n,), as the arguments that follow: see :func:`~.detectors.critical.pick`.
        evaluation_share: The share of points that are for evaluation, 0 to 1.
        most: The most points.
        generator: Draws those for evaluation.
    """
    if not 0 <= evaluation_share < 1:
        raise InvalidError(f"evaluation_share={evaluation_share} is no share. Give 0 or more, and less than 1.")
    own = digests(x)
    first, held = firsts(own), are_for_evaluation(own, evaluation_share)
    candidates = first[held[first]]
    drawn: list[int] = generator.permutation(candidates)[: round(most * evaluation_share)].tolist()
    free: list[int] = first[~held[first]].tolist()

    def some(outliers: Indices, count: int) -> list[CriticalPoint]:
        return pick(
            ids=[ids[at] for at in free],
            runs=[runs[at] for at in free],
            guesses=[guesses[at] for at in free],
            strangeness=strangeness[free],
            uncertainty=uncertainty[free],
            outliers=outliers,
            features=features[free],
            most=count,
        )

    wanted = most - len(drawn)
    picked = some(np.flatnonzero(np.isin(free, outliers)), wanted)
    if len(picked) < wanted:
        # A model may be sure of what it has never seen, and be wrong: the others tell something, too.
        known = {one.id for one in picked}
        picked += [one for one in some(np.arange(len(free)), wanted) if one.id not in known][: wanted - len(picked)]
    places = 1 - (np.arange(len(drawn)) + 0.5) / max(len(drawn), 1)
    scores = np.quantile([one.score for one in picked], places) if picked else places
    evaluated = [
        CriticalPoint(
            id=ids[at], run=runs[at], index=at, guess=guesses[at], score=round(float(score), 6), purpose="evaluate"
        )
        for at, score in zip(drawn, scores, strict=True)
    ]
    points = [one.model_copy(update={"index": free[one.index]}) for one in picked] + evaluated
    return [one.model_copy(update={"row": row_values(x, one.index)}) for one in points]
