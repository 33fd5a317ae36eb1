"""The planner's strategy that tunes a scaling's threshold to the latency of requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.agent.agent_records import Intent, Sample
from scanflow.agent.decide import DecisionContext, StrategyAction, evaluate
from scanflow.app.scaling import Scaling
from scanflow.placement.queueing import Load, Recommendation
from scanflow_agents.templates.threshold_tuning import compute_threshold
from tests.permissions import assert_permitted
from tests.unit.agents.templates.fakes import LoopHarness

RPS = Scaling(metric="rps", target=12, min=1, max=8)
SLOW = Load(rate=10, ready=1, done=10, mean_s=0.1, p95_s=0.3)
QUICK = Load(rate=10, ready=4, done=10, mean_s=0.05, p95_s=0.15)
OVERLOAD = Load(rate=200, ready=8, done=160, mean_s=20, p95_s=38)


def looks(harness: LoopHarness, times: int, **served: Any) -> list[dict[str, Any]]:
    """Return the arguments of what is wanted at so many looks, a minute apart."""
    harness.parameters["planner"] = {"target_p95_s": 0.3}
    harness.control_plane.serves("models:/mnist_cnn/1", **served)
    declared = harness.load("planner")
    (strategy,) = declared.select_strategies("service_latency")
    wanted: list[StrategyAction] = []
    for _ in range(times):
        harness.control_plane.now += 60
        at, value = harness.control_plane.now, harness.look(declared, "planner", "service_latency")
        sample = Sample(id="s", agent="planner", sensor="service_latency", at=at, value=value, cause=f"c:{at}")
        evaluation = evaluate(strategy, sample, DecisionContext(app="mnist", team="data", at=at))
        assert evaluation.error is None
        wanted += evaluation.actions
    assert_permitted(declared, wanted, {})
    return [dict(intent.arguments) for intent in wanted if isinstance(intent, Intent)]


def test_a_slow_service_is_set_to_take_less_on_each_instance(harness: LoopHarness) -> None:
    assert looks(harness, 1, scaling=RPS, load=SLOW) == [{"workflow": "serve", "target": 6.667}]


def test_a_service_that_nothing_scales_is_scaled_once_it_is_slow(harness: LoopHarness) -> None:
    (wanted,) = looks(harness, 1, load=SLOW)
    assert wanted == {"workflow": "serve", "metric": "rps", "target": 6.667, "max": 4}
    assert looks(harness, 5, load=QUICK, instances=4, ready=4) == []


def test_a_threshold_is_raised_once_fewer_were_enough_for_the_window_and_lowered_at_once(harness: LoopHarness) -> None:
    tight = RPS.replace(target=3.0)
    assert looks(harness, 1, scaling=tight, load=QUICK, instances=4) == [{"workflow": "serve", "target": 6.667}]
    slow, quick = Recommendation(0.0, 4), Recommendation(0.0, 2)
    assert compute_target(tight, QUICK, slow, quick) is None
    assert compute_target(tight, QUICK, quick) == 6.667
    assert compute_target(RPS, SLOW, Recommendation(0.0, 1)) == 6.667


@pytest.mark.parametrize(("metric", "used"), [("rps", {}), ("cpu", {"cpu_share": 0.5}), ("gpu", {"gpu_share": 0.5})])
def test_only_the_target_of_what_the_user_scales_by_is_changed(
    harness: LoopHarness, metric: Any, used: dict[str, float]
) -> None:
    scaling = Scaling(metric=metric, target=0.8 if used else 12, min=1, max=8)
    (wanted,) = looks(harness, 1, scaling=scaling, load=SLOW, **used)
    assert set(wanted) == {"workflow", "target"}
    assert wanted["target"] == pytest.approx(0.333 if used else 6.667)


@pytest.mark.parametrize("metric", ["p95", "queue", "gpu_memory"])
def test_what_is_no_load_is_left_to_the_user(harness: LoopHarness, metric: Any) -> None:
    assert looks(harness, 2, scaling=Scaling(metric=metric, target=0.5, max=8), load=SLOW) == []


def test_at_the_maximum_nothing_is_lowered(harness: LoopHarness) -> None:
    assert looks(harness, 10, scaling=RPS, load=OVERLOAD, instances=8, ready=8) == []


def test_a_quiet_night_leaves_the_threshold_to_the_mornings_peak(harness: LoopHarness) -> None:
    night = Load(rate=0.5, ready=1, done=0.5, mean_s=0.05, p95_s=0.15)
    assert looks(harness, 100, scaling=RPS, load=night) == []


def test_what_the_user_set_as_up_and_down_bounds_the_threshold() -> None:
    assert compute_target(RPS.replace(up=13, down=8), SLOW) == 8
    assert compute_target(RPS.replace(target=3.0, up=4, down=2), QUICK) == 4


def test_a_threshold_of_gpus_stays_one_that_can_be_reached() -> None:
    scaling = Scaling(metric="gpu", target=0.2, max=8, tolerance=0.2)
    threshold, _ = compute_threshold(scaling, QUICK, 0.9, (), now=1.0, target_p95_s=5.0, lowest=1.0)
    assert threshold == 0.75
    assert scaling.replace(target=threshold).up_threshold == pytest.approx(0.9)


def compute_target(scaling: Scaling, load: Load, *past: Recommendation) -> float | None:
    each = load.rate / load.ready
    return compute_threshold(scaling, load, each, past, now=1.0, target_p95_s=0.3, lowest=1.0)[0]


LATENCIES = st.floats(1e-4, 100)
LOADS = st.builds(
    lambda rate, done, ready, mean_s, tail: Load(rate=rate, ready=ready, done=done, mean_s=mean_s, p95_s=mean_s * tail),
    rate=st.floats(0.01, 1e5),
    done=st.floats(0.01, 1e5),
    ready=st.integers(1, 64),
    mean_s=LATENCIES,
    tail=st.floats(0.5, 10),
)


@given(load=LOADS, target=st.floats(0.1, 1000), most=st.integers(1, 64), past=st.lists(st.integers(1, 64), max_size=5))
def test_a_threshold_is_lowered_only_for_more_instances_and_raised_only_for_fewer(
    load: Load, target: float, most: int, past: list[int]
) -> None:
    scaling = Scaling(metric="rps", target=target, max=most)
    result = compute_target(scaling, load, *(Recommendation(0.0, min(count, most)) for count in past))
    if result is not None:
        wanted = min(max(-(-load.rate // target), 1), most)
        after = min(max(-(-load.rate // result), 1), most)
        assert (result < target) == (after > wanted)
        assert result >= 1
