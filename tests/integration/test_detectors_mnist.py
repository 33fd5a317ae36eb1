"""The detectors on the digits of MNIST and MNIST-C, and the tutorial's workflows that detect and retrain.

The file's test pictures are other people's digits than its training pictures, and every detector sees that. So here the
reference and the pictures without drift are both drawn from the test pictures, at random.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.drift.contract import parse_training_outputs
from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.detector_port import FittedDetector
from scanflow.errors import InvalidError, NotFoundError
from tests.integration.tutorial_steps import DATA, TUTORIALS, Project, Steps

KINDS = ("shot_noise", "rotate", "fog", "stripe", "motion_blur", "translate", "canny_edges")

needs_data = pytest.mark.skipif(not (DATA / "mnist_c_2k.npz").is_file(), reason="MNIST-C is not at hand")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
pytestmark = [pytest.mark.endurance, pytest.mark.filterwarnings("default")]

DETECTORS = ("table", pytest.param("autoencoder", marks=needs_tensorflow))


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    """Reference (1500) and clean (500) from the test pictures, and the corruptions of those 500."""
    with np.load(DATA / "mnist_10k.npz") as clean, np.load(DATA / "mnist_c_2k.npz") as drifted:
        order = np.random.default_rng(1).permutation(len(clean["x_test"]))
        reference, new = order[:1500], order[1500:]
        arrays = {name: clean[name] for name in ("x_train", "y_train")}
        arrays |= {"reference": clean["x_test"][reference], "reference_y": clean["y_test"][reference]}
        arrays |= {"clean": clean["x_test"][new], "y": clean["y_test"][new]}
        return arrays | {kind: drifted[kind][new] for kind in KINDS}


@pytest.fixture(scope="module", params=DETECTORS)
def fitted_detector(request: pytest.FixtureRequest, digits: dict[str, Any]) -> FittedDetector:
    return catalogue.make(request.param, generator=np.random.default_rng(7)).fit(digits["reference"])


@needs_data
def test_digits_of_the_same_people_raise_no_alarm(fitted_detector: FittedDetector, digits: dict[str, Any]) -> None:
    scores = fitted_detector.score(digits["clean"])

    assert not scores.drifted
    assert len(scores.outliers) <= 45  # of 500: the autoencoder is made to call 5 % so, the others 1 %
    assert scores.p_value is not None
    assert scores.p_value > 0.01


@needs_data
@pytest.mark.parametrize("kind", KINDS)
def test_each_corruption_is_distinguished_from_clean_digits(
    kind: str, fitted_detector: FittedDetector, digits: dict[str, Any]
) -> None:
    scores = fitted_detector.score(digits[kind])

    assert scores.drifted
    assert scores.p_value is not None
    assert scores.p_value < 1e-4


@needs_data
@needs_tensorflow
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_corrupted_digits_that_were_learnt_are_a_known_regime(share: float, digits: dict[str, Any]) -> None:
    reference = np.concatenate([digits["reference"][:1000], digits["fog"][:250]])
    detector = catalogue.make("default", generator=np.random.default_rng(7), options={"level": 0.01})
    fitted = catalogue.fit(detector, reference, regimes=np.repeat([0, 1], [1000, 250]))
    count = round(share * 250)

    scores = fitted.score(np.concatenate([digits["fog"][250 : 250 + count], digits["clean"][: 250 - count]]))

    assert not scores.drifted
    assert fitted.score(digits["stripe"][:250]).drifted


def autoencoder(**options: Any) -> Any:
    return catalogue.make("autoencoder", generator=np.random.default_rng(7), options={"epochs": 1, **options})


@needs_data
@needs_tensorflow
class TestAutoencoder:
    def test_the_same_generator_gives_the_same_detector_and_a_saved_one_says_the_same(
        self, digits: dict[str, Any], tmp_path: Path
    ) -> None:
        fitted, again = (autoencoder().fit(digits["reference"][:300]) for _ in range(2))
        fitted.save(tmp_path / "detector")

        scores, other = fitted.score(digits["fog"]), catalogue.load(tmp_path / "detector").score(digits["fog"])

        assert other.values == pytest.approx(scores.values, rel=1e-5)
        assert (other.statistic, other.threshold, other.p_value) == (scores.statistic, scores.threshold, scores.p_value)
        order = np.random.default_rng(0).permutation(500)
        assert fitted.score(digits["fog"][order]).values == pytest.approx(scores.values[order], rel=1e-4)
        assert again.score(digits["fog"]).values == pytest.approx(scores.values, rel=1e-3)
        (tmp_path / "detector" / "autoencoder.keras").unlink()
        with pytest.raises(NotFoundError, match=r"has no autoencoder\.keras"):
            catalogue.load(tmp_path / "detector")

    def test_bad_input_is_refused_before_anything_is_trained(self, digits: dict[str, Any]) -> None:
        for detector, reference, message in [
            (autoencoder(), np.random.default_rng(0).random((200, 10)), "Use the detector 'table'"),
            (autoencoder(), digits["reference"][:99], "at least 100"),
            (autoencoder(), np.ones((200, 28, 28)), "nothing to learn"),
            (autoencoder(held_share=2), digits["reference"], "held_share=2"),
            (autoencoder(epochs=0), digits["reference"], "epochs=0"),
        ]:
            with pytest.raises(InvalidError, match=message):
                detector.fit(reference)
        fitted = autoencoder().fit(digits["reference"][:200])
        for batch, message in [
            (digits["clean"][:0], "has 0 samples"),
            (np.ones((5, 32, 32)), "those of the reference"),
        ]:
            with pytest.raises(InvalidError, match=message):
                fitted.score(batch)


@pytest.fixture(scope="module")
def project(digits: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tutorial with a champion that has learnt for two epochs, and what it was trained on."""
    project = Project(tmp_path_factory.mktemp("loop"), TUTORIALS / "mnist" / "loop.py")
    paths = {}
    names = {"x_train": "x_train", "y_train": "y_train", "x_test": "reference", "y_test": "reference_y"}
    for name, key in names.items():
        paths[f"{name}_path"] = str(project.folder / f"{name}.npy")
        np.save(paths[f"{name}_path"], digits[key])
    step = Steps(project.folder, environment=project.environment)
    step.finish(step.start("steps/modeling.py", "modeling", epochs=2, **paths))
    model = step.output("modeling", "model_uri")
    train = {name: digits[name] for name in ("x_train", "y_train")}
    reference_arrays = {
        "x_clean": digits["reference"],
        "y_clean": digits["reference_y"],
        "x_reference": digits["reference"],
    }
    np.savez(project.folder / "dataset.npz", **train, **reference_arrays)
    step.finish(
        step.start(
            "steps/selectmodel.py",
            "select",
            accuracy_cnn1=0.9,
            model_cnn1=model,
            accuracy_cnn2=0.0,
            model_cnn2=model,
            dataset_path=project.folder / "dataset.npz",
        )
    )
    return project


@needs_data
@needs_tensorflow
@needs_mlflow
@pytest.mark.timeout(1200)  # each trains, on a machine that may be busy
class TestSteps:
    def test_corrupted_digits_are_detected_and_learnt_from_and_clean_ones_are_read_as_well(
        self, project: Project, digits: dict[str, Any]
    ) -> None:
        new = np.concatenate([digits[kind][at::7] for at, kind in enumerate(KINDS)])
        truth = np.concatenate([digits["y"][at::7] for at in range(len(KINDS))])
        batch = project.log_predictions({"input:x": new}, "new")
        detection = project.run("detector", "window", run_ids=[batch], detector="table")
        assert detection["drifted"] == 1
        assert 200 <= detection["n_evaluation"] <= 250
        assert detection["n_picked"] > 400
        points = json.loads((project.folder / "window" / "picked.json").read_text())
        with np.load(project.folder / "window" / "picked.npz") as picked:
            assert np.array_equal(picked["x"], new[picked["index"]])
            assert picked["x"].dtype == np.uint8
            wrong = picked["guess"] != truth[picked["index"]]
            train = picked["purpose"] == "train"
            first = np.argsort(-np.where(train, picked["score"], 0.0))[:60]
        assert wrong[first].mean() > wrong[~train].mean() + 0.05, "what is worth most is what the champion misreads"
        assert all(point["run"] == batch and 0 <= point["score"] <= 1 for point in points)

        labels, _ = project.label_points("window", lambda at: int(truth[at]), [])
        outputs = parse_training_outputs(project.run("training", "retrain", labels=labels))
        assert outputs is not None
        current, clean = outputs.slices
        assert (outputs.version, outputs.champion_version, current.n) == (2, 1, detection["n_evaluation"])
        assert outputs.challenger_accuracy > outputs.champion_accuracy
        assert clean.challenger_right > clean.champion_right - 0.01 * clean.n

    def test_clean_digits_give_nothing_to_label_and_the_class_prior_compares_predictions(
        self, project: Project, digits: dict[str, Any]
    ) -> None:
        clean = project.log_predictions({"input:x": digits["clean"]}, "clean")
        quiet = project.run("detector", "quiet", run_ids=[clean], detector="table")
        assert quiet["n_picked"] == quiet["drifted"] == 0
        x, y = digits["reference"], digits["reference_y"]
        ones = project.log_predictions({"input:x": np.concatenate([x[y == 1], x[y != 1][:100]])}, "ones")
        assert project.run("detector", "prior", run_ids=[ones], detector="prior")["drifted"] == 1
        with pytest.raises(InvalidError, match="does not accept these options"):
            project.run("detector", "told", run_ids=[clean], detector="table", options={"speed": 1})
