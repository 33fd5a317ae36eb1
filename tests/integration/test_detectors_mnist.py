"""The detectors on the digits of MNIST and MNIST-C, and the tutorial's steps that detect and retrain, run as scripts.

The file's test pictures are other people's digits than its training pictures, and every detector sees that. So here the
reference and the pictures without drift are both drawn from the test pictures, at random.
"""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.port import Fitted
from scanflow.errors import InvalidError, NotFoundError
from tests.integration.tutorial_steps import DATA, Steps

KINDS = ("shot_noise", "rotate", "fog", "stripe", "motion_blur", "translate", "canny_edges")

needs_data = pytest.mark.skipif(not (DATA / "mnist_c_2k.npz").is_file(), reason="MNIST-C is not at hand")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
pytestmark = [pytest.mark.endurance, pytest.mark.filterwarnings("default")]

DETECTORS = ("ks", "psi", "mmd", pytest.param("autoencoder", marks=needs_tensorflow))
CANNOT = {("autoencoder", "motion_blur")}
"""Blurred pictures are easier to reconstruct than sharp ones: none of them is an outlier."""


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    """Reference (1500) and clean (500) from the test pictures, and the corruptions of those 500."""
    with np.load(DATA / "mnist_10k.npz") as clean, np.load(DATA / "mnist_c_2k.npz") as drifted:
        order = np.random.default_rng(1).permutation(len(clean["x_test"]))
        known, new = order[:1500], order[1500:]
        arrays = {name: clean[name] for name in ("x_train", "y_train")}
        arrays |= {"reference": clean["x_test"][known], "reference_y": clean["y_test"][known]}
        arrays |= {"clean": clean["x_test"][new], "y": clean["y_test"][new]}
        return arrays | {kind: drifted[kind][new] for kind in KINDS}


@pytest.fixture(scope="module", params=DETECTORS)
def fitted(request: pytest.FixtureRequest, digits: dict[str, Any]) -> tuple[str, Fitted]:
    detector = catalogue.make(request.param, generator=np.random.default_rng(7))
    return request.param, detector.fit(digits["reference"])


@needs_data
def test_digits_of_the_same_people_raise_no_alarm(fitted: tuple[str, Fitted], digits: dict[str, Any]) -> None:
    _, detector = fitted

    scores = detector.score(digits["clean"])

    assert not scores.drifted
    assert len(scores.outliers) <= 45  # of 500: the autoencoder is made to call 5 % so, the others 1 %
    assert scores.p_value is not None
    assert scores.p_value > 0.01


@needs_data
@pytest.mark.parametrize("kind", KINDS)
def test_each_corruption_is_told_from_clean_digits(
    kind: str, fitted: tuple[str, Fitted], digits: dict[str, Any]
) -> None:
    name, detector = fitted

    clean, drifted = detector.score(digits["clean"]), detector.score(digits[kind])

    assert drifted.drifted == ((name, kind) not in CANNOT)
    if drifted.drifted:
        assert drifted.statistic > 1.5 * clean.statistic
        assert drifted.p_value is not None
        assert drifted.p_value < 0.01


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

        one, other = fitted.score(digits["fog"]), catalogue.load(tmp_path / "detector").score(digits["fog"])

        assert other.values == pytest.approx(one.values, rel=1e-5)
        assert (other.statistic, other.threshold, other.p_value) == (one.statistic, one.threshold, one.p_value)
        order = np.random.default_rng(0).permutation(500)
        assert fitted.score(digits["fog"][order]).values == pytest.approx(one.values[order], rel=1e-4)
        assert again.score(digits["fog"]).values == pytest.approx(one.values, rel=1e-3)
        (tmp_path / "detector" / "autoencoder.keras").unlink()
        with pytest.raises(NotFoundError, match=r"has no autoencoder\.keras"):
            catalogue.load(tmp_path / "detector")

    def test_bad_input_is_refused_before_anything_is_trained(self, digits: dict[str, Any]) -> None:
        for made, reference, said in [
            (autoencoder(), np.random.default_rng(0).random((200, 10)), "multiples of 4"),
            (autoencoder(), digits["reference"][:99], "at least 100"),
            (autoencoder(), np.ones((200, 28, 28)), "nothing to learn"),
            (autoencoder(quantile=2), digits["reference"], "quantile=2"),
            (autoencoder(epochs=0), digits["reference"], "epochs=0"),
        ]:
            with pytest.raises(InvalidError, match=said):
                made.fit(reference)
        fitted = autoencoder().fit(digits["reference"][:200])
        for batch, said in [(digits["clean"][:0], "has 0 samples"), (np.ones((5, 32, 32)), "those of the reference")]:
            with pytest.raises(InvalidError, match=said):
                fitted.score(batch)


# The tutorial's steps


class Loop(Steps):
    def save(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.npy")

    def run(self, script: str, step: str, **parameters: object) -> str:
        return self.finish(self.start(script, step, **parameters))

    def detect(self, step: str, new: str, **parameters: object) -> subprocess.Popen[str]:
        paths = {"reference_path": self.path("x_test"), "new_path": self.path(new)}
        return self.start("detect.py", step, **{**paths, **parameters})


@pytest.fixture(scope="module")
def steps(digits: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Loop:
    made = Loop(tmp_path_factory.mktemp("loop"), tracked=True)
    new = np.concatenate([digits[kind][at::14] for at, kind in enumerate(KINDS)])
    later = np.concatenate([digits[kind][at + 7 :: 14] for at, kind in enumerate(KINDS)])
    made.save(
        x_train=digits["x_train"],
        y_train=digits["y_train"],
        x_test=digits["reference"],
        y_test=digits["reference_y"],
        new=new,
        new_y=np.concatenate([digits["y"][at::14] for at in range(7)]),
        later=later,
        later_y=np.concatenate([digits["y"][at + 7 :: 14] for at in range(7)]),
    )
    made.run("steps/modeling.py", "modeling", epochs=2, **slices(made))
    return made


def slices(steps: Loop) -> dict[str, str]:
    return {f"{name}_path": steps.path(name) for name in ("x_train", "y_train", "x_test", "y_test")}


@pytest.fixture(scope="module")
def detected(steps: Loop) -> Loop:
    model = steps.output("modeling", "model_uri")
    steps.finish(steps.detect("detect", "new", model_uri=model, detector="ks", predicted_in="run-1", picks=100))
    with np.load(steps.folder / "detect" / "picked.npz") as picked:
        labels = np.load(steps.path("new_y"))[picked["index"]]
        np.savez(steps.folder / "labelled.npz", x=picked["x"], y=labels)
    return steps


@needs_data
@needs_tensorflow
@needs_mlflow
class TestSteps:
    def test_detect_leaves_outliers_points_and_figures(self, detected: Loop) -> None:
        folder, new = detected.folder / "detect", np.load(detected.path("new"))
        metrics = json.loads((folder / "metrics.json").read_text())

        assert metrics["n_newdata"] == len(new) == detected.output("detect", "n_newdata")
        assert metrics["drifted"] == detected.output("detect", "drifted") == 1
        assert metrics["n_picked"] == 100
        with np.load(folder / "outliers.npz") as outliers:
            assert metrics["n_anomalies"] == len(outliers["index"]) > 50
            assert np.array_equal(outliers["x"], new[outliers["index"]])
        with np.load(folder / "picked.npz") as picked:
            assert np.array_equal(picked["x"], new[picked["index"]])
            assert len(set(picked["id"].tolist())) == 100
            assert set(picked["guess"].tolist()) <= set(range(10))
            wrong = picked["guess"] != np.load(detected.path("new_y"))[picked["index"]]
            assert wrong.mean() > 0.25  # of all new pictures it misreads less than a fifth
        points = json.loads((folder / "picked.json").read_text())
        assert all(point["run"] == "run-1" and 0 <= point["score"] <= 1 for point in points)
        assert catalogue.load(folder / "detector").score(new).drifted

        (run,) = detected.tracked("tags.predicted_in = 'run-1'")
        assert (run.info.run_name, run.data.metrics["n_picked"]) == ("detect", 100)
        assert "picked.npz" in {artifact.path for artifact in detected.client.list_artifacts(run.info.run_id)}

    def test_retraining_reads_drifted_digits_better_and_clean_ones_as_well(self, detected: Loop) -> None:
        parameters: dict[str, object] = {
            "model_uri": detected.output("modeling", "model_uri"),
            "picked_path": detected.folder / "labelled.npz",
            "x_drifted_path": detected.path("later"),
            "y_drifted_path": detected.path("later_y"),
            **slices(detected),
        }
        detected.run("retrain.py", "retrain", **parameters)

        metrics = json.loads((detected.folder / "retrain" / "metrics.json").read_text())
        assert metrics["challenger_drifted"] > metrics["champion_drifted"] + 0.02
        assert metrics["challenger_clean"] > metrics["champion_clean"] - 0.005
        assert metrics["challenger_accuracy"] == detected.output("retrain", "challenger_accuracy")
        assert metrics["champion_accuracy"] == detected.output("retrain", "champion_accuracy")
        assert metrics["challenger_accuracy"] > metrics["champion_accuracy"]
        assert detected.output("retrain", "version") == 1

        # Run once more, as after an interruption: no second version.
        detected.run("retrain.py", "retrain", epochs=1, **parameters)
        assert detected.output("retrain", "version") == 1

    def test_without_drifted_pictures_to_judge_by_some_points_are_kept(self, detected: Loop) -> None:
        log = detected.run(
            "retrain.py",
            "kept",
            model_uri=detected.folder / "retrain" / "model.keras",
            model_name="",
            picked_path=detected.folder / "labelled.npz",
            epochs=1,
            train_size=500,
            **slices(detected),
        )

        assert "challenger" in log
        assert not (detected.folder / "kept" / ".outputs" / "version").exists()

    def test_clean_digits_give_nothing_to_label(self, steps: Loop, digits: dict[str, Any]) -> None:
        steps.save(clean=digits["clean"])
        assert "no drift" in steps.finish(steps.detect("clean", "clean", detector="psi"))
        assert steps.output("clean", "n_picked") == steps.output("clean", "drifted") == 0

    def test_the_class_prior_compares_what_the_model_says(self, steps: Loop) -> None:
        new, labels = np.load(steps.path("x_test")), np.load(steps.path("y_test"))
        steps.save(ones=np.concatenate([new[labels == 1], new[labels != 1][:100]]))
        model = steps.output("modeling", "model_uri")
        steps.finish(steps.detect("prior", "ones", detector="prior", model_uri=model))
        assert steps.output("prior", "drifted") == 1

    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({"new_path": "nothere.npy"}, "Error: nothere.npy cannot be read"),
            ({"new_path": "y_train.npy", "detector": "ks"}, "Error: The batch's samples have the shape ()"),
            ({"detector": "kss"}, "invalid choice: 'kss'"),
            ({"detector": "prior"}, "give the --model_uri"),
            ({"detector": "ks", "options": '{"speed": 1}'}, "cannot have these options"),
        ],
    )
    def test_what_cannot_be_compared_is_told(self, steps: Loop, parameters: dict[str, str], words: str) -> None:
        assert words in steps.finish(steps.detect("told", "new", **parameters), fails=True)

    def test_points_without_labels_are_told(self, steps: Loop) -> None:
        np.savez(steps.folder / "unlabelled.npz", x=np.load(steps.path("new"))[:5])
        given = {"model_uri": steps.output("modeling", "model_uri"), "picked_path": steps.folder / "unlabelled.npz"}

        log = steps.finish(steps.start("retrain.py", "told", **given, **slices(steps)), fails=True)

        assert "Write the labels of the picked points as y." in log
