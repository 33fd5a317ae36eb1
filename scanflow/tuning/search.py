"""What to measure next: one dimension after the other, each from the best that was found. Pure.

A candidate that was measured is never measured again. From the same scores follows the same next one, so that a search
that was cut short goes on from its scores alone.

It tries a sum of options where an exhaustive search tries their product: what instances are worth depends little on
where they run (thesis Fig. 4.3: the curves of ANY and CPUMEM are alike), and the dimension of the largest effect comes
first. A second pass sees whether another granularity is better with the affinity that was found.
"""

from __future__ import annotations

from collections.abc import Mapping

from scanflow.tuning.candidates import Candidate, SearchSpace

PASSES = 2

Scores = Mapping[Candidate, float]
"""How much better than the service as it is each was, 1: as good; what does not keep the bound is below 0, the service
as it is too."""


def next_candidate(space: SearchSpace, default: Candidate, scores: Scores) -> Candidate | None:
    """Return what to measure next, given what was measured; None: the search is over."""
    known = _by_place(space, default, scores)
    best = default
    for _ in range(PASSES):
        before = best
        for options in space.dimensions:
            found = options(best)
            for one in found:
                if space.placed(one) not in known:
                    return one
            best = max([best, *found], key=lambda one: known[space.placed(one)])
        if best == before:
            return None
    return None


def best_of(default: Candidate, scores: Scores) -> Candidate:
    """Return the best that was measured, and the service as it is where nothing was better."""
    return max([default, *scores], key=lambda one: scores.get(one, 1.0))


def _by_place(space: SearchSpace, default: Candidate, scores: Scores) -> dict[object, float]:
    return {space.placed(one): score for one, score in ({default: 1.0} | dict(scores)).items()}
