"""Which images an application needs, and what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanflow as sf
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.images.recipes import plan_images

BASE = "scanflow/base:latest"


def no_models(model: str) -> Path:
    raise AssertionError(f"{model} was fetched")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "requirements.txt").write_text("# what training needs\nscikit-learn>=1.6  # trees\n\npandas\n")
    return tmp_path


def test_steps_that_need_the_same_share_an_image(folder: Path) -> None:
    nodes = [
        sf.Executor(name="load", mainfile="train.py"),
        sf.Executor(name="train", mainfile="train.py", requirements="requirements.txt"),
        sf.Executor(name="test", mainfile="train.py", requirements=["scikit-learn>=1.6", "pandas"]),
        sf.Executor(name="report", mainfile="train.py"),
        sf.Executor(name="other", mainfile="train.py", image="example.com/other:1"),
    ]
    app = sf.Application(name="shop", app_dir=folder, workflows=[sf.Workflow(name="training", nodes=nodes)])
    recipes = {plan.nodes[0]: plan.recipe for plan in plan_images(app, app.workflows, BASE, no_models)}
    assert list(recipes) == ["load", "train", "test", "report"]
    assert recipes["train"].requirements == ("scikit-learn>=1.6", "pandas")
    assert recipes["train"].tag == recipes["test"].tag != recipes["load"].tag == recipes["report"].tag


def test_an_online_workflow_has_one_image_with_what_its_models_were_saved_with(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "requirements.txt").write_text("mlflow==3.17.2\nscikit-learn==1.7.2\nnumpy==2.3.1\n")
    scale = sf.Service(
        name="scale", role="TRANSFORMER", implementation="graph.py:Scale", requirements="requirements.txt"
    )
    model = sf.Service(name="model", model="models:/trees@champion")
    workflow = sf.Workflow(name="serving", type="online", nodes=[scale, model], edges=scale >> model)
    app = sf.Application(name="shop", app_dir=folder, workflows=[workflow])
    (plan,) = plan_images(
        app, app.workflows, BASE, lambda uri: folder / uri.removeprefix("models:/trees@champion") / "model"
    )
    assert plan.nodes == ("scale", "model")
    assert plan.recipe.requirements == ("scikit-learn>=1.6", "pandas", "scikit-learn==1.7.2", "numpy==2.3.1")


def test_nodes_that_run_together_cannot_name_two_images(folder: Path) -> None:
    first, other = (sf.Service(name=name, implementation="graph.py:X", image=f"{name}:1") for name in ("one", "other"))
    workflow = sf.Workflow(name="serving", type="online", nodes=[first, other], edges=first >> other)
    app = sf.Application(name="shop", app_dir=folder, workflows=[workflow])
    with pytest.raises(UsageError, match="'one' and 'other' run in one container, but name two images"):
        plan_images(app, app.workflows, BASE, no_models)


@pytest.mark.parametrize("line", ["-r more.txt", "--constraint=limits.txt", "-e .", "./lib", "file:///lib"])
def test_requirements_are_whole_in_themselves(folder: Path, line: str) -> None:
    step = sf.Executor(name="train", mainfile="train.py", requirements=[line])
    app = sf.Application(name="shop", app_dir=folder, workflows=[sf.Workflow(name="training", nodes=[step])])
    with pytest.raises(InvalidError, match="refer to another file"):
        plan_images(app, app.workflows, BASE, no_models)


def test_a_file_of_requirements_that_is_not_there_is_named(folder: Path) -> None:
    step = sf.Executor(name="train", mainfile="train.py", requirements="requirement.txt")
    app = sf.Application(name="shop", app_dir=folder, workflows=[sf.Workflow(name="training", nodes=[step])])
    with pytest.raises(NotFoundError, match=r"Did you mean 'requirements.txt'\?"):
        plan_images(app, app.workflows, BASE, no_models)
