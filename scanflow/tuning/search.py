"""Chooses the next candidate: one dimension after the other, each from the best so far. Pure.

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
"""The factor by which each is better than the current service (1: equal); below 0 if it exceeds the bound, also for the
current service."""


def choose_next_candidate(space: SearchSpace, default: Candidate, scores: Scores) -> Candidate | None:
    """Choose the next candidate to measure, by the scores so far; None: the search is complete."""
    score_by_placement = _index_by_placement(space, default, scores)
    best = default
    for _ in range(PASSES):
        before = best
        for options in space.dimensions:
            candidates = options(best)
            for candidate in candidates:
                if space.find_placement(candidate) not in score_by_placement:
                    return candidate
            best = max([best, *candidates], key=lambda candidate: score_by_placement[space.find_placement(candidate)])
        if best == before:
            return None
    return None


def select_best(default: Candidate, scores: Scores) -> Candidate:
    """Return the best candidate measured, or the default if none is better."""
    return max([default, *scores], key=lambda candidate: scores.get(candidate, 1.0))


def _index_by_placement(space: SearchSpace, default: Candidate, scores: Scores) -> dict[object, float]:
    return {space.find_placement(candidate): score for candidate, score in ({default: 1.0} | dict(scores)).items()}
