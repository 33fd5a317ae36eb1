"""The trials and result of a search. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from scanflow.app.resources import parse_gpu
from scanflow.tuning.candidates import Candidate
from scanflow.tuning.comparison import PairedComparison, compare
from scanflow.tuning.goals import Goal, Measurement
from scanflow.tuning.warm_start import TuningHistory, rank_candidates

_MOST = 1e12
"""Every measured number is below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate and the current service, measured in turn and equally often."""

    candidate: Candidate
    default: tuple[Measurement, ...]
    measured: tuple[Measurement, ...]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Build a trial from its JSON record."""
        measured = {
            name: tuple(Measurement(**measurement) for measurement in record[name]) for name in ("default", "measured")
        }
        return cls(candidate=Candidate(**record["candidate"]), **measured)

    @property
    def failed(self) -> int:
        return sum(measurement.failed for measurement in self.measured)

    @property
    def reason(self) -> str:
        """Why the first request failed; empty: no request failed."""
        return next((measurement.reason for measurement in self.measured if measurement.failed), "")

    def compute_ratios(self, goal: Goal, default: Candidate) -> list[float]:
        pairs = zip(self.default, self.measured, strict=True)
        return [goal.compute_value(self.candidate, own) / goal.compute_value(default, other) for other, own in pairs]

    def compute_score(self, goal: Goal, default: Candidate) -> float:
        """Return the factor by which it is better; below 0: requests failed, or minus the excess over the bound."""
        if self.failed:
            return -math.inf
        excess = goal.compute_excess(self.measured)
        return compare(self.compute_ratios(goal, default)).ratio if excess <= 1 else -excess


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    goal: Goal
    default: Candidate
    trials: tuple[Trial, ...]
    """In the order of measurement."""

    best: Candidate
    fresh: Trial | None = None
    """The best candidate, measured again; None: no candidate seemed better, or no time was left."""

    alternatives: int = 0
    """The number of candidates that an exhaustive search would measure."""

    repeated: int = 0
    """Measurements that other processes disturbed, and that were repeated."""

    disturbed: int = 0
    """Measurements that were disturbed both times."""

    interrupted: bool = False
    complete: bool = True
    """Whether the search finished; else the budget was spent."""

    history: TuningHistory | None = None
    """The history that the search started from; None: no history."""

    is_history_valid: bool = False
    """Whether the earlier best is still better than the earlier default; else the search ran as without a history."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Build a result from the JSON record of a report, which anybody may have written.

        Raises:
            ValueError: it is no such record, or a number in it is none that is measured.
        """
        from pydantic import TypeAdapter

        names = ("default", "trials", "best", "fresh", "repeated", "disturbed", "interrupted")
        fields: dict[str, Any] = {name: record[name] for name in names if name in record}
        fields["goal"] = {"name": record.get("goal"), "p99_s": record.get("p99_s")}
        result = TypeAdapter(cls).validate_python(fields | {"alternatives": int(record.get("candidates") or 1) - 1})
        _check_measured(result)
        return result

    @property
    def saved_trials(self) -> int:
        """The number of trials saved against the earlier search without a history."""
        return (
            0 if self.history is None or not self.history.complete else max(0, self.history.trials - len(self.trials))
        )

    @property
    def next_history(self) -> TuningHistory:
        """The history for a later search to start from."""
        scores = {trial.candidate: trial.compute_score(self.goal, self.default) for trial in self.trials}
        ranking = rank_candidates(self.default, self.winner, scores)
        earlier = self.history if self.is_history_valid and self.history and self.history.complete else None
        trials = len(self.trials) if earlier is None else earlier.trials
        if earlier is not None and self.winner is None and earlier.ranking[:1] == (self.default,):
            # The earlier best is the default now, and still the best: what it is better than is known from then.
            base, ratio = earlier.default, earlier.ratio
            return TuningHistory(ranking=ranking, default=base, ratio=ratio, trials=trials, complete=self.complete)
        comparison = self.comparison
        ratio = 1.0 if self.winner is None or comparison is None else comparison.ratio
        return TuningHistory(ranking=ranking, default=self.default, ratio=ratio, trials=trials, complete=self.complete)

    @property
    def defaults(self) -> list[Measurement]:
        """The measurements of the current service in all trials."""
        return [measurement for trial in self.trials for measurement in trial.default]

    @property
    def comparison(self) -> PairedComparison | None:
        return (
            None
            if self.fresh is None or self.fresh.failed
            else compare(self.fresh.compute_ratios(self.goal, self.default))
        )

    @property
    def winner(self) -> Candidate | None:
        """The candidate that is better than the default beyond noise, and keeps the bound."""
        comparison = self.comparison
        if comparison is None or self.fresh is None or self.goal.compute_excess(self.fresh.measured) > 1:
            return None
        return self.best if comparison.is_better or self.default_misses else None

    @property
    def default_misses(self) -> bool:
        """Whether the default exceeds the bound: then any candidate that keeps it is better."""
        return self.fresh is not None and self.goal.compute_excess(self.fresh.default) > 1

    @property
    def nearest(self) -> tuple[Candidate, float] | None:
        """The candidate nearest to the bound, and its latency as a multiple of the bound; None: one keeps it."""
        excesses = {self.default: self.goal.compute_excess(self.defaults)} if self.defaults else {}
        excesses |= {
            trial.candidate: self.goal.compute_excess(trial.measured) for trial in self.trials if not trial.failed
        }
        if not excesses or min(excesses.values()) <= 1:
            return None
        nearest = min(excesses, key=lambda candidate: excesses[candidate])
        return nearest, excesses[nearest]


def _check_measured(result: TuningResult) -> None:
    """Refuse numbers that no measurement has, of which no ratio can be computed."""
    trials = [*result.trials, *([] if result.fresh is None else [result.fresh])]
    candidates = [result.default, result.best, *(trial.candidate for trial in trials)]
    shapes = [size for candidate in candidates for size in (candidate.instances, candidate.cores)]
    measured = [
        measurement for trial in trials for measurement in (*trial.default, *trial.measured) if not measurement.failed
    ]
    values = [
        value
        for measurement in measured
        for value in (measurement.rate, measurement.p50_s, measurement.p90_s, measurement.p99_s)
    ]
    bound = [] if result.goal.p99_s is None else [result.goal.p99_s]
    if not all(0 < value < _MOST for value in (*shapes, *values, *bound)):
        raise ValueError("A number of instances, cores or seconds, or a rate, is not above 0.")
    for candidate in candidates:
        parse_gpu(candidate.gpu)
    if any(len(trial.default) != len(trial.measured) or not trial.measured for trial in trials):
        raise ValueError("A trial has not as many measurements of the service as of the candidate.")
