"""Versions of a registered model as a service: deployed, tried, swapped, and taken back as they were served."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import scanflow as sf
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Shape
from scanflow.deployer import EmbeddedDeployer
from scanflow.deployer.direct_predictions import predict
from scanflow.errors import NotFoundError, UsageError
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.settings import Settings
from scanflow.transport import HttpServiceClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("mlflow") is None or find_spec("sklearn") is None, reason="mlflow or sklearn missing"),
]
ROWS = np.array([[1.0], [2.0]])

Register = Callable[[float], int]


@pytest.fixture
def tracker(tmp_path: Path) -> sf.Tracker:
    return sf.Tracker(uri=f"sqlite:///{tmp_path}/other.db")


@pytest.fixture
def knowledge(home: Path, tracker: sf.Tracker) -> KnowledgeBase:
    return open_knowledge(home, tracker.uri)


@pytest.fixture
def register(knowledge: KnowledgeBase, tmp_path: Path) -> Register:
    from mlflow.models import infer_signature
    from mlflow.sklearn import save_model
    from sklearn.linear_model import LinearRegression

    def register(factor: float) -> int:
        model = LinearRegression(fit_intercept=False).fit(ROWS, ROWS[:, 0] * factor)
        folder = tmp_path / f"times-{factor:g}"
        save_model(model, folder, signature=infer_signature(ROWS, model.predict(ROWS)), pip_requirements=[])
        version = knowledge.register_model("times", folder, app="shop", team="default").version
        knowledge.set_model_alias("times", "champion", version)
        return version

    return register


@pytest.fixture
def app(tracker: sf.Tracker, tmp_path: Path) -> sf.Application:
    times = sf.Service(name="times", model="models:/times@champion", resources=sf.Resources(cpu=0.5))
    workflow = sf.Workflow(name="times", type="online", nodes=[times])
    return sf.Application(name="shop", app_dir=tmp_path, workflows=[workflow], tracker=tracker)


def answer(deployer: EmbeddedDeployer) -> list[float]:
    (array,) = predict(deployer, "times", ROWS).outputs.values()
    return [round(float(value), 6) for value in array.ravel()]


def test_versions_are_tried_swapped_and_taken_back_as_they_were_served(
    home: Path, app: sf.Application, knowledge: KnowledgeBase, register: Register
) -> None:
    deployer = EmbeddedDeployer(Settings(home=home))
    with pytest.raises(NotFoundError, match="There is no model 'times'"):
        deployer.deploy(Deployment(app))
    assert deployer.services() == []
    register(2)
    first = deployer.deploy(Deployment(app))
    assert first.revisions[0].models == {"times": "models:/times/1"}
    assert answer(deployer) == [2.0, 4.0]
    with deployer.connect("times") as client:
        assert client.document("/v2/models/times")["inputs"][0]["shape"] == [-1, 1]
    assert Shape.model_validate_json(knowledge.get_model("times", 1).tags["scanflow.shape"]) == first.shape

    with pytest.raises(NotFoundError, match="no version 7"):
        deployer.change("times", ServiceChange(model="models:/times/7"))
    with pytest.raises(UsageError, match="already served by"):
        deployer.change("times", ServiceChange(model="models:/times/1"))
    register(3)
    assert answer(deployer) == [2.0, 4.0]
    tried = deployer.change("times", ServiceChange(model="models:/times@champion", weight=0.5))
    assert [(revision.role, revision.weight) for revision in tried.revisions] == [("current", 0.5), ("canary", 0.5)]
    with HttpServiceClient(tried.url, name="times") as client:
        revisions = {client.infer("times", ROWS).revision for _ in range(40)}
    assert revisions == {revision.id for revision in tried.revisions}
    assert deployer.change("times", ServiceChange(rollback=True)).revisions[0].models == {"times": "models:/times/1"}
    assert answer(deployer) == [2.0, 4.0]

    swapped = deployer.change("times", ServiceChange(model="models:/times/2"))
    assert swapped.revisions[0].models == {"times": "models:/times/2"}
    assert answer(deployer) == [3.0, 6.0]
    deployer.change("times", ServiceChange(instances=2))
    assert Shape.model_validate_json(knowledge.get_model("times", 2).tags["scanflow.shape"]).instances == 2

    back = deployer.change("times", ServiceChange(rollback=True))
    assert back.revisions[0].models == {"times": "models:/times/1"}
    assert back.shape == first.shape
    assert answer(deployer) == [2.0, 4.0]
