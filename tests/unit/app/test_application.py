"""What one team ships."""

from __future__ import annotations

from pathlib import Path

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
