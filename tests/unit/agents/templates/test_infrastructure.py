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
from tests.permitting import assert_permitted
from tests.unit.agents.templates.fakes import FakeControlPlane, World, application, told


class Agent:
    """The planner, loaded once, as it runs: what it remembers stays from look to look."""

    def __init__(self, world: World, sensor: str, **parameters: Any) -> None:
        world.parameters["planner"] = parameters
        self.world, self.name, self.declared, self.fired = world, sensor, world.load("planner"), 0
        self.value: Any = None

    def look(self) -> list[Intent]:
        self.value, self.fired = self.world.look(self.declared, "planner", self.name), self.fired + 1
        at = self.world.control_plane.now
        sample = Sample(id="s", agent="planner", sensor=self.name, at=at, value=self.value, cause=f"c:{self.fired}")
        situation = DecisionContext(app="mnist", team="data", at=at)
        found = [evaluate(one, sample, situation) for one in self.declared.select_strategies(self.name)]
        assert [one.error for one in found] == [None] * len(found)
        assert_permitted(self.declared, [want for one in found for want in one.actions], {})
        return [want for one in found for want in one.actions if isinstance(want, Intent)]


# -- backups


class Backed(Agent):
    def __init__(self, world: World, **parameters: Any) -> None:
        world.parameters["spare"] = {}
        super().__init__(world, "service_health", service="serve", backup_workflow="spare", **parameters)

    def after(self, seconds: float, *, ready: int) -> list[str]:
        """Look again after a time, have what is wanted done, and return it."""
        plane = self.world.control_plane
        plane.now += seconds
        plane.serves("models:/mnist_cnn/1", ready=ready)
        done = []
        for intent in self.look():
            plane.acted(intent)
            done.append(intent.primitive)
            if intent.primitive == "deploy_workflow":
                plane.deployed["spare"] = plane.deployed["serve"].model_copy(
                    update={"name": "spare", "created": plane.now}
                )
            elif intent.primitive == "delete_workflow":
                del plane.deployed["spare"]
        return done


def test_a_backup_is_deployed_once_when_two_of_three_looks_find_no_ready_instance(world: World) -> None:
    backed = Backed(world)
    assert [backed.after(60, ready=ready) for ready in (1, 0, 1, 1, 0, 1)] == [[]] * 6, "one look never decides"
    assert backed.after(60, ready=0) == ["deploy_workflow"]
    assert backed.after(60, ready=0) == []


def test_a_backup_that_is_there_while_it_is_looked_for_is_not_deployed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backed, plane = Backed(world), world.control_plane
    plane.serves("models:/mnist_cnn/1", ready=0)
    backed.look()
    (wanted,) = backed.look()
    plane.acted(wanted, state="running")

    def services() -> list[ServiceRecord]:
        found = list(plane.deployed.values())
        plane.deployed["spare"] = found[0].model_copy(update={"name": "spare"})
        plane.acted(wanted)
        return found

    monkeypatch.setattr(plane, "services", services)
    assert backed.look() == []


def test_a_backup_waits_until_the_service_was_down_for_so_long(world: World) -> None:
    backed = Backed(world, backup_after_s=90.0)
    assert [backed.after(10, ready=0) for _ in range(9)] == [[]] * 9
    assert backed.value["down_s"] == 80
    assert backed.after(5, ready=1) == []
    assert [backed.after(30, ready=0) for _ in range(3)] == [[]] * 3, "counted anew each time that it goes down"
    assert backed.after(30, ready=0) == ["deploy_workflow"]


def test_a_backup_is_ended_once_the_service_was_ready_for_a_while_and_later_each_time(world: World) -> None:
    backed = Backed(world, backup_keep_s=600.0)

    def outage() -> int:
        """Return for how many minutes it was ready before the backup was ended."""
        assert [one for _ in range(2) for one in backed.after(60, ready=0)] == ["deploy_workflow"]
        for minute in range(200):
            if backed.after(60, ready=1):
                return minute
        raise AssertionError("the backup was never ended")

    assert [outage() for _ in range(3)] == [10, 20, 40]
    backed.world.control_plane.now += 86_400
    backed.after(0, ready=1)
    assert outage() == 10


def test_a_backup_that_the_service_names_is_put_to_sleep_as_it_cannot_be_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [
        one.replace(serving=sf.Serving(backup="spare")) if one.name == "serve" else one
        for one in application(world.folder, {"spare": {}}).workflows
    ]
    monkeypatch.setattr(
        World, "app", property(lambda self: application(self.folder, self.parameters).replace(workflows=named))
    )
    backed = Backed(world, backup_keep_s=60.0)
    done = [one for ready in (0, 0, 1, 1) for one in backed.after(60, ready=ready)]
    assert done == ["deploy_workflow", "update_workflow_replica"]
    world.control_plane.deployed["spare"] = service("spare", state="idle", created=world.control_plane.now)
    assert [backed.after(60, ready=1) for _ in range(5)] == [[]] * 5


def test_a_service_that_comes_and_goes_keeps_its_backup(world: World) -> None:
    backed = Backed(world, backup_keep_s=600.0)
    done = [one for minute in range(300) for one in backed.after(60, ready=minute % 5 > 1)]
    assert done == ["deploy_workflow"]


def test_a_backup_that_somebody_else_deployed_is_left_alone(world: World) -> None:
    backed = Backed(world, backup_keep_s=60.0)
    backed.after(60, ready=1)
    world.control_plane.deployed["spare"] = world.control_plane.deployed["serve"].model_copy(update={"name": "spare"})
    assert [backed.after(60, ready=1) for _ in range(10)] == [[]] * 10


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
    action = FakeControlPlane().acted(intent)

    def ended(at: float, **more: Any) -> Action:
        return action.model_copy(update={"ended": at, **more})

    backup = service("spare", created=created)
    own = [ended(began + took, began=began, state=state) for began, took, state in deployed]
    found = compute_keep_s(backup, own, [ended(at) for at in retired], 600.0, 200_000.0)
    mine = any(state == "succeeded" and began <= created <= began + took for began, took, state in deployed)
    assert (found is not None) == mine
    if found is not None:
        assert found == 600.0 * 2 ** sum(at > 113_600.0 for at in retired)


# -- placement


def service(
    name: str, *, requests: int = 0, p95_s: float = 0.03, cpus: Sequence[int] = (0,), **more: Any
) -> ServiceRecord:
    given: dict[str, Any] = {"shape": Shape(), "state": "ready"} | more
    return ServiceRecord(
        name=name,
        app="mnist",
        team="data",
        url="http://127.0.0.1:1",
        generation=1,
        settled=1,
        instances=(InstanceRecord(instance="1", state="ready").with_details(cpus=list(cpus)),),
        revisions=(RevisionRecord(id="r1", requests=requests, buckets=((p95_s, requests), (30.0, requests))),),
        **given,
    )


class Machine(Agent):
    """A service and its neighbours on a machine: each minute its latency is what the machine makes of it."""

    def __init__(self, world: World, *, seed: int = 0) -> None:
        super().__init__(world, "service_placement", spread_affinity="cpu")
        self.noise, self.counts = random.Random(seed), [0.0] * 301
        self.runs = 0

    def minute(
        self, *, slower: float = 1.0, training: bool = False, other: bool = False, load: float = 10.0
    ) -> list[Intent]:
        """Let a minute pass with a batch workflow or another service beside it, and look."""
        plane = self.world.control_plane
        if training:
            self.runs += 1
            known = {"app": "mnist", "team": "data", "workflow": "training", "state": "succeeded"}
            plane.records.append(
                RunRecord(name=RunName(f"bold-fox-{self.runs}"), created=plane.now, seconds=60.0, **known)  # type: ignore[arg-type]
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
        made = service("serve", shape=shape)
        revision = RevisionRecord(id="r1", requests=int(total), buckets=tuple(buckets))
        plane.deployed["serve"] = made.model_copy(update={"revisions": (revision,)})
        if other or "other" in plane.deployed:
            before = plane.deployed.get("other", service("other"))
            plane.deployed["other"] = service("other", requests=before.revisions[0].requests + (600 if other else 0))
        return self.look()


def test_a_batch_workflow_that_slows_the_service_down_is_kept_off_its_cores_and_stays_off(world: World) -> None:
    machine = Machine(world)
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
    found: Any = intent.sample.value["evidence"]
    assert found["neighbour"] == "workflow/training"
    assert found["ratio"] == pytest.approx(2, rel=0.2)
    assert found["n"] >= 8
    assert found["p"] < 0.01
    assert "times as slow" in found["reason"]
    [event] = told(world, "placement.interference")[:1]
    assert event.data["reason"] == found["reason"]
    assert [one.data["value"] for one in told(world, "metric")[:1]] == [0.0]


def moved(machine: Machine) -> Action:
    for minute in range(40):
        for want in machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0):
            return machine.world.control_plane.acted(want)
    raise AssertionError("nothing was moved")


def test_a_move_that_helped_is_told_and_left_standing(world: World) -> None:
    machine = Machine(world)
    action = moved(machine)
    assert [want for minute in range(60) for want in machine.minute(training=minute % 2 > 0)] == []
    [event] = told(world, "placement.verified")
    assert (event.data["better"], event.data["action"]) == (True, action.id)
    assert [one.data["value"] for one in told(world, "metric")] == [0.0]


def test_a_move_that_did_not_help_is_taken_back_and_not_tried_again_soon(world: World) -> None:
    machine = Machine(world)
    action = moved(machine)
    for minute in range(60):
        machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0)
    [event] = told(world, "placement.verified")
    assert event.data["better"] is False
    assert [one.data["value"] for one in told(world, "metric")] == [0.0, 1.0]
    world.control_plane.acted(action.intent, "reverted", reverted_by="the guard")
    wants = [
        one for minute in range(60) for one in machine.minute(slower=2 if minute % 2 else 1, training=minute % 2 > 0)
    ]
    assert wants == []
    assert machine.value["evidence"] is None or machine.value["stands"] == "the last move was reverted"


def test_another_service_on_its_cores_makes_it_move_to_cores_of_its_own(world: World) -> None:
    machine = Machine(world)
    wants = [one for minute in range(30) for one in machine.minute(slower=2 if minute % 2 else 1, other=minute % 2 > 0)]
    assert wants[0].target == "service/serve"
    assert wants[0].arguments["affinity"] == "cpu"


@pytest.mark.parametrize("case", ["no effect", "too small", "more load", "ran once", "idle neighbour"])
def test_what_does_not_slow_it_down_is_left_where_it_is(world: World, case: str) -> None:
    machine = Machine(world, seed=1)
    for minute in range(60):
        on = minute % 2 > 0 and (case != "ran once" or minute < 3)
        slower = {"too small": 1.08, "more load": 2.0, "ran once": 2.0, "idle neighbour": 2.0}.get(case, 1.0)
        given_ = {"slower": slower if on else 1.0, "load": 20.0 if on and case == "more load" else 10.0}
        beside = {} if case == "idle neighbour" else {"training": on}
        assert machine.minute(**given_, **beside) == []  # type: ignore[arg-type]
    assert told(world, "placement.interference") == []


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
