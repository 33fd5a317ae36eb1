"""Training by hand puts a version in use only where there is none: others are compared, or promoted by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.drift import training
from scanflow.drift.training_data import TrainingData
from scanflow.errors import NotFoundError, UsageError
from scanflow.knowledge import MemoryKnowledge
from scanflow.knowledge.mlflow import mlflow_models

NAME, ALIAS = "loans", "champion"


class Constant:
    def predict(self, x: Any) -> Any:
        return np.zeros(len(x), int)


def data() -> tuple[Any, Any]:
    return np.arange(200.0).reshape(100, 2), np.zeros(100, int)


@pytest.fixture
def knowledge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryKnowledge:
    knowledge = MemoryKnowledge()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"1")

    def register(_model: Any, name: str, *, tags: dict[str, str], **_about: Any) -> int:
        version = knowledge.register_model(name, tmp_path / "model", app="bank", team="ml").version
        knowledge.set_model_tags(name, version, tags)
        return version

    monkeypatch.setattr(mlflow_models, "register", register)
    monkeypatch.setattr(mlflow_models, "limit_logs", lambda: None)
    monkeypatch.setattr(training, "step_tracker", lambda: knowledge)
    monkeypatch.setattr(training, "load_user_function", lambda text: {"fit": fit, "data": data}[text])
    monkeypatch.setenv("SCANFLOW_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("SCANFLOW_APP", "bank")
    monkeypatch.setenv("SCANFLOW_TEAM", "ml")
    return knowledge


def fit(_x: Any, _y: Any) -> Any:
    return Constant()


def test_a_training_by_hand_leaves_the_version_in_use(
    knowledge: MemoryKnowledge, capsys: pytest.CaptureFixture[str]
) -> None:
    training.retrain(fit="fit", data="data", model_name=NAME)
    assert knowledge.get_model(NAME, ALIAS).version == 1
    capsys.readouterr()
    training.retrain(fit="fit", data="data", model_name=NAME)
    assert [version.version for version in knowledge.list_model_versions(NAME)] == [2, 1]
    assert knowledge.get_model(NAME, ALIAS).version == 1
    assert (
        "version 1 stays\n@champion. Put it to use by name: scanflow models promote loans 2" in capsys.readouterr().out
    )


def test_the_data_of_a_training_by_hand_is_used_once_its_version_is(knowledge: MemoryKnowledge, tmp_path: Path) -> None:
    """The version in use was trained by something else, on what this workflow holds out, perhaps."""
    knowledge.register_model(NAME, tmp_path / "model", app="bank", team="ml")
    knowledge.set_model_alias(NAME, ALIAS, 1)
    with pytest.raises(NotFoundError, match=r"run the workflow of .* once by hand"):
        TrainingData.load(knowledge, "bank", "ml", NAME, in_use=1)
    for _ in range(2):
        training.retrain(fit="fit", data="data", model_name=NAME)
    with pytest.raises(UsageError, match=r"version 2 was the first\. .*: scanflow models promote loans 2 --why TEXT"):
        TrainingData.load(knowledge, "bank", "ml", NAME, in_use=1)
    loaded = [TrainingData.load(knowledge, "bank", "ml", NAME, in_use=version) for version in (2, 3)]
    assert [len(data.x_train) for data in loaded] == [63, 63]


def test_a_version_of_a_regression_says_its_tolerance(knowledge: MemoryKnowledge) -> None:
    training.retrain(fit="fit", data="data", model_name=NAME, tolerance=2.5)
    training.retrain(fit="fit", data="data", model_name=NAME)
    assert [version.tags.get("tolerance") for version in knowledge.list_model_versions(NAME)] == [None, "2.5"]
