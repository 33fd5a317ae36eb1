"""The ready-made workflows on the tutorial's table: their steps, each a process, from a first model to two windows."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.drift.contract import TrainingOutputs, parse_detection_outputs, parse_training_outputs
from scanflow.drift.samples import compute_digests, take_rows
from scanflow.drift.training_data import TrainingData
from scanflow.errors import ScanflowError
from scanflow.modules import load_module
from tests.integration.tutorial_steps import TUTORIALS, Project

TUTORIAL = TUTORIALS / "tabular"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        find_spec("sklearn") is None or find_spec("mlflow") is None, reason="scikit-learn or mlflow is not installed"
    ),
]


def parse_outputs(outputs: dict[str, Any]) -> TrainingOutputs:
    training_outputs = parse_training_outputs(outputs)
    assert training_outputs is not None
    return training_outputs


def people(count: int, ages: tuple[int, int], seed: int) -> tuple[Any, Any]:
    data: tuple[Any, Any] = load_module(TUTORIAL / "app.py").people(count, ages, seed)
    return data


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("own-data"), TUTORIAL / "app.py")
    first = project.run("training", "first")
    assert (first["version"], parse_training_outputs(first)) == (1, None)
    assert first["accuracy"] > 0.95
    return project


def test_two_windows_are_detected_labelled_and_learnt_from_and_nothing_learnt_evaluates(project: Project) -> None:
    young, _ = people(500, (18, 45), 17)
    whole = project.log_predictions({"input:rows": young.to_numpy(), "time": np.zeros(500)}, "young")
    quiet = project.run("detector", "calm", run_ids=[whole])
    assert (quiet["drifted"], quiet["n_picked"], quiet["columns"]) == (0, 0, [])
    assert quiet["estimated_low"] < quiet["expected_accuracy"] < quiet["estimated_high"]

    old, repaid = people(700, (50, 65), 8)
    batch = project.log_predictions({f"input:{name}": old[name].to_numpy() for name in old}, "old")
    detection = project.run("detector", "window-1", run_ids=[batch])
    read = parse_detection_outputs(detection)
    assert (read.drifted, read.n_picked, read.n_evaluation, read.run_ids) == (True, 200, 60, (batch,))
    assert read.columns[0]["name"] == "age"
    points = json.loads((project.folder / "window-1" / "picked.json").read_text())
    assert points[0]["row"] == {name: float(old[name][points[0]["index"]]) for name in old}

    for ages, same in (((50, 65), 1), ((70, 90), 0)):
        more, _ = people(500, ages, 10)
        later = project.log_predictions({f"input:{name}": more[name].to_numpy() for name in more}, f"later-{ages[0]}")
        detection = project.run("detector", f"window-of-{ages[0]}", run_ids=[later], pending=[batch])
        assert (detection["drifted"], detection["same_drift"]) == (1, same), "is it the drift that waits for labels?"

    labels, labelled_points = project.label_points("window-1", lambda at: int(repaid[at]), [])
    outputs = project.run("training", "second", labels=labels)
    second = parse_outputs(outputs)
    assert (second.version, second.champion_version, second.labels) == (2, 1, labels)
    current, clean = second.slices
    assert (current.name, current.n, clean.name) == ("current", 60, "clean")
    assert second.challenger_accuracy == current.challenger_right / 60 > second.champion_accuracy + 0.1
    assert clean.n > 1000
    assert clean.challenger_right > clean.champion_right - 0.01 * clean.n
    assert project.run("training", "second", labels=labels)["version"] == 2, "nothing is registered twice"

    project.tracker.set_model_alias("loans", "champion", 2)
    for run, of, is_window in (("known", batch, True), ("calm-too", whole, False)):
        detection = project.run("detector", run, run_ids=[of])
        assert detection["drifted"] == 0, "what it has learnt from is known, and what it knew before"
        assert detection["regimes"] == pytest.approx(
            {"clean": 1.0 - is_window, "window window-1": float(is_window)}, abs=0.2
        )

    older, repaid_too = people(700, (66, 90), 9)
    both = {name: np.concatenate([older[name], old[name][:100]]) for name in older}  # some come again
    again = np.concatenate([repaid_too, repaid[:100]])
    batch = project.log_predictions({f"input:{name}": values for name, values in both.items()}, "older")
    assert project.run("detector", "window-2", run_ids=[batch])["drifted"] == 1
    labels, labelled_points = project.label_points("window-2", lambda at: int(again[at]), labelled_points)
    third = parse_outputs(project.run("training", "third", labels=labels))
    assert [slice_.name for slice_ in third.slices] == ["current", "window window-1", "clean"]
    assert (third.version, third.champion_version) == (3, 2)
    assert third.slices[0].n >= 40

    fourth = parse_outputs(project.run("training", "fourth", labels=labels, evaluate="models:/loans/3"))
    assert (fourth.version, fourth.slices) == (3, third.slices), "a challenger that is evaluated again is as it was"

    data = TrainingData.load(project.tracker, *project.app, "loans")
    evaluated = {labelled_point["id"] for labelled_point in labelled_points if labelled_point["purpose"] == "evaluate"}
    picked = [
        (point, digest)
        for window in ("window-1", "window-2")
        for point, digest in zip(
            json.loads((project.folder / window / "picked.json").read_text()), _digests(project, window), strict=True
        )
    ]
    for_evaluation = {digest for point, digest in picked if point["id"] in evaluated}
    assert not for_evaluation & {digest for point, digest in picked if point["id"] not in evaluated}
    assert not for_evaluation & set(compute_digests(data.x_train))


def _digests(project: Project, window: str) -> list[str]:
    from scanflow.drift.samples import unpack_samples

    with np.load(project.folder / window / "picked.npz") as arrays:
        x = unpack_samples("x", dict(arrays))
        assert compute_digests(take_rows(x, [1, 0])) == compute_digests(x)[1::-1]
        return compute_digests(x)


@pytest.mark.parametrize(
    ("workflow", "parameters", "message"),
    [
        ("training", {"data": ""}, "set its data"),
        ("detector", {"model_name": "nobody"}, "Train a first model"),
        ("detector", {}, "There are no predictions"),
        ("training", {"fit": "app.py:fitt"}, "has no 'fitt'"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    project: Project, workflow: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScanflowError, match=message):
        project.run(workflow, "told", **parameters)


DATED = """
import numpy as np
import scanflow as sf


def bills(count, year, seed):
    import pandas as pd

    draw = np.random.default_rng(seed)
    months = pd.date_range(f"{year}-01-01", periods=12, freq="MS")
    x = pd.DataFrame({"month": draw.choice(months, count), "amount": draw.normal(size=count)})
    return x, (x["month"].dt.month.to_numpy() < 7).astype(int)


def data():
    return bills(1000, 2025, 0)


def take_season(x):
    return x["month"].dt.month.to_frame().assign(amount=x["amount"])


def fit(x, y):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.tree import DecisionTreeClassifier

    return make_pipeline(FunctionTransformer(take_season), DecisionTreeClassifier()).fit(x, y)


detector = sf.drift.detection(model="bills", budget=100)
training = sf.drift.retraining(model="bills", fit=fit, data=data)
app = sf.Application(name="bills", workflows=[detector, training], tracker=sf.Tracker())
"""


def test_a_column_of_dates_goes_through_the_loop_though_requests_have_text(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(DATED)
    project = Project(tmp_path, tmp_path / "app.py")
    bills = load_module(tmp_path / "app.py").bills

    def send(x: Any, name: str) -> str:
        texts = [day.isoformat().encode() for day in x["month"]]
        arrays = {"input:month": np.frombuffer(b"".join(texts), np.uint8), "input:amount": x["amount"].to_numpy()}
        ends = np.cumsum([len(text) for text in texts])
        return project.log_predictions({**arrays, "input:month:ends": ends, "time": np.zeros(len(x))}, name)

    assert project.run("training", "first")["accuracy"] == 1.0
    quiet = project.run("detector", "calm", run_ids=[send(bills(500, 2025, 5)[0], "same-year")])
    assert (quiet["drifted"], quiet["n_picked"], quiet["n_anomalies"] < 30) == (0, 0, True)
    x, due = bills(500, 2026, 6)
    detection = project.run("detector", "window", run_ids=[send(x, "next-year")])
    assert (detection["drifted"], [column["name"] for column in detection["columns"]]) == (1, ["month"])
    labels, _ = project.label_points("window", lambda at: int(due[at]), [])
    outputs = project.run("training", "second", labels=labels)
    assert (outputs["version"], outputs["n_left_out"], outputs["challenger_accuracy"]) == (2, 0, 1.0)


@pytest.mark.parametrize("name", ["RandomForestClassifier", "HistGradientBoostingClassifier", "pipeline"])
def test_models_of_scikit_learn_are_saved_so_that_they_load_without_a_prompt(name: str) -> None:
    import sklearn.ensemble
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from scanflow.knowledge.mlflow.mlflow_models import choose_sklearn_format

    x, y = people(200, (18, 90), 1)
    model = (
        make_pipeline(StandardScaler(), LogisticRegression())
        if name == "pipeline"
        else getattr(sklearn.ensemble, name)().fit(x, y)
    )
    options = choose_sklearn_format(model)
    import skops.io

    assert options["serialization_format"] == "skops"
    skops.io.loads(skops.io.dumps(model), trusted=options["skops_trusted_types"])


def test_a_model_with_types_of_its_own_is_saved_as_a_pickle() -> None:
    from sklearn.preprocessing import FunctionTransformer

    from scanflow.knowledge.mlflow.mlflow_models import choose_sklearn_format

    assert choose_sklearn_format(FunctionTransformer(people)) == {"serialization_format": "cloudpickle"}


def test_a_model_of_a_table_is_saved_with_a_row_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new instance is warmed up with it: the text of a date cannot be made up."""
    import pandas as pd
    from sklearn.dummy import DummyClassifier

    from scanflow.knowledge.mlflow import mlflow_models

    mlflow: Any = import_module("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        x = pd.DataFrame({"day": ["2026-01-31", "2026-02-01"], "wind": [3.5, 4.0]})
        model = DummyClassifier().fit(x, [0, 1])
        version = mlflow_models.register(model, "rain", x=x, tags={}, params={}, metrics={})
        saved = mlflow.pyfunc.load_model(f"models:/rain/{version}")
        assert saved.input_example.to_dict("records") == [{"day": "2026-01-31", "wind": 3.5}]
    finally:
        mlflow.set_tracking_uri(None)


class ByContext:
    def predict(self, context: Any, model_input: Any) -> Any:  # noqa: ARG002  MLflow gives it
        return np.asarray(model_input)[:, :1]


class Scores:
    def predict(self, x: Any) -> Any:
        return np.asarray(x)


@pytest.mark.parametrize(
    ("native", "x", "says", "probabilities"),
    [
        (ByContext(), [[3.0, 1.0], [4.0, 1.0]], [3.0, 4.0], None),
        (Scores(), [[0.2, 0.8], [0.6, 0.4]], [1, 0], [[0.2, 0.8], [0.6, 0.4]]),
        (Scores(), [[2.0, -1.0], [0.6, 0.9]], [0, 1], None),
    ],
    ids=["numbers", "probabilities", "logits"],
)
def test_what_a_model_says_is_read_as_labels_or_numbers(native: Any, x: Any, says: Any, probabilities: Any) -> None:
    from scanflow.knowledge.mlflow.mlflow_models import FittedModel

    model, rows = FittedModel(native), FittedModel(native).predict_probabilities(x)
    assert model.predict(x).tolist() == says
    assert (None if rows is None else rows.tolist()) == probabilities
