"""Warm start of a search from an earlier one's history: its best, its runners-up, and its number of trials.

The earlier best and the earlier default are measured first. If the best is still better than the default by at least
half of what it was, the runners-up and the neighbouring granularities follow, in half as many trials as the earlier
search took at most. If it is not, the service behaves differently now, and the search goes on as one without a history;
what was measured until then counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scanflow.placement.device_cuts import Gpus
from scanflow.tuning.candidates import Candidate, SearchSpace
from scanflow.tuning.search import Scores, choose_next_candidate, select_best

MAX_RANKED = 4
"""Number of candidates in a history: the best, and the runners-up."""

SHARE_OF_TRIALS = 0.5
"""A search with a history makes at most this share of the trials of one without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningHistory:
    """The history of an earlier search."""

    ranking: tuple[Candidate, ...]
    """The candidates, best first, which may include the default; at least one."""

    default: Candidate
    """The service's configuration at that time."""

    ratio: float
    """The factor by which the best was better than the default when it was measured again; 1: no candidate was
    better."""

    trials: int
    """The number of candidates measured by a search without a history."""

    complete: bool = True
    """Whether that search finished. If not, a search from it measures its best first, and then searches the whole
    space, because a candidate that was not measured may be better."""

    source: str = ""
    """The model version of the search: ``cnn 1``."""

    def adapt(self, space: SearchSpace) -> TuningHistory:
        """Return the history for another budget of cores: instances of the same size, or the next that divides it."""
        placed: dict[object, Candidate] = {}
        for candidate in self.ranking:
            adapted = adapt_candidate(candidate, space)
            if (place := space.find_placement(adapted)) is not None:
                placed.setdefault(place, adapted)
        return replace(self, ranking=tuple(placed.values()), default=adapt_candidate(self.default, space))

    @property
    def most_trials(self) -> int:
        """Trials that a search with this history makes at most, while the history holds."""
        return max(1, int(self.trials * SHARE_OF_TRIALS))


def adapt_candidate(candidate: Candidate, space: SearchSpace) -> Candidate:
    """Return a candidate that uses the whole budget; its instances keep their size where that divides the budget. The
    GPUs are those that the space has."""
    batch = candidate.batch if candidate.batch in space.batches else None
    if candidate.instances * candidate.cores == space.cores:
        return replace(candidate, gpu=_adapt_gpu(candidate, space, candidate.instances), batch=batch)
    counts = [count for count in range(1, space.cores + 1) if space.cores % count == 0]
    count = min(counts, key=lambda number: abs(space.cores / number - candidate.cores))
    gpu = _adapt_gpu(candidate, space, count)
    return replace(candidate, instances=count, cores=space.cores / count, gpu=gpu, threads=None, batch=batch)


def _adapt_gpu(candidate: Candidate, space: SearchSpace, instances: int) -> Gpus:
    """Return a candidate's GPUs where so many instances can get these, else what they can get."""
    cuts = space.list_gpus(instances)
    return candidate.gpu if candidate.gpu in cuts or not cuts else cuts[0]


def rank_candidates(default: Candidate, winner: Candidate | None, scores: Scores) -> tuple[Candidate, ...]:
    """Return the best candidates first: the winner, or the default if there is none, then the others by score."""
    first = default if winner is None else winner
    others = [
        candidate
        for candidate in ({default: 1.0} | dict(scores))
        if candidate != first and scores.get(candidate, 1.0) > 0
    ]
    others.sort(key=lambda candidate: scores.get(candidate, 1.0), reverse=True)
    return (first, *others)[:MAX_RANKED]


def is_still_better(space: SearchSpace, history: TuningHistory, scores: Scores) -> bool:
    """Return whether the earlier best is still better than the earlier default, as far as both were measured."""
    scores_by_placement = {space.find_placement(candidate): score for candidate, score in scores.items()}
    best, base = (
        scores_by_placement.get(space.find_placement(candidate)) for candidate in (history.ranking[0], history.default)
    )
    if best is None or base is None or history.ratio <= 1:
        return best is None or best > 0
    return best > 0 and (base <= 0 or best / base >= 1 + (history.ratio - 1) / 2)


def choose_next_after(
    space: SearchSpace, default: Candidate, scores: Mapping[Candidate, float], history: TuningHistory
) -> Candidate | None:
    """Choose the next candidate of a search with a history; None: the search is complete.

    Args:
        space: What may be tried.
        default: The service as it is.
        scores: What was measured, the default too: see :data:`~scanflow.tuning.search.Scores`.
        history: Adapted to the space.
    """
    if not history.ranking or not is_still_better(space, history, scores):
        return choose_next_candidate(space, default, scores)
    best, *runners_up = history.ranking
    candidates = [best, *([history.default] if history.ratio > 1 else [])]
    if history.complete and len(scores.keys() - {default}) < history.most_trials:
        candidates += [*runners_up, *space.list_neighbours(select_best(default, scores))]
    measured = {space.find_placement(candidate) for candidate in (default, *scores)}
    candidate = next(
        (
            candidate
            for candidate in candidates
            if (place := space.find_placement(candidate)) is not None and place not in measured
        ),
        None,
    )
    if candidate is None and not history.complete:
        return choose_next_candidate(space, default, scores)
    return candidate
