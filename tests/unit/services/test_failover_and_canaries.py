"""The pure decisions about a service: back-off, failover, canary analysis, autoscaling."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.backends.canary_analysis import RevisionStats, analyse, subtract_stats
from scanflow.backends.failover import Failover, update_failover
from scanflow.backends.local.services.supervisor.attempts import count_failures_in_a_row, pause_s
from scanflow.backends.local.services.supervisor.autoscaler import Observation, ScalingDecision, decide
from scanflow.backends.service_records import CanaryPolicy
from scanflow.placement.queueing import Load, Recommendation

# Back-off


def test_pauses_grow_from_nothing_to_half_a_minute() -> None:
    assert [pause_s(failures) for failures in range(10)] == [0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert pause_s(10_000) == 30


def test_a_healthy_minute_clears_the_record() -> None:
    assert count_failures_in_a_row([]) == 0
    assert count_failures_in_a_row([1, 2, 3]) == 3
    assert count_failures_in_a_row([1, 2, 61, 3]) == 1
    assert count_failures_in_a_row([1, 2, 60]) == 0


# Failover


def looks(ready: list[int], *, backup: bool = True, n: int = 3) -> list[str]:
    state = Failover()
    states: list[str] = []
    for count in ready:
        state = update_failover(state, ready=count, wanted=1, backup=backup, hand_back_after=n)
        states.append(state.active)
    return states


def test_the_backup_takes_over_at_once_and_hands_back_after_a_row_of_healthy_looks() -> None:
    assert looks([1, 0, 1, 1, 1]) == ["primary", "backup", "backup", "backup", "primary"]
    assert set(looks([0, 1, 1, 0, 1, 1, 0, 1, 1])) == {"backup"}  # what comes and goes takes no callers along
    assert looks([0, 0, 1], backup=False) == ["primary"] * 3
    assert (
        update_failover(Failover(), ready=0, wanted=0, backup=True, hand_back_after=3).active == "primary"
    )  # it sleeps


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 5))
def test_it_hands_back_only_after_a_whole_row_of_healthy_looks(ready: list[int], n: int) -> None:
    active = looks(ready, n=n)
    for place in range(1, len(active)):
        if active[place - 1 : place + 1] == ["backup", "primary"]:
            assert all(ready[place - n + 1 : place + 1])


# Canary analysis


def stats(requests: float, *, errors: float = 0, p95_s: float | None = None) -> RevisionStats:
    buckets = {} if p95_s is None else {0.0: 0.0, p95_s / 0.95: requests}
    return RevisionStats(requests=requests, errors=errors, buckets=buckets)


def verdict(policy: CanaryPolicy, current: RevisionStats, canary: RevisionStats, elapsed_s: float = 1) -> str:
    return analyse(policy, current=current, canary=canary, elapsed_s=elapsed_s).decision


def test_a_canary_is_watched_until_it_answered_enough() -> None:
    policy = CanaryPolicy(after_requests=100)
    assert verdict(policy, stats(1000), stats(99)) == "wait"
    assert verdict(policy, stats(1000), stats(100)) == "promote"
    assert verdict(policy, stats(1000), stats(99), elapsed_s=600) == "revert"


def test_a_canary_that_fails_more_is_taken_back() -> None:
    policy = CanaryPolicy(after_requests=10)
    assert verdict(policy, stats(100), stats(10, errors=1)) == "revert"
    assert verdict(policy, stats(100, errors=10), stats(10, errors=1)) == "promote"


@pytest.mark.parametrize("metric", ["errors", "p95", "mean"])
def test_requests_that_no_model_got_promote_no_canary(metric: Any) -> None:
    policy = CanaryPolicy(metric=metric, ratio=1.2, after_requests=10)
    current, refused = stats(100, p95_s=0.1), RevisionStats(requests=500, invalid=500, buckets={0.1: 0, math.inf: 0})
    assert verdict(policy, current, refused) == "wait"
    assert verdict(policy, current, refused, elapsed_s=600) == "revert"
    failing = RevisionStats(requests=510, invalid=500, errors=5, buckets={0.1: 10, math.inf: 10})
    assert failing.error_share == 0.5
    assert subtract_stats(refused, failing).valid == 10


@pytest.mark.parametrize("metric", ["errors", "p95", "mean"])
def test_a_canary_that_only_fails_is_never_promoted(metric: Any) -> None:
    policy = CanaryPolicy(metric=metric, ratio=1.2, slack=1, after_requests=10)
    failing = stats(20, errors=20, p95_s=0.001)
    assert verdict(policy, stats(100, p95_s=0.1), failing) == "revert"
    assert verdict(policy, stats(100, errors=100, p95_s=0.1), failing) == "wait"
    assert verdict(policy, stats(100, errors=100, p95_s=0.1), failing, elapsed_s=600) == "revert"
    assert verdict(policy, stats(100, p95_s=0.1), stats(20, errors=19, p95_s=0.001)) == "promote"


def test_slack_and_ratio_say_how_much_worse_a_canary_may_be() -> None:
    policy = CanaryPolicy(metric="p95", ratio=1.2, slack=0.01, after_requests=1)
    current = stats(100, p95_s=0.1)
    assert verdict(policy, current, stats(1, p95_s=0.1299)) == "promote"
    assert verdict(policy, current, stats(1, p95_s=0.131)) == "revert"
    reason = analyse(policy, current=current, canary=stats(1, p95_s=0.131), elapsed_s=1).reason
    assert "0.131, limit 1.2 x 0.1 + 0.01 = 0.13" in reason


# Autoscaling


def decide_at_zero(
    scaling: Scaling,
    instances: int,
    sample: float | None,
    *,
    ready: int | None = None,
    past: tuple[int, ...] = (),
    active: float = 0.0,
    load: Load | None = None,
) -> ScalingDecision:
    """Decide at 0 s; ``past``: the recommendations of the stabilization window."""
    seen = Observation(at=0.0, sample=sample, ready=instances if ready is None else ready, active=active, load=load)
    return decide(scaling, instances, seen, [Recommendation(-1.0, count) for count in past])


RPS = Scaling(metric="rps", target=20, min=1, max=3)


def test_the_formula_is_reported_with_its_numbers() -> None:
    decision = decide_at_zero(RPS, 2, 31)
    assert (decision.wanted, decision.formula, decision.words) == (3, "ceil(2 x 31 / 20) = 4, at most max=3", "add 1")


def test_within_the_tolerance_nothing_changes() -> None:
    assert [decide_at_zero(RPS, 2, sample).wanted for sample in (17.9, 18.1, 20, 21.9, 22.1)] == [2, 2, 2, 2, 3]
    assert decide_at_zero(RPS.replace(tolerance=0.2), 2, 23.9).wanted == 2


def test_instances_are_added_at_once_and_taken_away_once_fewer_were_enough_for_the_window() -> None:
    early = decide_at_zero(RPS, 3, 5, past=(1, 3, 1))
    assert (early.wanted, early.words) == (3, "stay: more were needed in the last 300 s")
    assert decide_at_zero(RPS, 3, 5, past=(1, 2, 1)).wanted == 2
    assert decide_at_zero(RPS, 3, 5, past=(1, 1)).wanted == 1
    assert decide_at_zero(RPS, 1, 50, past=(1, 1)).wanted == 3


def test_instances_that_start_are_not_requested_twice() -> None:
    assert decide_at_zero(RPS.replace(max=9), 4, 60, ready=1).wanted == 4
    assert decide_at_zero(RPS.replace(max=9), 4, 100, ready=1).wanted == 5
    decision = decide_at_zero(RPS, 2, None, ready=0)
    assert (decision.wanted, decision.formula) == (2, "2: none is ready")


def test_a_latency_is_predicted_rather_than_taken_as_in_proportion() -> None:
    rule = Scaling(metric="p95", target=0.3, max=8)
    quiet = Load(rate=10, ready=4, done=10, mean_s=0.05, p95_s=0.15)  # half the target, and not half the instances
    assert decide_at_zero(rule, 4, 0.15, load=quiet).wanted == 2
    busy = Load(rate=60, ready=2, done=40, mean_s=5.0, p95_s=9.5)  # 30 times the target, and not 60 instances
    assert decide_at_zero(rule, 2, 9.5, load=busy).wanted == 4
    assert decide_at_zero(rule.replace(up=0.4, down=0.1), 4, 0.15, load=quiet).wanted == 4


def test_a_service_sleeps_when_nobody_called_for_the_cool_down() -> None:
    rule = Scaling(metric="rps", target=20, min=0, max=3, cool_down=60)
    assert decide_at_zero(rule, 1, 0.0, active=-59).wanted == 1
    assert decide_at_zero(rule, 1, 0.0, active=-60).wanted == 0
    assert decide_at_zero(rule, 3, None, active=-60, past=(3,)).words == "scale to zero: no request for 60 s"
    assert decide_at_zero(rule, 2, 0.5, active=0).wanted == 1
    assert decide_at_zero(rule, 0, None).wanted == 0


GPU = Scaling(metric="gpu", target=0.7, min=1, max=4)


def test_busy_gpus_add_instances_in_proportion() -> None:
    decision = decide_at_zero(GPU, 2, 0.93)
    assert (decision.wanted, decision.formula) == (3, "ceil(2 x 0.93 / 0.7) = 3")
    assert decide_at_zero(GPU, 3, 0.1).wanted == 1


def test_a_gpu_that_says_nothing_is_not_taken_for_an_idle_one() -> None:
    decision = decide_at_zero(GPU, 3, None, past=(1,))
    assert (decision.wanted, decision.words) == (3, "stay")
    assert decision.formula == "3: the driver does not say what its GPUs do"
    assert decide_at_zero(RPS, 3, None, past=(1,)).wanted == 1, "no requests are no load"


def test_a_service_sleeps_however_much_memory_it_has_in_use() -> None:
    rule = Scaling(metric="gpu_memory", target=0.5, min=0, max=3, cool_down=60)
    assert decide_at_zero(rule, 2, 0.9, active=-59).wanted == 3
    assert decide_at_zero(rule, 2, 0.9, active=-60).wanted == 0


METRICS: tuple[ScalingMetric, ...] = ("rps", "queue", "cpu", "gpu", "gpu_memory")


@st.composite
def rules(draw: st.DrawFn) -> Scaling:
    metric = draw(st.sampled_from(METRICS))
    target = draw(st.floats(0.01, 0.75 if metric in {"gpu", "gpu_memory"} else 1000))
    least = draw(st.integers(0, 4))
    return Scaling(
        metric=metric,
        target=target,
        up=draw(st.none() | st.just(target * 1.3)),
        down=draw(st.none() | st.just(target * 0.5)),
        min=least,
        max=draw(st.integers(max(1, least), 40)),
    )


SAMPLES = st.none() | st.floats(0, 1e12)


@given(rules(), st.integers(1, 40), SAMPLES)
def test_the_number_stays_within_its_bounds(rule: Scaling, instances: int, sample: float | None) -> None:
    assert max(rule.min, 1) <= decide_at_zero(rule, instances, sample).wanted <= rule.max


@given(rules(), st.integers(1, 40), st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_load_never_leads_to_fewer_instances(rule: Scaling, instances: int, first: float, other: float) -> None:
    less, more = sorted((first, other))
    assert decide_at_zero(rule, instances, less).wanted <= decide_at_zero(rule, instances, more).wanted


@given(rules(), st.integers(1, 40), st.floats(0, 1e5))
def test_under_a_steady_load_the_number_comes_to_rest(rule: Scaling, instances: int, load: float) -> None:
    counts = [min(max(instances, rule.min, 1), rule.max)]
    for _ in range(12):
        counts.append(decide_at_zero(rule, counts[-1], load / counts[-1]).wanted)
    assert counts[-1] == counts[-2]
    changes = [after - before for before, after in pairwise(counts) if after != before]
    assert all(change > 0 for change in changes) or all(change < 0 for change in changes)


@given(rules(), st.integers(1, 40), st.floats(0, 1e5))
def test_the_number_is_that_of_kubernetes_formula(rule: Scaling, instances: int, sample: float) -> None:
    """The oracle is what HorizontalPodAutoscalers are documented to do, in exact numbers."""
    proportional = Fraction(instances) * Fraction(sample) / Fraction(rule.target)
    assume(abs(proportional - round(proportional)) > Fraction(1, 10**6) or sample in {0, rule.target})
    expected = instances
    if sample > rule.up_threshold:
        expected = max(ceil(proportional), instances + 1)
    elif sample < rule.down_threshold:
        expected = min(ceil(proportional), instances)
    assert decide_at_zero(rule, instances, sample).wanted == min(max(expected, rule.min, 1), rule.max)
