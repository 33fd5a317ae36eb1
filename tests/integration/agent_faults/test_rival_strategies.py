"""Strategies that fight over the replicas of a real service: one wins, by a rule that anybody can tell, the other is
told by whom, and the service is left in peace."""

from __future__ import annotations

import pytest

from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import Plant
from tests.waiting import wait_until

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


def list_reasons(plant: Plant, agent: str) -> list[str]:
    return [action["decision"]["reason"] for action in plant.list_refused_actions(agent=agent)]


def refusals(plant: Plant, agent: str, count: int) -> list[str]:
    wait_until(lambda: len(plant.list_refused_actions(agent=agent)) >= count, f"{agent} was refused {count} times")
    return list_reasons(plant, agent)


def test_of_two_equals_the_first_keeps_the_replicas_and_the_other_learns_by_whom(make_plant: MakePlant) -> None:
    plant = rivals(make_plant)
    plant.start("grower")
    wait_until(lambda: instances(plant) == 2, "it has grown")
    plant.start("shrinker")
    reasons = refusals(plant, "shrinker", 8)
    assert (instances(plant), changes(plant)) == (2, 1)
    # What the winner sees while its change is under way it wants again; that changes nothing when its turn comes.
    done = {action["id"]: action["intent"]["agent"] for action in plant.list_done_actions()}
    assert set(done.values()) == {"grower"}
    assert {action["decision"]["winner"] for action in plant.list_refused_actions(agent="shrinker")} <= done.keys()
    assert all("The strategy 'tests/mnist/grower/replicas' owns the field" in reason for reason in reasons), reasons
    assert plant.list_done_actions(agent="shrinker") == []
    assert "refuse" in plant.explain(plant.list_refused_actions()[0]["id"])


def test_a_higher_priority_takes_over_from_who_came_first_and_both_act_once(make_plant: MakePlant) -> None:
    plant = rivals(make_plant, shrinker=5)
    plant.start("grower")
    wait_until(lambda: plant.samples("grower", "replicas"), "it has looked")
    plant.start("shrinker")
    wait_until(lambda: plant.list_done_actions(agent="shrinker"), "the better one takes over")
    # Until its own change is done it is refused for wanting it a second time.
    message = "needs a priority above 5; this intent has 0"
    wait_until(
        lambda: any(message in reason for reason in list_reasons(plant, "grower")),
        "it is told who took it over, and how",
    )
    wait_until(
        lambda: {action["state"] for action in plant.list_done_actions()} == {"succeeded"}, "what was begun is done"
    )
    assert (instances(plant), changes(plant)) == (1, 2)
    # What is seen while a change is under way is wanted again, and changes nothing when its turn comes.
    assert list(dict.fromkeys(action["intent"]["agent"] for action in plant.list_done_actions())) == [
        "grower",
        "shrinker",
    ]


def test_a_strategy_that_wavers_changes_once_within_its_hysteresis(make_plant: MakePlant) -> None:
    plant = rivals(make_plant)
    plant.start("wavering")
    reasons = refusals(plant, "wavering", 8)
    assert any("would undo the last change of 'instances'" in reason for reason in reasons), reasons
    assert {action["intent"]["arguments"]["instances"] for action in plant.list_done_actions()} == {2}, (
        "the first way it took"
    )
    wait_until(lambda: instances(plant) == 2, "that is done")
    assert (instances(plant), changes(plant)) == (2, 1)
