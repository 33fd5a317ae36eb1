"""Strategies that fight over the replicas of a real service: one wins, by a rule that anybody can tell, the other is
told by whom, and the service is left in peace."""

from __future__ import annotations

import pytest

from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import Plant
from tests.waiting import until

pytestmark = pytest.mark.endurance

APP = """
import scanflow as sf

echo = sf.Service(name="echo", implementation="echo.py:Echo")
app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[sf.Workflow(name="serve", type="online", nodes=[echo], serving=sf.Serving(grpc_port=0))],
    agents=[sf.Agent(name=name, modules=[name + ".py"]) for name in ("grower", "shrinker", "wavering")],
)
"""
ECHO = """
class Echo:
    def predict(self, X):
        return X
"""
ONE_OF_TWO = """
import scanflow as sf
from scanflow.agent import primitives as do, sensor

@sensor(sf.every(seconds=0.2))
def replicas(context):
    return context.services.service("serve").shape.instances

sf.Strategy(
    name="replicas",
    when=replicas,
    if_=lambda n: n != {wanted},
    then=do.update_workflow_replica("serve", instances={wanted}),
    priority={priority},
)
"""
WAVERING = """
import itertools
import scanflow as sf
from scanflow.agent import primitives as do, sensor

turns = itertools.cycle([2, 1])

@sensor(sf.every(seconds=0.2))
async def load():
    return next(turns)

sf.Strategy(
    name="follow", when=load, then=lambda n: do.update_workflow_replica("serve", instances=n), hysteresis=600
)
"""


def rivals(make_plant: MakePlant, *, grower: int = 0, shrinker: int = 0) -> Plant:
    """Return a plant that serves with one instance, and agents of these priorities that are not started yet."""
    files = {"app.py": APP, "echo.py": ECHO, "wavering.py": WAVERING}
    files["grower.py"] = ONE_OF_TWO.format(wanted=2, priority=grower)
    files["shrinker.py"] = ONE_OF_TWO.format(wanted=1, priority=shrinker)
    plant = make_plant(files)
    plant.deploy("serve")
    return plant


def instances(plant: Plant) -> int:
    count: int = plant.service("serve")["shape"]["instances"]
    return count


def changes(plant: Plant) -> int:
    generation: int = plant.service("serve")["generation"]
    return generation - 1


def reasons_of(plant: Plant, agent: str) -> list[str]:
    return [one["decision"]["reason"] for one in plant.refused(agent=agent)]


def refusals(plant: Plant, agent: str, count: int) -> list[str]:
    until(lambda: len(plant.refused(agent=agent)) >= count, f"{agent} was refused {count} times")
    return reasons_of(plant, agent)


def test_of_two_equals_the_first_keeps_the_replicas_and_the_other_is_told_by_whom(make_plant: MakePlant) -> None:
    plant = rivals(make_plant)
    plant.start("grower")
    until(lambda: instances(plant) == 2, "it has grown")
    plant.start("shrinker")
    reasons = refusals(plant, "shrinker", 8)
    assert (instances(plant), changes(plant)) == (2, 1)
    # What the winner sees while its change is under way it wants again; that changes nothing when its turn comes.
    done = {one["id"]: one["intent"]["agent"] for one in plant.done()}
    assert set(done.values()) == {"grower"}
    assert {one["decision"]["winner"] for one in plant.refused(agent="shrinker")} <= done.keys()
    assert all("The strategy 'tests/mnist/grower/replicas' owns the field" in reason for reason in reasons), reasons
    assert plant.done(agent="shrinker") == []
    assert "refuse" in plant.why(plant.refused()[0]["id"])


def test_a_higher_priority_takes_over_from_who_came_first_and_both_act_once(make_plant: MakePlant) -> None:
    plant = rivals(make_plant, shrinker=5)
    plant.start("grower")
    until(lambda: plant.samples("grower", "replicas"), "it has looked")
    plant.start("shrinker")
    until(lambda: plant.done(agent="shrinker"), "the better one takes over")
    # Until its own change is done it is refused for wanting it a second time.
    told = "needs a priority above 5; this intent has 0"
    until(lambda: any(told in reason for reason in reasons_of(plant, "grower")), "it is told who took it over, and how")
    until(lambda: {one["state"] for one in plant.done()} == {"succeeded"}, "what was begun is done")
    assert (instances(plant), changes(plant)) == (1, 2)
    # What is seen while a change is under way is wanted again, and changes nothing when its turn comes.
    assert list(dict.fromkeys(one["intent"]["agent"] for one in plant.done())) == ["grower", "shrinker"]


def test_a_strategy_that_wavers_changes_once_within_its_hysteresis(make_plant: MakePlant) -> None:
    plant = rivals(make_plant)
    plant.start("wavering")
    reasons = refusals(plant, "wavering", 8)
    assert any("would undo the last change of 'instances'" in reason for reason in reasons), reasons
    assert {one["intent"]["arguments"]["instances"] for one in plant.done()} == {2}, "the first way it took"
    until(lambda: instances(plant) == 2, "that is done")
    assert (instances(plant), changes(plant)) == (2, 1)
