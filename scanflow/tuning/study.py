"""A search for the configuration that best reaches a goal: which measurements are taken, and in which order.

Every candidate is measured against the service as it is, in pairs of the order default, candidate, candidate, default,
so that what drifts steadily cancels. The best of all is then measured anew, as the best of many is partly luck: what
is said of it comes from these fresh pairs alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scanflow.errors import InvalidError, ScanflowError, UnavailableError, UsageError
from scanflow.processes.cpu_use import BUSY_CORES
from scanflow.tuning.candidates import Candidate, SearchSpace, describe
from scanflow.tuning.goals import Goal, Measurement
from scanflow.tuning.result import Trial, TuningResult
from scanflow.tuning.search import choose_next_candidate, select_best
from scanflow.tuning.warm_start import TuningHistory, choose_next_after, is_still_better

SEARCH_PAIRS = 2
FRESH_PAIRS = 6


class Bench(Protocol):
    """Measures candidates."""

    def measure(self, candidate: Candidate) -> Measurement:
        """Deploy a candidate, warm up, and measure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """The candidate being measured, and the progress of the search."""

    candidate: Candidate
    number: int
    most: int
    best: Candidate
    score: float
    """The best score, 1: as good as the service's current configuration."""

    left_s: float
    """Remaining time."""


@dataclass
class Study:
    """A running search."""

    space: SearchSpace
    default: Candidate
    goal: Goal
    bench: Bench
    most: int
    """Maximum number of candidates to measure."""

    seconds: float
    observe: Callable[[SearchStep], None] = lambda _step: None
    keep: Callable[[Trial], None] = lambda _trial: None
    """Called with each finished trial."""

    clock: Callable[[], float] = time.monotonic
    trials: list[Trial] = field(default_factory=list)
    """The trials of an earlier search that is continued."""

    history: TuningHistory | None = None
    """The result of an earlier search to start from, adapted to the space. None: there is none, or it is ignored."""

    complete: bool = False
    """Whether the search finished."""

    repeated: int = 0
    disturbed: int = 0
    _took: list[float] = field(default_factory=list)
    _until: float = 0.0
    _first: tuple[Measurement, ...] = ()
    """Measurements of the service's current configuration, before all others."""

    def run(self) -> TuningResult:
        """Search until no candidate is left, or the budget is spent. An interrupt ends it without loss.

        Raises:
            InvalidError: requests to the service as it is fail under this load.
            UsageError: there is not time enough for one pair.
        """
        self._until = self.clock() + self.seconds
        fresh, best, interrupted = None, self.default, False
        try:
            self._measure_baseline()
            self._search()
            best = self._best
            if best != self.default and self._has_time(FRESH_PAIRS):
                fresh = self._measure_pairs(best, FRESH_PAIRS)
        except KeyboardInterrupt:
            interrupted = True
        return TuningResult(
            goal=self.goal,
            default=self.default,
            trials=tuple(self.trials),
            best=best if fresh is not None or not self.trials else self._best,
            fresh=fresh,
            alternatives=len(self.space.list_alternatives(self.default)),
            repeated=self.repeated,
            disturbed=self.disturbed,
            interrupted=interrupted,
            complete=self.complete,
            history=self.history,
            is_history_valid=self.history is not None and is_still_better(self.space, self.history, self.scores),
        )

    @property
    def scores(self) -> Mapping[Candidate, float]:
        excess = self.goal.compute_excess(
            [*self._first, *(measurement for trial in self.trials for measurement in trial.default)]
        )
        scores = {self.default: 1.0 if excess <= 1 else -excess}
        return scores | {trial.candidate: trial.compute_score(self.goal, self.default) for trial in self.trials}

    @property
    def _best(self) -> Candidate:
        return select_best(self.default, self.scores)

    def _measure_baseline(self) -> None:
        """Measure the default once; this also shows how long a measurement takes."""
        baseline = self._measure(self.default)
        self._first = (baseline,)
        if baseline.failed:
            raise InvalidError(
                f"{baseline.failed} of {baseline.requests} requests to the service as it is "
                f"({describe(self.default)}) fail under this load: {baseline.reason}. Candidates cannot be compared "
                "with that. Send input that it accepts (scanflow predict), or use fewer connections: -c 4"
            )
        if not self._has_time(SEARCH_PAIRS + FRESH_PAIRS):
            needed = (SEARCH_PAIRS + FRESH_PAIRS) * 2 * statistics.fmean(self._took)
            raise UsageError(
                f"{self.seconds:.0f} s are too short: a measurement takes {statistics.fmean(self._took):.0f} s, and "
                f"one candidate and its confirmation {needed:.0f} s. Allow more: --minutes {math.ceil(needed / 60) + 1}"
            )

    def _search(self) -> None:
        while len(self.trials) < self.most and self._has_time(SEARCH_PAIRS + FRESH_PAIRS):
            candidate = self._choose_next()
            if candidate is None:
                self.complete = True
                return
            trial = self._measure_pairs(candidate, SEARCH_PAIRS)
            self.trials.append(trial)
            self.keep(trial)

    def _choose_next(self) -> Candidate | None:
        if self.history is None:
            return choose_next_candidate(self.space, self.default, self.scores)
        return choose_next_after(self.space, self.default, self.scores, self.history)

    def _measure_pairs(self, candidate: Candidate, pairs: int) -> Trial:
        measurements: dict[Candidate, list[Measurement]] = {self.default: [], candidate: []}
        order = (self.default, candidate, candidate, self.default)
        for place in range(2 * pairs):
            self._report_step(candidate)
            which = order[place % 4]
            measurements[which].append(self._measure(which) if which == self.default else self._try_to_measure(which))
            if measurements[which][-1].failed and which == candidate:  # it is out already
                count = len(measurements[candidate])
                measurements[self.default] = (measurements[self.default] * count)[:count]
                break
        return Trial(
            candidate=candidate, default=tuple(measurements[self.default]), measured=tuple(measurements[candidate])
        )

    def _try_to_measure(self, candidate: Candidate) -> Measurement:
        try:
            return self._measure(candidate)
        except ScanflowError as error:  # it cannot be served like this
            nan = math.nan
            return Measurement(rate=nan, p50_s=nan, p90_s=nan, p99_s=nan, requests=0, failed=1, reason=str(error))

    def _measure(self, candidate: Candidate) -> Measurement:
        began = self.clock()
        measurement = self.bench.measure(candidate)
        if measurement.others > BUSY_CORES:  # it is repeated once
            self.repeated += 1
            measurement = self.bench.measure(candidate)
            self.disturbed += measurement.others > BUSY_CORES
        if not measurement.requests - measurement.failed and not measurement.failed:
            raise UnavailableError(
                f"{describe(candidate)} answered no request while it was measured. Measure for longer."
            )
        self._took.append(self.clock() - began)
        return measurement

    def _has_time(self, pairs: int) -> bool:
        return self.clock() + 2 * pairs * statistics.fmean(self._took) <= self._until

    def _report_step(self, candidate: Candidate) -> None:
        best = self._best
        left_s = max(0.0, self._until - self.clock())
        number = len(self.trials) + 1
        self.observe(
            SearchStep(
                candidate=candidate,
                number=number,
                most=self.most,
                best=best,
                score=self.scores.get(best, 1.0),
                left_s=left_s,
            )
        )
