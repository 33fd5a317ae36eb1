"""What one team ships."""

from __future__ import annotations

from pathlib import Path

from tests.unit.app.app_builders import batch, script, shop

TRAINING = batch(script("train"))


def test_its_environment_is_named_after_it_and_its_team() -> None:
    assert shop(team="data").environment == "scanflow-shop-data"


def test_its_folder_may_be_a_path() -> None:
    assert shop(app_dir=Path("a") / "b").app_dir == "a/b"


def test_a_workflow_is_replaced_by_its_name() -> None:
    other = TRAINING.replace(name="other")
    changed = shop(TRAINING, other).with_workflow(TRAINING.replace(output_dir="/out"))
    assert [workflow.output_dir for workflow in changed.workflows] == ["/out", "/workflow"]
