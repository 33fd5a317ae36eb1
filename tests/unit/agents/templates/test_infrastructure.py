"""The planner's strategies for backups and placement, told what happens one look at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.agent.agent_records import Action, Intent, Sample
from scanflow.agent.decide import DecisionContext, evaluate
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.names import RunName
from scanflow_agents.templates.infrastructure import compute_keep_s
from scanflow_agents.templates.spreading import ServiceSample, build_window, compute_p95_between
from tests.permissions import assert_permitted
from tests.unit.agents.templates.fakes import FakeControlPlane, LoopHarness, application, list_events


class Agent:
    """The planner, loaded once, as it runs: what it remembers stays from look to look."""

    def __init__(self, harness: LoopHarness, sensor: str, **parameters: Any) -> None:
        harness.parameters["planner"] = parameters
        self.harness, self.name, self.declared, self.fired = harness, sensor, harness.load("planner"), 0
        self.value: Any = None

    def look(self) -> list[Intent]:
        self.value, self.fired = self.harness.look(self.declared, "planner", self.name), self.fired + 1
        at = self.harness.control_plane.now
        sample = Sample(id="s", agent="planner", sensor=self.name, at=at, value=self.value, cause=f"c:{self.fired}")
        situation = DecisionContext(app="mnist", team="data", at=at)
        evaluations = [evaluate(strategy, sample, situation) for strategy in self.declared.select_strategies(self.name)]
        assert [evaluation.error for evaluation in evaluations] == [None] * len(evaluations)
        assert_permitted(self.declared, [want for evaluation in evaluations for want in evaluation.actions], {})
        return [want for evaluation in evaluations for want in evaluation.actions if isinstance(want, Intent)]


# -- backups


class Backed(Agent):
    def __init__(self, harness: LoopHarness, **parameters: Any) -> None:
        harness.parameters["spare"] = {}
        super().__init__(harness, "service_health", service="serve", backup_workflow="spare", **parameters)

    def look_after(self, seconds: float, *, ready: int) -> list[str]:
        """Look again after a time, have what is wanted done, and return it."""
        plane = self.harness.control_plane
        plane.now += seconds
        plane.serves("models:/mnist_cnn/1", ready=ready)
        done = []
        for intent in self.look():
            plane.record_action(intent)
            done.append(intent.primitive)
            if intent.primitive == "deploy_workflow":
                plane.deployed["spare"] = plane.deployed["serve"].model_copy(
                    update={"name": "spare", "created": plane.now}
                )
            elif intent.primitive == "delete_workflow":
                del plane.deployed["spare"]
        return done


def test_a_backup_is_deployed_once_when_two_of_three_looks_find_no_ready_instance(harness: LoopHarness) -> None:
    backed = Backed(harness)
    assert [backed.look_after(60, ready=ready) for ready in (1, 0, 1, 1, 0, 1)] == [[]] * 6, "one look never decides"
    assert backed.look_after(60, ready=0) == ["deploy_workflow"]
    assert backed.look_after(60, ready=0) == []


def test_a_backup_that_is_there_while_it_is_looked_for_is_not_deployed_again(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    backed, plane = Backed(harness), harness.control_plane
    plane.serves("models:/mnist_cnn/1", ready=0)
    backed.look()
    (wanted,) = backed.look()
    plane.record_action(wanted, state="running")

    def services() -> list[ServiceRecord]:
        services = list(plane.deployed.values())
        plane.deployed["spare"] = services[0].model_copy(update={"name": "spare"})
        plane.record_action(wanted)
        return services

    monkeypatch.setattr(plane, "services", services)
    assert backed.look() == []


def test_a_backup_waits_until_the_service_was_down_for_so_long(harness: LoopHarness) -> None:
    backed = Backed(harness, backup_after_s=90.0)
    assert [backed.look_after(10, ready=0) for _ in range(9)] == [[]] * 9
    assert backed.value["down_s"] == 80
    assert backed.look_after(5, ready=1) == []
    assert [backed.look_after(30, ready=0) for _ in range(3)] == [[]] * 3, "counted anew each time that it goes down"
    assert backed.look_after(30, ready=0) == ["deploy_workflow"]


def test_a_backup_is_ended_once_the_service_was_ready_for_a_while_and_later_each_time(harness: LoopHarness) -> None:
    backed = Backed(harness, backup_keep_s=600.0)

    def outage() -> int:
        """Return for how many minutes it was ready before the backup was ended."""
        assert [want for _ in range(2) for want in backed.look_after(60, ready=0)] == ["deploy_workflow"]
        for minute in range(200):
            if backed.look_after(60, ready=1):
                return minute
        raise AssertionError("the backup was never ended")

    assert [outage() for _ in range(3)] == [10, 20, 40]
    backed.harness.control_plane.now += 86_400
    backed.look_after(0, ready=1)
    assert outage() == 10


def test_a_backup_that_the_service_names_is_put_to_sleep_as_it_cannot_be_deleted(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [
        workflow.replace(serving=sf.Serving(backup="spare")) if workflow.name == "serve" else workflow
        for workflow in application(harness.folder, {"spare": {}}).workflows
    ]
    monkeypatch.setattr(
        LoopHarness, "app", property(lambda self: application(self.folder, self.parameters).replace(workflows=named))
    )
    backed = Backed(harness, backup_keep_s=60.0)
    done = [want for ready in (0, 0, 1, 1) for want in backed.look_after(60, ready=ready)]
    assert done == ["deploy_workflow", "update_workflow_replica"]
    harness.control_plane.deployed["spare"] = service("spare", state="idle", created=harness.control_plane.now)
    assert [backed.look_after(60, ready=1) for _ in range(5)] == [[]] * 5


def test_a_service_that_comes_and_goes_keeps_its_backup(harness: LoopHarness) -> None:
    backed = Backed(harness, backup_keep_s=600.0)
    done = [want for minute in range(300) for want in backed.look_after(60, ready=minute % 5 > 1)]
    assert done == ["deploy_workflow"]


def test_a_backup_that_another_user_deployed_is_left_alone(harness: LoopHarness) -> None:
    backed = Backed(harness, backup_keep_s=60.0)
    backed.look_after(60, ready=1)
    harness.control_plane.deployed["spare"] = harness.control_plane.deployed["serve"].model_copy(
        update={"name": "spare"}
    )
    assert [backed.look_after(60, ready=1) for _ in range(10)] == [[]] * 10


@given(
    created=st.floats(0, 100),
    deployed=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10), st.sampled_from(["succeeded", "reverted"]))),
    retired=st.lists(st.floats(0, 200_000), max_size=5),
)
def test_a_backup_is_kept_for_longer_the_more_often_it_was_wanted(
    created: float, deployed: list[tuple[float, float, Any]], retired: list[float]
) -> None:
    intent = Intent(
        id="i", app="a", team="t", agent="p", strategy="s", primitive="d", arguments={}, target="service/spare",
        fields=(), key="k", at=0.0,
    )  # fmt: skip
    action = FakeControlPlane().record_action(intent)

    def make_ended(at: float, **more: Any) -> Action:
        return action.model_copy(update={"ended": at, **more})

    backup = service("spare", created=created)
    own = [make_ended(began + took, began=began, state=state) for began, took, state in deployed]
    keep_s = compute_keep_s(backup, own, [make_ended(at) for at in retired], 600.0, 200_000.0)
    mine = any(state == "succeeded" and began <= created <= began + took for began, took, state in deployed)
    assert (keep_s is not None) == mine
    if keep_s is not None:
        assert keep_s == 600.0 * 2 ** sum(at > 113_600.0 for at in retired)


# -- placement


def service(
    name: str, *, requests: int = 0, p95_s: float = 0.03, cpus: Sequence[int] = (0,), **more: Any
) -> ServiceRecord:
    fields: dict[str, Any] = {"shape": Shape(), "state": "ready"} | more
    return ServiceRecord(
        name=name,
        app="mnist",
        team="data",
        url="http://127.0.0.1:1",
        generation=1,
        settled=1,
        instances=(InstanceRecord(instance="1", state="ready").with_details(cpus=list(cpus)),),
        revisions=(RevisionRecord(id="r1", requests=requests, buckets=((p95_s, requests), (30.0, requests))),),
        **fields,
    )


class Machine(Agent):
    """A service and its neighbours on a machine: each minute its latency is what the machine makes of it."""

    def __init__(self, harness: LoopHarness, *, seed: int = 0) -> None:
        super().__init__(harness, "service_placement", spread_affinity="cpu")
        self.noise, self.counts = random.Random(seed), [0.0] * 301
        self.runs = 0

    def minute(
        self, *, slower: float = 1.0, training: bool = False, other: bool = False, load: float = 10.0
    ) -> list[Intent]:
        """Let a minute pass with a batch workflow or another service beside it, and look."""
        plane = self.harness.control_plane
        if training:
            self.runs += 1
            fields = {"app": "mnist", "team": "data", "workflow": "training", "state": "succeeded"}
            plane.records.append(
                RunRecord(name=RunName(f"bold-fox-{self.runs}"), created=plane.now, seconds=60.0, **fields)  # type: ignore[arg-type]
            )
        plane.now += 60.0
        number = round(60 * load * self.noise.uniform(0.98, 1.02))
        for _ in range(number):
            took = 0.03 * slower * self.noise.lognormvariate(0, 0.25)
            self.counts[min(300, int(took * 1000))] += 1
        total, buckets = 0.0, []
        for place, count in enumerate(self.counts):
            total += count
            buckets.append(((place + 1) / 1000, int(total)))
        shape = plane.deployed["serve"].shape if "serve" in plane.deployed else Shape()
        record = service("serve", shape=shape)
        revision = RevisionRecord(id="r1", requests=int(total), buckets=tuple(buckets))
        plane.deployed["serve"] = record.model_copy(update={"revisions": (revision,)})
        if other or "other" in plane.deployed:
            before = plane.deployed.get("other", service("other"))
            plane.deployed["other"] = service("other", requests=before.revisions[0].requests + (600 if other else 0))
        return self.look()


def test_a_batch_workflow_that_slows_the_service_down_is_kept_off_its_cores_and_stays_off(harness: LoopHarness) -> None:
    machine = Machine(harness)
    wants = [
        want for minute in range(24) for want in machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0)
    ]
    [intent] = wants[:1]
    assert (intent.primitive, intent.target) == ("update_workflow_affinity", "workflow/training")
    assert intent.arguments["avoid_services"] == ["serve"]
    assert intent.guard is not None
    assert intent.guard.metric == "placement.serve.no_better"
    assert intent.sample is not None
    assert isinstance(intent.sample.value, dict)
    evidence: Any = intent.sample.value["evidence"]
    assert evidence["neighbour"] == "workflow/training"
    assert evidence["ratio"] == pytest.approx(2, rel=0.2)
    assert evidence["n"] >= 8
    assert evidence["p"] < 0.01
    assert "times as slow" in evidence["reason"]
    [event] = list_events(harness, "placement.interference")[:1]
    assert event.data["reason"] == evidence["reason"]
    assert [entry.data["value"] for entry in list_events(harness, "metric")[:1]] == [0.0]


def move_service(machine: Machine) -> Action:
    for minute in range(40):
        for want in machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0):
            return machine.harness.control_plane.record_action(want)
    raise AssertionError("nothing was moved")


def test_a_move_that_helped_is_reported_and_left_in_place(harness: LoopHarness) -> None:
    machine = Machine(harness)
    action = move_service(machine)
    assert [want for minute in range(60) for want in machine.minute(training=minute % 2 > 0)] == []
    [event] = list_events(harness, "placement.verified")
    assert (event.data["better"], event.data["action"]) == (True, action.id)
    assert [entry.data["value"] for entry in list_events(harness, "metric")] == [0.0]


def test_a_move_that_did_not_help_is_taken_back_and_not_tried_again_soon(harness: LoopHarness) -> None:
    machine = Machine(harness)
    action = move_service(machine)
    for minute in range(60):
        machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0)
    [event] = list_events(harness, "placement.verified")
    assert event.data["better"] is False
    assert [entry.data["value"] for entry in list_events(harness, "metric")] == [0.0, 1.0]
    harness.control_plane.record_action(action.intent, "reverted", reverted_by="the guard")
    wants = [
        want for minute in range(60) for want in machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0)
    ]
    assert wants == []
    assert machine.value["evidence"] is None or machine.value["stands"] == "the last move was reverted"


def test_another_service_on_its_cores_makes_it_move_to_cores_of_its_own(harness: LoopHarness) -> None:
    machine = Machine(harness)
    wants = [
        want for minute in range(30) for want in machine.minute(slower=2 if minute % 2 else 1, other=minute % 2 > 0)
    ]
    assert wants[0].target == "service/serve"
    assert wants[0].arguments["affinity"] == "cpu"


@pytest.mark.parametrize("case", ["no effect", "too small", "more load", "ran once", "idle neighbour"])
def test_what_does_not_slow_it_down_is_left_where_it_is(harness: LoopHarness, case: str) -> None:
    machine = Machine(harness, seed=1)
    for minute in range(60):
        on = minute % 2 > 0 and (case != "ran once" or minute < 3)
        slower = {"too small": 1.08, "more load": 2.0, "ran once": 2.0, "idle neighbour": 2.0}.get(case, 1.0)
        given_ = {"slower": slower if on else 1.0, "load": 20.0 if on and case == "more load" else 10.0}
        beside = {} if case == "idle neighbour" else {"training": on}
        assert machine.minute(**given_, **beside) == []  # type: ignore[arg-type]
    assert list_events(harness, "placement.interference") == []


def test_a_window_in_which_the_service_changed_or_a_neighbour_came_or_went_says_nothing() -> None:
    def window(after: ServiceRecord, *, ran: Sequence[tuple[float, float]] = (), **more: Any) -> Any:
        runs = [
            RunRecord(
                name=RunName("a-b-1"), app="a", team="t", workflow="w", state="succeeded", created=at, seconds=took
            )
            for at, took in ran
        ]
        earlier = ServiceSample(0.0, {"s": service("s")})
        return build_window("s", earlier, ServiceSample(60.0, {"s": after}), runs, more.get("avoiding", {}))

    whole = service("s", requests=600)
    assert window(whole).point.load == 10
    assert window(whole).beside == frozenset()
    assert window(whole, ran=[(-10, 100)]).beside == {"workflow/w"}
    assert window(whole, ran=[(-10, 100)], avoiding={"w": -20.0}).avoided == {"workflow/w"}
    assert window(whole, ran=[(-10, 100)], avoiding={"w": 0.0}).beside == {"workflow/w"}, "it ran before it was moved"
    assert window(whole, ran=[(0, 2)]).beside == frozenset()
    assert window(whole, ran=[(0, 30)]) is None
    assert window(whole.model_copy(update={"generation": 2})) is None
    assert window(whole.model_copy(update={"state": "degraded"})) is None
    assert window(service("s", requests=600, cpus=(1,))) is None
    assert window(service("s", requests=10)) is None
    assert window(service("s", requests=0)) is None


def test_the_latency_between_two_looks_is_of_the_requests_between_them() -> None:
    before = RevisionRecord(id="r", requests=100, buckets=((0.01, 100), (1.0, 100)))
    after = RevisionRecord(id="r", requests=200, buckets=((0.01, 100), (1.0, 200)))
    assert compute_p95_between(before, after) == pytest.approx(0.01 + 0.95 * 0.99)
    assert compute_p95_between(before, before) is None
    assert compute_p95_between(RevisionRecord(id="r"), after) is None
