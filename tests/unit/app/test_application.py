"""What one team ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import InvalidError, NotFoundError
from tests.unit.app.making import batch, message, script, shop

TRAINING = batch(script("train"))


def test_its_environment_is_named_after_it_and_its_team() -> None:
    assert shop(team="data").environment == "scanflow-shop-data"


def test_a_name_and_a_team_that_are_too_long_together_say_by_how_much() -> None:
    assert len(sf.Application(name="a" * 30, team="b" * 23).environment) == 63
    with pytest.raises(InvalidError) as error:
        sf.Application(name="a" * 30, team="b" * 25)
    assert "65 characters. Kubernetes allows 63: shorten the name or the team by 2." in message(error)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"workflows": [TRAINING, TRAINING]},
            "Application 'shop' has two workflows named 'training'. Rename one of them.",
        ),
        (
            {"agents": [sf.Agent(name="a", template="planner")] * 2},
            "Application 'shop' has two agents named 'a'. Rename one of them.",
        ),
        ({"workflow": TRAINING}, "Application 'shop' has no field 'workflow'. Did you mean 'workflows'?"),
        ({"team": "Data Team"}, "The team name 'Data Team' cannot be used"),
        (
            {"tracker": "http://localhost"},
            "Application 'shop': tracker cannot be 'http://localhost': it should be a Tracker.",
        ),
        ({"tracker": {"port": True}}, "port cannot be True: it should be a number."),
        ({"tracker": {"port": 70_000}}, "port cannot be 70000: it should be less than or equal to 65535."),
        ({"app_dir": None}, "Application 'shop': app_dir cannot be None. Write a folder, such as '.'."),
        ({"app_dir": 3}, "Application 'shop': app_dir cannot be 3. Write a folder, such as '.'."),
        ({"app_dir": ""}, "Application 'shop': app_dir cannot be ''. Write a folder, such as '.'."),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        shop(**fields)
    assert told in message(error)
    assert len(message(error).splitlines()) == 1


@pytest.mark.parametrize("workflows", [TRAINING, None, {"training": TRAINING}, "training", {1}])
def test_workflows_are_a_list(workflows: Any) -> None:
    with pytest.raises(InvalidError, match=r"^Application 'shop': workflows cannot be .*: it should be a list\.$"):
        shop(workflows=workflows)


def test_a_step_among_the_workflows_is_refused_by_its_place() -> None:
    step: Any = script("train")
    with pytest.raises(InvalidError, match=r"Application 'shop': workflows\.0 cannot be .*: it should be a Workflow\."):
        shop(workflows=[step])


def test_its_folder_may_be_a_path() -> None:
    assert shop(app_dir=Path("a") / "b").app_dir == "a/b"


def test_a_workflow_is_found_by_name_or_because_it_is_the_only_one() -> None:
    app = shop(TRAINING)
    assert app.workflow() is app.workflow("training")
    with pytest.raises(NotFoundError, match=r"Application 'shop' has no workflow 'trainig'. Did you mean 'training'?"):
        app.workflow("trainig")
    with pytest.raises(NotFoundError, match=r"Application 'shop' has no workflow. Give it one: workflows=\[...\]"):
        shop().workflow()
    with pytest.raises(
        NotFoundError, match=r"has several workflows: training, other\. Name one, as in app\.py:training"
    ):
        shop(TRAINING, TRAINING.replace(name="other")).workflow()


def test_a_workflow_is_replaced_by_its_name() -> None:
    other = TRAINING.replace(name="other")
    changed = shop(TRAINING, other).with_workflow(TRAINING.replace(output_dir="/out"))
    assert [workflow.output_dir for workflow in changed.workflows] == ["/out", "/workflow"]


def test_a_workflow_that_it_does_not_have_cannot_be_replaced() -> None:
    with pytest.raises(NotFoundError, match="Application 'shop' has no workflow 'other'"):
        shop(TRAINING).with_workflow(TRAINING.replace(name="other"))


def test_a_sensor_that_looks_at_no_node_says_which_was_meant() -> None:
    sensor = sf.Sensor(name="count", trigger=sf.every(hours=1), nodes=["trian"])
    agent = sf.Agent(name="watch", sensors=[sensor])
    with pytest.raises(InvalidError) as error:
        shop(TRAINING, agents=[agent])
    assert message(error) == (
        "Application 'shop': the sensor 'count' of the agent 'watch' looks at 'trian', which is no node of its "
        "workflows. Did you mean 'train'?"
    )
