"""A search for the way to serve that reaches a goal best: what is measured, in which order, and what it tells.

Every candidate is measured against the service as it is, in pairs of the order default, candidate, candidate, default,
so that what drifts steadily cancels. The best of all is then measured anew, as the best of many is partly luck: what
is said of it comes from these fresh pairs alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from scanflow.errors import InvalidError, ScanflowError, UnavailableError, UsageError
from scanflow.tuning.candidates import Candidate, SearchSpace, describe
from scanflow.tuning.comparison import PairedComparison, compare
from scanflow.tuning.search import best_of, next_candidate

GoalName = Literal["throughput", "latency", "cost"]
GOALS: tuple[GoalName, ...] = ("throughput", "latency", "cost")

SEARCH_PAIRS = 2
FRESH_PAIRS = 6

BUSY_CORES = 0.1
"""So much of a core that others use while something is measured spoils it; it is measured once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a service did under load; latencies in seconds."""

    rate: float
    """Requests a second that succeeded."""

    p50_s: float
    p90_s: float
    p99_s: float
    requests: int
    failed: int = 0
    reason: str = ""
    """Why most of those failed."""

    others: float = 0.0
    """Cores that neither the service nor its load used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``throughput``: requests a second. ``latency``: the 90th percentile that a single caller sees, as in MLPerf's
    SingleStream. ``cost``: requests a second of each core."""

    name: GoalName = "throughput"
    p99_s: float | None = None
    """The bound that has to be kept."""

    def value(self, one: Candidate, found: Measurement) -> float:
        """Return what is to be as large as possible; above 0."""
        if self.name == "latency":
            return 1 / found.p90_s
        return found.rate / (one.instances * one.cores) if self.name == "cost" else found.rate

    def excess(self, found: Sequence[Measurement]) -> float:
        """Return how many times the bound the latency is; at most 1: it is kept."""
        return 1.0 if self.p99_s is None else statistics.median(one.p99_s for one in found) / self.p99_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate beside the service as it is: measured in turn, as often."""

    candidate: Candidate
    default: tuple[Measurement, ...]
    measured: tuple[Measurement, ...]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Return a trial that was kept as JSON."""
        measured = {name: tuple(Measurement(**one) for one in found[name]) for name in ("default", "measured")}
        return cls(candidate=Candidate(**found["candidate"]), **measured)

    @property
    def failed(self) -> int:
        return sum(one.failed for one in self.measured)

    def ratios(self, goal: Goal, default: Candidate) -> list[float]:
        pairs = zip(self.default, self.measured, strict=True)
        return [goal.value(self.candidate, own) / goal.value(default, other) for other, own in pairs]

    def score(self, goal: Goal, default: Candidate) -> float:
        """Return by which factor it is better; below 0 where requests failed or the bound is not kept: by how much."""
        if self.failed:
            return -math.inf
        excess = goal.excess(self.measured)
        return compare(self.ratios(goal, default)).ratio if excess <= 1 else -excess


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    goal: Goal
    default: Candidate
    trials: tuple[Trial, ...]
    """In the order in which they were measured."""

    best: Candidate
    fresh: Trial | None = None
    """The best, measured anew; None: nothing was better at first sight, or there was no time left."""

    exhaustive: int = 0
    """How many candidates there are."""

    repeated: int = 0
    """Measurements that others disturbed, and that were made once more."""

    disturbed: int = 0
    """Measurements that were disturbed both times."""

    interrupted: bool = False

    @property
    def comparison(self) -> PairedComparison | None:
        return None if self.fresh is None or self.fresh.failed else compare(self.fresh.ratios(self.goal, self.default))

    @property
    def winner(self) -> Candidate | None:
        """What is better than the service as it is, beyond noise, and keeps the bound."""
        found = self.comparison
        if found is None or self.fresh is None or self.fresh.failed or self.goal.excess(self.fresh.measured) > 1:
            return None
        return self.best if found.is_better or self.default_misses else None

    @property
    def default_misses(self) -> bool:
        """Whether the service as it is does not keep the bound: then whatever keeps it is better."""
        return self.fresh is not None and self.goal.excess(self.fresh.default) > 1

    @property
    def nearest(self) -> tuple[Candidate, float] | None:
        """Return what comes nearest to the bound, and how many times that its latency is; None: something keeps it."""
        defaults = [one for trial in self.trials for one in trial.default]
        found = {self.default: self.goal.excess(defaults)} if defaults else {}
        found |= {one.candidate: self.goal.excess(one.measured) for one in self.trials if not one.failed}
        if not found or min(found.values()) <= 1:
            return None
        nearest = min(found, key=lambda one: found[one])
        return nearest, found[nearest]


class Bench(Protocol):
    """Where candidates are measured."""

    def measure(self, one: Candidate) -> Measurement:
        """Serve like this, warm up, and measure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """What is being measured, and how far the search is."""

    candidate: Candidate
    number: int
    most: int
    best: Candidate
    score: float
    """Of the best, 1: as good as the service as it is."""

    left_s: float
    """Until the time is over."""


@dataclass
class Study:
    """A search at work."""

    space: SearchSpace
    default: Candidate
    goal: Goal
    bench: Bench
    most: int
    """Candidates to measure."""

    seconds: float
    observe: Callable[[SearchStep], None] = lambda _step: None
    keep: Callable[[Trial], None] = lambda _trial: None
    """Given each trial when it is over."""

    clock: Callable[[], float] = time.monotonic
    trials: list[Trial] = field(default_factory=list)
    """Those of an earlier search that is gone on with."""

    repeated: int = 0
    disturbed: int = 0
    _took: list[float] = field(default_factory=list)
    _until: float = 0.0
    _first: tuple[Measurement, ...] = ()
    """Of the service as it is, before all others."""

    def run(self) -> TuningResult:
        """Search until nothing is left to try, or the budget is spent. An interrupt ends it, and nothing is lost.

        Raises:
            InvalidError: requests to the service as it is fail under this load.
            UsageError: there is not time enough for one pair.
        """
        self._until = self.clock() + self.seconds
        fresh, best, interrupted = None, self.default, False
        try:
            self._begin()
            self._search()
            best = self._best
            if best != self.default and self._has_time(FRESH_PAIRS):
                fresh = self._pairs_with(best, FRESH_PAIRS)
        except KeyboardInterrupt:
            interrupted = True
        return TuningResult(
            goal=self.goal,
            default=self.default,
            trials=tuple(self.trials),
            best=best if fresh is not None or not self.trials else self._best,
            fresh=fresh,
            exhaustive=len(self.space.whole),
            repeated=self.repeated,
            disturbed=self.disturbed,
            interrupted=interrupted,
        )

    @property
    def scores(self) -> Mapping[Candidate, float]:
        excess = self.goal.excess([*self._first, *(one for trial in self.trials for one in trial.default)])
        found = {self.default: 1.0 if excess <= 1 else -excess}
        return found | {one.candidate: one.score(self.goal, self.default) for one in self.trials}

    @property
    def _best(self) -> Candidate:
        return best_of(self.default, self.scores)

    def _begin(self) -> None:
        """Measure the service as it is once, which tells how long a measurement takes."""
        found = self._measured(self.default)
        self._first = (found,)
        if found.failed:
            raise InvalidError(
                f"{found.failed} of {found.requests} requests to the service as it is ({describe(self.default)}) fail "
                f"under this load: {found.reason}. Nothing can be compared with that. Use fewer connections: -c 4"
            )
        if not self._has_time(SEARCH_PAIRS + FRESH_PAIRS):
            needed = (SEARCH_PAIRS + FRESH_PAIRS) * 2 * statistics.fmean(self._took)
            raise UsageError(
                f"{self.seconds:.0f} s are too few: a measurement takes {statistics.fmean(self._took):.0f} s, and one "
                f"candidate and its confirmation {needed:.0f} s. Give more: --minutes {math.ceil(needed / 60) + 1}"
            )

    def _search(self) -> None:
        while len(self.trials) < self.most and self._has_time(SEARCH_PAIRS + FRESH_PAIRS):
            one = next_candidate(self.space, self.default, self.scores)
            if one is None:
                return
            trial = self._pairs_with(one, SEARCH_PAIRS)
            self.trials.append(trial)
            self.keep(trial)

    def _pairs_with(self, one: Candidate, pairs: int) -> Trial:
        found: dict[Candidate, list[Measurement]] = {self.default: [], one: []}
        order = (self.default, one, one, self.default)
        for place in range(2 * pairs):
            self._tell(one)
            which = order[place % 4]
            found[which].append(self._measured(which) if which == self.default else self._tried(which))
            if found[which][-1].failed and which == one:  # it is out already
                count = len(found[one])
                found[self.default] = (found[self.default] * count)[:count]
                break
        return Trial(candidate=one, default=tuple(found[self.default]), measured=tuple(found[one]))

    def _tried(self, one: Candidate) -> Measurement:
        try:
            return self._measured(one)
        except ScanflowError as error:  # it cannot be served like this
            nothing = dict.fromkeys(("rate", "p50_s", "p90_s", "p99_s"), math.nan)
            return Measurement(**nothing, requests=0, failed=1, reason=str(error))

    def _measured(self, one: Candidate) -> Measurement:
        began = self.clock()
        found = self.bench.measure(one)
        if found.others > BUSY_CORES:
            self.repeated += 1
            found = self.bench.measure(one)
            self.disturbed += found.others > BUSY_CORES
        if not found.requests - found.failed and not found.failed:
            raise UnavailableError(f"{describe(one)} answered nothing while it was measured. Measure for longer.")
        self._took.append(self.clock() - began)
        return found

    def _has_time(self, pairs: int) -> bool:
        return self.clock() + 2 * pairs * statistics.fmean(self._took) <= self._until

    def _tell(self, one: Candidate) -> None:
        best = self._best
        left_s = max(0.0, self._until - self.clock())
        number = len(self.trials) + 1
        self.observe(
            SearchStep(
                candidate=one, number=number, most=self.most, best=best, score=self.scores.get(best, 1.0), left_s=left_s
            )
        )
