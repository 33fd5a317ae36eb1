"""A search with a history needs half the trials, finds nearly as much, and notices when the history does not hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.placement.topology import uniform
from scanflow.tuning.candidates import Candidate, SearchSpace
from scanflow.tuning.goals import Goal
from scanflow.tuning.result import TuningResult
from scanflow.tuning.study import Study
from scanflow.tuning.warm_start import MAX_RANKED, TuningHistory, adapt_candidate, choose_next_after
from tests.unit.tuning.conftest import SimulatedBench
from tests.unit.tuning.test_search import DEFAULT, SPACE, gains

Worth = Callable[[Candidate], float]


def run_study(worth: Worth, seed: int, **changes: Any) -> TuningResult:
    bench = SimulatedBench(worth, noise=0.02, drift=0.001, seed=seed)
    fields: dict[str, Any] = {"space": SPACE, "default": DEFAULT, "goal": Goal(), "most": 50, "seconds": 1e6}
    return Study(bench=bench, clock=bench.clock, **{**fields, **changes}).run()


def later_version(seed: int) -> Worth:
    """Return what each way to serve the next version is worth: alike, but for a tenth here and there."""
    drawn, changes = random.Random(seed), dict[object, float]()

    def worth(candidate: Candidate) -> float:
        factor = 1.0
        for part in (
            candidate.instances,
            candidate.affinity,
            ("threads", candidate.threads is None),
            ("batch", candidate.batch),
        ):
            factor *= changes.setdefault(part, 1 + drawn.uniform(-0.05, 0.05))
        return gains(candidate) * factor

    for choice in SPACE.whole:
        worth(choice)
    return worth


@pytest.mark.parametrize("applied", [False, True], ids=["served as at first", "served as was best"])
def test_a_second_version_needs_half_the_trials_and_is_served_nearly_as_well(applied: bool) -> None:
    near, near_without, spent, saved = 0, 0, [], []
    for seed in range(20):
        first = run_study(gains, seed)
        assert first.winner is not None
        default, worth = first.winner if applied else DEFAULT, later_version(seed)
        second = run_study(worth, seed + 100, default=default, history=first.next_history)
        without = run_study(worth, seed + 100, default=default)
        best = max(map(worth, SPACE.whole))
        near += worth(second.winner or default) >= 0.95 * best
        near_without += worth(without.winner or default) >= 0.95 * best
        assert second.is_history_valid
        spent.append(len(second.trials) / len(first.trials))
        saved.append(second.saved_trials)
    assert near >= near_without - 2
    assert max(spent) <= 0.5
    assert min(saved) >= 5


def test_a_third_version_begins_from_the_first_s_gain_where_the_second_was_served_as_was_best() -> None:
    first = run_study(gains, 1)
    assert first.winner is not None
    second = run_study(gains, 2, default=first.winner, history=first.next_history)
    assert second.winner is None
    third = second.next_history
    assert (third.ranking[0], third.default, third.trials) == (first.winner, DEFAULT, len(first.trials))
    assert third.ratio == first.next_history.ratio > 1


def test_where_another_way_is_best_now_the_search_goes_on_as_without_a_history() -> None:
    def reversed_gains(candidate: Candidate) -> float:
        return 10_000 / gains(candidate) if candidate.instances > 1 else gains(candidate)

    near = 0
    for seed in range(20):
        second = run_study(reversed_gains, seed, history=run_study(gains, seed).next_history)
        assert not second.is_history_valid
        best = max(map(reversed_gains, SPACE.whole))
        near += reversed_gains(second.winner or DEFAULT) >= 0.95 * best
    assert near >= 18


def test_where_nothing_was_better_little_is_measured_again() -> None:
    def flat(_one: Candidate) -> float:
        return 100.0

    history = TuningHistory(ranking=(DEFAULT,), default=DEFAULT, ratio=1.0, trials=12)
    second = run_study(flat, 1, history=history)
    assert 1 <= len(second.trials) <= 6
    assert second.is_history_valid


def test_after_a_search_that_was_cut_short_its_best_is_measured_first_and_then_all_is_searched() -> None:
    first = run_study(gains, 1, most=2)
    history = first.next_history
    assert (history.complete, history.trials) == (False, 2)
    second = run_study(gains, 2, history=history)
    assert second.trials[0].candidate == history.ranking[0]
    assert second.winner is not None
    assert gains(second.winner) >= 0.95 * max(map(gains, SPACE.whole))
    assert (second.saved_trials, second.next_history.complete) == (0, True)
    assert second.next_history.trials == len(second.trials)


def test_for_another_budget_instances_keep_their_size_where_it_divides_the_budget() -> None:
    space = SearchSpace(topology=uniform(sockets=2, cores_per_socket=8), cores=8, batches=(4,))
    best = Candidate(instances=8, cores=2.0, affinity="cpumem", batch=16)
    assert adapt_candidate(best, space) == Candidate(instances=4, cores=2.0, affinity="cpumem")
    assert adapt_candidate(Candidate(instances=1, cores=16.0, threads=8), space) == Candidate(instances=1, cores=8.0)
    assert adapt_candidate(Candidate(instances=8, cores=1.0, batch=4), space) == Candidate(
        instances=8, cores=1.0, batch=4
    )
    history = TuningHistory(ranking=(best, best), default=DEFAULT, ratio=1.5, trials=9).adapt(space)
    assert history.ranking == (Candidate(instances=4, cores=2.0, affinity="cpumem"),)


@given(
    ranking=st.lists(st.sampled_from(SPACE.whole), min_size=1, max_size=MAX_RANKED, unique=True),
    ratio=st.floats(1, 2),
    trials=st.integers(1, 30),
    drawn=st.randoms(use_true_random=False),
)
def test_a_search_with_a_history_ends_and_measures_nothing_twice(
    ranking: list[Candidate], ratio: float, trials: int, drawn: random.Random
) -> None:
    history = TuningHistory(ranking=tuple(ranking), default=DEFAULT, ratio=ratio, trials=trials)
    scores = {DEFAULT: 1.0}
    while (candidate := choose_next_after(SPACE, DEFAULT, scores, history)) is not None:
        assert SPACE.find_placement(candidate) not in {SPACE.find_placement(other) for other in scores}
        scores[candidate] = drawn.uniform(-1, 2)
        assert len(scores) <= len(SPACE.whole)
