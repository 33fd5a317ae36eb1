"""The planner has a service searched for how it is served best, and applies what was found better."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from scanflow.agent.agent_records import Event, Intent, Sample
from scanflow.agent.decide import DecisionContext, decide
from scanflow.app.scaling import Scaling
from scanflow.app.triggers import Cron, EventTrigger, Interval
from scanflow.errors import InvalidError
from scanflow.placement.queueing import Load
from scanflow.tuning.candidates import Candidate
from scanflow_agents.templates.retuning import LoadWatch
from tests.permissions import assert_permitted
from tests.unit.agents.templates.fakes import LoopHarness, list_events

BEST = Candidate(instances=2, cores=1.0, affinity="cpu")
FOUND: dict[str, Any] = {
    "winner": asdict(BEST),
    "default": asdict(Candidate(instances=1, cores=2.0)),
    "cores": 2,
    "comparison": {"ratio": 1.4, "low": 1.2, "high": 1.6, "pairs": 6},
    "trials": 5,
    "history": {"source": "mnist_cnn 1", "valid": True, "trials": 13, "saved_trials": 8},
    "goal": "throughput",
}


class Planner:
    """The planner, loaded once, as it runs."""

    def __init__(self, harness: LoopHarness, retune: str = "on_promotion", **parameters: Any) -> None:
        harness.parameters["planner"] = {"retune": retune, "retune_inputs": [[1.0]], **parameters}
        self.harness, self.declared, self.fired = harness, harness.load("planner"), 0
        self.value: Any = None

    def look(self, sensor: str, event: Event | None = None) -> list[Intent]:
        plane = self.harness.control_plane
        plane.now, self.fired = plane.now + 60, self.fired + 1
        self.value = self.harness.look(self.declared, "planner", sensor, event=event)
        cause = f"c:{self.fired}"
        sample = Sample(id="s", agent="planner", sensor=sensor, at=plane.now, value=self.value, cause=cause)
        situation = DecisionContext(app="mnist", team="data", at=plane.now)
        wants = [
            want for strategy in self.declared.select_strategies(sensor) for want in decide(strategy, sample, situation)
        ]
        assert_permitted(self.declared, wants, {})
        return [entry for entry in wants if isinstance(entry, Intent)]

    def end_search(self, **changes: Any) -> list[Intent]:
        """Let a search end, and return what is wanted."""
        run = self.harness.control_plane.ran("calm-otter-1", "tune-serve", {**FOUND, **changes})
        return self.look("tuning_ended", Event(at=1.0, type="run.succeeded", app="mnist", subject=f"run/{run.name}"))


def load(rate: float) -> Load:
    return Load(rate=rate, ready=1, done=rate, mean_s=0.05, p95_s=0.1)


@pytest.mark.parametrize(
    ("retune", "trigger"), [("on_promotion", EventTrigger), ("nightly", Cron), ("on_load_change", Interval)]
)
def test_a_search_is_triggered_as_the_parameter_says(harness: LoopHarness, retune: str, trigger: type) -> None:
    planner = Planner(harness, retune)
    actual = planner.declared.sensor("tuning_due").sensor.trigger
    assert isinstance(actual, trigger)
    if isinstance(actual, EventTrigger):
        assert (actual.type, dict(actual.match)) == ("model.promoted", {"subject": "model/mnist_cnn"})


def test_a_promotion_leads_to_a_search_that_is_only_suggested(harness: LoopHarness) -> None:
    (wanted,) = Planner(harness).look("tuning_due")
    assert (wanted.primitive, wanted.target, wanted.autonomy) == ("tune_workflow", "service/serve", "suggest")
    assert wanted.arguments["inputs"] == [[1.0]]
    (wanted,) = Planner(harness, retune_autonomy="auto", retune_goal="latency", retune_trials=3).look("tuning_due")
    assert (wanted.autonomy, wanted.arguments["goal"], wanted.arguments["trials"]) == ("auto", "latency", 3)


def test_no_search_begins_while_one_goes_on_or_its_service_is_scaled_or_not_there(harness: LoopHarness) -> None:
    planner = Planner(harness)
    harness.control_plane.ran("calm-otter-1", "tune-serve", {}, state="running")
    assert planner.look("tuning_due") == []
    assert planner.value["stands"] == "a search is already active: calm-otter-1"
    harness.control_plane.records.clear()
    (wanted,) = planner.look("tuning_due")
    harness.control_plane.record_action(wanted, "running")
    assert planner.look("tuning_due") == []
    harness.control_plane.done.clear()
    harness.control_plane.serves("models:/mnist_cnn/1", scaling=Scaling(metric="rps", target=10, max=3))
    assert planner.look("tuning_due") == []
    harness.control_plane.deployed.clear()
    assert planner.look("tuning_due") == []
    assert planner.value["stands"] == "the service 'serve' is not deployed"


def test_another_load_in_two_of_three_looks_leads_to_one_search(harness: LoopHarness) -> None:
    planner, wanted = Planner(harness, "on_load_change"), list[int]()
    for rate in (10, 12, 30, 11, 25, 30, 30, 30, 28):
        harness.control_plane.serves("models:/mnist_cnn/1", load=load(rate))
        wanted.append(len(planner.look("tuning_due")))
    assert wanted == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_a_service_without_requests_has_no_other_load() -> None:
    watch = LoadWatch(2.0)
    assert [watch.observe(rate) for rate in (None, 0.0, 10.0, 4.0, None, 4.0)] == [False] * 5 + [True]


def test_what_a_search_found_better_is_applied_with_its_evidence_and_a_guard(harness: LoopHarness) -> None:
    planner = Planner(harness)
    harness.control_plane.deployed["serve"] = harness.control_plane.deployed["serve"].model_copy(
        update={"shape": harness.control_plane.deployed["serve"].shape.model_copy(update={"cores": 2.0})}
    )
    (wanted,) = planner.end_search()
    assert (wanted.primitive, wanted.autonomy) == ("apply_workflow_instance", "suggest")
    assert wanted.arguments == {"workflow": "serve", "instances": 2, "cores": 1.0, "affinity": "cpu"}
    assert wanted.guard is not None
    assert wanted.guard.metric == "service.serve.errors"
    assert wanted.evidence == {
        "reason": "2 × 1 core, cpu is 1.40× (1.20 to 1.60) as good as 1 × 2 cores, any for throughput; 5 trials, 8 "
        "saved by the search for mnist_cnn 1"
    }
    (event,) = list_events(harness, "service.tuned")
    assert (event.subject, event.data["run"]) == ("service/serve", "calm-otter-1")


def test_where_nothing_is_better_or_the_service_was_resized_since_it_is_left_alone(harness: LoopHarness) -> None:
    planner = Planner(harness)
    assert planner.end_search(winner=None, history=None) == []
    told_reason = planner.value["evidence"]["reason"]
    assert told_reason == "No configuration is significantly better than 1 × 2 cores, any for throughput; 5 trials"
    harness.control_plane.serves("models:/mnist_cnn/1", instances=4)
    assert planner.end_search() == []
    assert planner.value["stands"] == "the service was resized since"


@pytest.mark.parametrize("parameters", [{"retune_inputs": None}, {"retune_file": "x.npy"}])
def test_a_search_with_nothing_to_send_is_refused_when_the_agent_is_loaded(
    harness: LoopHarness, parameters: dict[str, Any]
) -> None:
    with pytest.raises(InvalidError, match=r"Agent 'planner': a search needs inputs to send"):
        Planner(harness, **parameters)
