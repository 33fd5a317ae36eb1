"""A search finds what is there, says so when nothing is, and measures nothing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.placement.topology import uniform
from scanflow.tuning.candidates import Candidate, SearchSpace
from scanflow.tuning.comparison import compare
from scanflow.tuning.goals import Goal, Measurement
from scanflow.tuning.result import Trial, TuningResult
from scanflow.tuning.search import choose_next_candidate
from scanflow.tuning.study import FRESH_PAIRS, Study
from tests.unit.tuning.conftest import SimulatedBench

SPACE = SearchSpace(topology=uniform(sockets=2, cores_per_socket=8), cores=16, batches=(4, 16))
DEFAULT = Candidate(instances=1, cores=16.0)


def gains(candidate: Candidate) -> float:
    """Like the thesis' Server scenario: finer cuts gain (Fig. 3c), affinity adds to it, and batches cost a little."""
    granularity = {1: 1.0, 2: 1.4, 4: 1.45, 8: 1.56, 16: 1.5}[candidate.instances]
    affinity = {"any": 1.0, "cpu": 1.02, "cpumem": 1.08, "cpumempin": 1.05}[candidate.affinity]
    threads = 1.0 if candidate.threads is None else 0.9
    return 100 * granularity * affinity * threads * (1.0 if candidate.batch is None else 0.97)


def run_study(bench: SimulatedBench, **changes: Any) -> TuningResult:
    fields: dict[str, Any] = {"space": SPACE, "default": DEFAULT, "goal": Goal(), "most": 50, "seconds": 1e6}
    return Study(bench=bench, clock=bench.clock, **{**fields, **changes}).run()


def test_the_best_is_found_with_a_part_of_an_exhaustive_search_s_trials() -> None:
    whole = SPACE.whole
    best = max(whole, key=gains)
    near, spent = 0, []
    for seed in range(20):
        study = run_study(SimulatedBench(gains, noise=0.02, drift=0.001, seed=seed))
        assert study.winner is not None
        near += gains(study.winner) >= 0.95 * gains(best)
        spent.append(len(study.trials) / len(whole))
    assert near >= 19
    assert max(spent) <= 0.4


def test_where_nothing_helps_it_is_said_in_nine_of_ten_searches() -> None:
    better = sum(
        run_study(SimulatedBench(lambda _one: 100.0, noise=0.05, drift=0.002, seed=seed)).winner is not None
        for seed in range(100)
    )
    assert better <= 10


def test_nothing_is_measured_twice_and_a_search_goes_on_where_it_was_cut_short() -> None:
    bench = SimulatedBench(gains)
    study = run_study(bench)
    tried = [trial.candidate for trial in study.trials]
    assert len({SPACE.find_placement(candidate) for candidate in tried}) == len(tried)
    half = len(tried) // 2
    rest = SimulatedBench(gains)
    again = run_study(rest, trials=list(study.trials[:half]))
    assert [trial.candidate for trial in again.trials] == tried
    assert set(rest.measured) == {DEFAULT, study.best, *tried[half:]}


def test_the_same_scores_lead_to_the_same_next_one() -> None:
    scores = {DEFAULT: 1.0}
    first = choose_next_candidate(SPACE, DEFAULT, scores)
    assert first == choose_next_candidate(SPACE, DEFAULT, dict(scores)) == Candidate(instances=2, cores=8.0)


def test_what_is_said_of_the_best_comes_from_pairs_of_its_own() -> None:
    bench = SimulatedBench(gains)
    study = run_study(bench)
    assert study.fresh is not None
    assert len(study.fresh.measured) == len(study.fresh.default) == FRESH_PAIRS
    assert set(bench.measured[-2 * FRESH_PAIRS :]) == {DEFAULT, study.best}
    assert study.comparison is not None
    assert study.comparison.ratio == pytest.approx(gains(study.best) / gains(DEFAULT))


def test_a_bound_keeps_what_is_quick_and_slow_to_answer_from_winning() -> None:
    def p99_s(candidate: Candidate) -> float:
        return 0.06 if candidate.instances > 4 else 0.03

    study = run_study(SimulatedBench(gains, p99_s=p99_s), goal=Goal(p99_s=0.05))
    assert study.winner is not None
    assert study.winner.instances == 4
    assert study.nearest is None


def test_where_nothing_keeps_the_bound_the_nearest_is_reported() -> None:
    study = run_study(SimulatedBench(gains, p99_s=lambda candidate: 0.1 / candidate.instances), goal=Goal(p99_s=0.001))
    assert study.winner is None
    assert study.nearest is not None
    assert study.nearest[0].instances == 16
    assert study.nearest[1] == pytest.approx(6.25)


def test_what_keeps_the_bound_wins_over_a_quicker_service_that_does_not() -> None:
    bench = SimulatedBench(
        lambda candidate: 100.0 / candidate.instances, p99_s=lambda candidate: 0.1 / candidate.instances
    )
    study = run_study(bench, goal=Goal(p99_s=0.03))
    assert study.winner is not None
    assert study.winner.instances == 4
    assert study.default_misses
    assert study.comparison is not None
    assert study.comparison.high < 1


def test_a_candidate_that_cannot_be_served_is_out_and_the_reason_is_kept() -> None:
    class Small(SimulatedBench):
        def measure(self, candidate: Candidate) -> Measurement:
            if candidate.instances > 4:
                raise UnavailableError("instance 5 ran out of memory")
            return super().measure(candidate)

    study = run_study(Small(gains))
    assert study.winner is not None
    assert study.winner.instances == 4
    assert {trial.measured[0].reason for trial in study.trials if trial.failed} == {"instance 5 ran out of memory"}


def test_cost_is_requests_of_each_core_and_latency_the_90th_percentile() -> None:
    measurement = Measurement(rate=100.0, p50_s=0.01, p90_s=0.02, p99_s=0.03, requests=9)
    candidate = Candidate(instances=4, cores=2.0)
    assert [Goal(name=name).compute_value(candidate, measurement) for name in ("throughput", "cost", "latency")] == [
        100.0,
        12.5,
        50.0,
    ]


def test_a_candidate_that_fails_is_out_and_the_search_goes_on() -> None:
    class Breaking(SimulatedBench):
        def measure(self, candidate: Candidate) -> Measurement:
            measurement = super().measure(candidate)
            return replace(measurement, failed=3, reason="503: full") if candidate.instances == 2 else measurement

    study = run_study(Breaking(gains))
    broken = [trial for trial in study.trials if trial.failed]
    assert {trial.candidate.instances for trial in broken} == {2}
    assert {len(trial.measured) for trial in broken} == {1}
    assert study.winner is not None


def test_a_service_that_fails_under_the_load_cannot_be_compared_with() -> None:
    class Broken(SimulatedBench):
        def measure(self, candidate: Candidate) -> Measurement:
            return replace(super().measure(candidate), failed=3, reason="500: broken")

    with pytest.raises(InvalidError, match=r"3 of 100 requests to the service as it is .* 500: broken"):
        run_study(Broken(gains))


def test_a_budget_too_small_for_one_pair_says_what_is_needed() -> None:
    with pytest.raises(UsageError, match=r"a measurement takes 5 s.*80 s. Allow more: --minutes 3"):
        run_study(SimulatedBench(gains), seconds=30.0)


def test_the_time_keeps_enough_to_measure_the_best_again() -> None:
    bench = SimulatedBench(gains)
    study = run_study(bench, seconds=200.0)
    assert bench.now <= 200.0
    assert study.fresh is not None
    assert 0 < len(study.trials) < 10


def test_an_interrupt_keeps_what_was_measured() -> None:
    class Interrupted(SimulatedBench):
        def measure(self, candidate: Candidate) -> Measurement:
            if len(self.measured) > 10:
                raise KeyboardInterrupt
            return super().measure(candidate)

    study = run_study(Interrupted(gains))
    assert study.interrupted
    assert len(study.trials) == 2
    again = run_study(Interrupted(gains, measured=[DEFAULT] * 11), trials=list(study.trials))
    assert again.trials == study.trials


def test_what_others_disturb_is_measured_once_more() -> None:
    class Busy(SimulatedBench):
        def measure(self, candidate: Candidate) -> Measurement:
            measurement = super().measure(candidate)
            return replace(measurement, others=0.5) if len(self.measured) % 5 == 0 else measurement

    study = run_study(Busy(gains))
    assert study.repeated > 0
    assert study.disturbed == 0


def test_the_interval_is_student_s() -> None:
    comparison = compare([1.1, 1.3, 1.2])
    assert comparison.ratio == pytest.approx((1.1 * 1.3 * 1.2) ** (1 / 3))
    assert comparison.low == pytest.approx(0.973, abs=1e-3)
    assert comparison.high == pytest.approx(1.473, abs=1e-3)
    assert not comparison.is_better
    assert compare([1.2] * 4).is_better
    assert compare([0.5]).low == 0.0


def test_a_candidate_that_fails_scores_below_all() -> None:
    bad = Measurement(rate=0.0, p50_s=1.0, p90_s=1.0, p99_s=1.0, requests=1, failed=1)
    assert Trial(candidate=DEFAULT, default=(bad,), measured=(bad,)).compute_score(Goal(), DEFAULT) < -1e9
