"""The MNIST tutorial: what its loader accepts and refuses, and, marked slow, its steps run as a backend runs them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from scanflow.app.references import Ref
from scanflow.app.workflow import Workflow
from scanflow.modules import load_module
from tests.integration.tutorial_steps import DATA, LONGEST_STEP_S, TUTORIAL, Steps

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None or find_spec("mlflow") is None, reason="tensorflow or mlflow is not installed"
)


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    return load_module(TUTORIAL / "steps" / "digits.py")


@pytest.fixture(scope="module")
def workflow() -> Workflow:
    train = load_module(TUTORIAL / "app.py").train
    assert isinstance(train, Workflow)
    return train


def pictures(count: int = 20) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def labels(count: int = 20) -> np.ndarray[Any, Any]:
    return np.arange(count) % 10


def npz(folder: Path, **arrays: Any) -> str:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return str(path)


def as_bytes(picture: np.ndarray[Any, Any]) -> bytes:
    return picture.astype(np.uint8).tobytes()


# What is accepted


@needs_sklearn
def test_the_bundled_digits_are_scikit_learns_enlarged(digits: ModuleType) -> None:
    from sklearn.datasets import load_digits

    data, description = digits.load("digits")

    assert "scikit-learn" in description
    assert data.x_train.shape == (1437, 28, 28)
    assert data.x_test.shape == (360, 28, 28)
    assert data.x_train.dtype == data.y_train.dtype == np.uint8
    small, numbers = load_digits(return_X_y=True)
    theirs = Counter(zip(map(as_bytes, small * 255 / 16), numbers.tolist(), strict=True))
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    ours = Counter(zip(map(as_bytes, x[:, 3:27:3, 3:27:3]), y.tolist(), strict=True))
    assert ours == theirs
    again, _ = digits.load("digits")
    assert all(np.array_equal(first, other) for first, other in zip(data, again, strict=True)), "all get the same split"


def test_a_file_that_is_split_already_is_taken_as_it_is(digits: ModuleType, tmp_path: Path) -> None:
    x, y = pictures(), labels()
    path = npz(tmp_path, x_train=x[:15], y_train=y[:15], x_test=x[15:], y_test=y[15:], extra=np.ones(3))

    data, description = digits.load(path)

    assert description == path
    assert np.array_equal(data.x_train, x[:15])
    assert np.array_equal(data.y_test, y[15:])


def test_a_file_of_one_piece_is_split_four_to_one_and_keeps_pictures_with_their_labels(
    digits: ModuleType, tmp_path: Path
) -> None:
    x, y = pictures(50), labels(50)

    data, _ = digits.load(npz(tmp_path, x=x, y=y))

    assert (len(data.x_train), len(data.x_test)) == (40, 10)
    label_of = {picture.tobytes(): number for picture, number in zip(x, y, strict=True)}
    both = [*zip(data.x_train, data.y_train, strict=True), *zip(data.x_test, data.y_test, strict=True)]
    assert len({picture.tobytes() for picture, _ in both}) == 50
    assert all(label_of[picture.tobytes()] == number for picture, number in both)


@pytest.mark.parametrize(
    "convert", [lambda x: x[..., None], lambda x: x.astype(np.int64), lambda x: (x / 255).astype("f4")]
)
def test_other_ways_to_write_the_same_pictures_give_the_same_pictures(
    convert: Any, digits: ModuleType, tmp_path: Path
) -> None:
    plain, _ = digits.load(npz(tmp_path, x=pictures(), y=labels()))
    other, _ = digits.load(npz(tmp_path, x=convert(pictures()), y=labels().astype(np.int32)))

    assert all(np.array_equal(first, two) for first, two in zip(plain, other, strict=True))


# What is refused


def bad(**changes: Any) -> dict[str, Any]:
    return {"x": pictures(), "y": labels(), **changes}


def with_nan() -> np.ndarray[Any, Any]:
    x = pictures() / 255
    x[7, 3, 3] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pictures(), "y": labels()}, ["images, y", "x_train, y_train, x_test, y_test", "x and y"]),
        ({}, ["(none)"]),
        ({"x_train": pictures(), "y_train": labels()}, ["x_train, y_train; it must have"]),
        (bad(x=pictures().reshape(20, 784)), ["(20, 784)", "(n, 28, 28)"]),
        (bad(x=np.zeros((20, 32, 32), np.uint8)), ["(20, 32, 32)"]),
        (bad(x=np.zeros((20, 28, 28, 3), np.uint8)), ["(20, 28, 28, 3)"]),
        (bad(y=labels(19)), ["(19,)", "(20,)"]),
        (bad(y=np.eye(10)[labels()]), ["(20, 10)", "(20,)"]),
        (bad(x=pictures(0), y=labels(0)), ["empty"]),
        (bad(x=pictures(1), y=labels(1)), ["one picture"]),
        (bad(x=with_nan()), ["NaN", "1 of 20", "first in 7"]),
        (bad(x=pictures() / 1.0), ["float64 from 0 to 255"]),
        (bad(x=pictures().astype(np.int16) - 9), ["from -9 to 246"]),
        (bad(x=pictures().astype(np.int32) * 9), ["to 2295"]),
        (bad(x=pictures() // 255), ["all pictures are black"]),
        (bad(x=np.zeros((20, 28, 28))), ["all pictures are black"]),
        (bad(x=pictures() > 9), ["bool"]),
        (bad(x=np.full((20, 28, 28), "a")), ["<U1"]),
        (bad(x=np.full((20, 28, 28), None)), ["cannot be read", "numpy.savez"]),
        (bad(x=np.float64(3)), ["shape ()"]),
        (bad(y=labels() / 1.0), ["float64", "integers from 0 to 9"]),
        (bad(y=labels() + 1), ["1 to 10"]),
        (bad(y=labels() - 1), ["-1 to 8"]),
        (bad(x_train=pictures(), y_train=labels(), x_test=pictures() / 1.0, y_test=labels()), ["x_test"]),
    ],
)
def test_bad_arrays_are_refused_with_the_file_and_the_fault(
    arrays: Mapping[str, Any], message: list[str], digits: ModuleType, tmp_path: Path
) -> None:
    path = npz(tmp_path, **arrays)

    with pytest.raises(digits.BadDataError) as refused:
        digits.load(path)

    assert path in str(refused.value)
    assert [words for words in message if words not in str(refused.value)] == []


def save_arrays(write: Any, *arguments: Any, **arrays: Any) -> bytes:
    file = io.BytesIO()
    write(file, *arguments, **arrays)
    return file.getvalue()


WHOLE = save_arrays(np.savez_compressed, x=pictures(), y=labels())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        WHOLE[:-400],
        WHOLE[:3000],
        WHOLE[:500] + b"\0" * 50 + WHOLE[550:],
        b"\x93NUMPY\x01\x00",
        save_arrays(np.save, pictures()),
    ],
    ids=["empty", "text", "end cut off", "cut in half", "damaged inside", "half an npy", "a single array"],
)
def test_a_damaged_file_is_refused(content: bytes, digits: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)

    with pytest.raises(digits.BadDataError, match=r"data\.npz cannot be read as an \.npz file"):
        digits.load(str(path))


def test_a_file_that_is_not_there_is_named_with_its_whole_path(digits: ModuleType) -> None:
    with pytest.raises(digits.BadDataError, match=f"no file {Path.cwd()}/no/such.npz"):
        digits.load("no/such.npz")


@pytest.mark.parametrize("source", ["", "cifar", "digits.csv", "/tmp"])
def test_an_unknown_source_gets_the_known_ones_listed(source: str, digits: ModuleType) -> None:
    with pytest.raises(digits.BadDataError, match=r"'digits', 'mnist', or the path of a file that ends in \.npz"):
        digits.load(source)


# The application


def test_the_workflow_is_chosen_by_its_data_and_its_champion_served_behind_what_prepares_pictures(
    workflow: Workflow,
) -> None:
    assert [set(wave) for wave in workflow.levels] == [{"load-data"}, {"modeling-cnn1", "modeling-cnn2"}, {"select"}]
    changed = workflow.with_parameters({"data": "mnist"})
    steps = zip(changed.steps, workflow.steps, strict=True)
    assert [step.name for step, before in steps if step != before] == ["load-data"]
    serve = load_module(TUTORIAL / "app.py").serve
    assert serve.levels == (("pictures",), ("cnn",))
    assert serve.by_name["cnn"].model == "models:/mnist_cnn@champion"
    assert serve.by_name["cnn"].instances == 2


# The graph


@pytest.fixture(scope="module")
def reader() -> Any:
    return load_module(TUTORIAL / "serving" / "pictures.py").Pictures()


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x,
        lambda x: x[..., None],
        lambda x: x.reshape(-1, 784),
        lambda x: x / 255,
        lambda x: (x / 255).astype("f4"),
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.float64),
        lambda x: x.tolist(),
    ],
)
def test_pictures_as_people_have_them_become_pictures_as_the_network_knows_them(convert: Any, reader: Any) -> None:
    x = pictures()

    pixels = reader.transform_input(convert(x))

    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, x)
    assert reader.transform_input(x[0]).shape == reader.transform_input(x[0].ravel()).shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 5, 28)), r"this is \(2, 5, 28\)"),
        (np.zeros((2, 2, 28, 28)), r"this is \(2, 2, 28, 28\)"),
        (np.zeros((0, 28, 28)), r"this is \(0, 28, 28\)"),
        (np.float64(3), r"this is \(\)"),
        (pictures() > 9, "this holds bool"),
        (np.full((1, 28, 28), "a"), "this holds <U1"),
        (pictures().astype(np.int16) - 9, "this is from -9 to"),
        (pictures().astype(np.int32) * 2, "this is from 0 to 5"),
    ],
)
def test_what_is_no_picture_is_refused_with_what_one_is(x: Any, message: str, reader: Any) -> None:
    with pytest.raises(ValueError, match=f"A picture is 28x28 .*{message}"):
        reader.transform_input(x)


# The steps, run as a backend runs them


class Runs(Steps):
    def __init__(self, folder: Path, workflow: Workflow, *, tracked: bool = False) -> None:
        super().__init__(folder, tracked=tracked)
        self.workflow = workflow

    def step(self, name: str, **changes: str) -> subprocess.Popen[str]:
        step = next(step for step in self.workflow.steps if step.name == name)
        fields = {key: self.value(value) for key, value in {**step.parameters, **changes}.items()}
        return self.start(str(step.mainfile), name, **fields)

    def value(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.output(str(value.step), value.output)
        if isinstance(value, str) and value.startswith(f"{self.workflow.output_dir}/"):
            return self.folder / value.removeprefix(f"{self.workflow.output_dir}/")
        return value


@needs_sklearn
def test_loading_leaves_four_arrays_and_says_what_they_are(workflow: Workflow, tmp_path: Path) -> None:
    runs = Runs(tmp_path, workflow)

    log = runs.finish(runs.step("load-data"))

    assert "1,437 digits to train on, 360 to test on" in log
    assert runs.output("load-data", "source") == "scikit-learn's digits, enlarged from 8x8 to 28x28"
    assert np.load(tmp_path / "load-data" / "x_train.npy").shape == (1437, 28, 28)


def test_loading_bad_data_fails_with_one_line_and_leaves_nothing(workflow: Workflow, tmp_path: Path) -> None:
    runs = Runs(tmp_path, workflow)

    log = runs.finish(runs.step("load-data", data=npz(tmp_path, pixels=pictures())), fails=True)

    assert log.startswith("Error: ")
    assert log.count("\n") == 1
    assert "pixels" in log
    assert list((tmp_path / "load-data").iterdir()) == []


@pytest.mark.slow
@needs_tensorflow
def test_without_a_network_mnist_says_what_to_use_instead(
    workflow: Workflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")  # where nobody listens

    runs = Runs(tmp_path, workflow)

    log = runs.finish(runs.step("load-data", data="mnist"), fails=True)

    assert "Error: MNIST could not be downloaded" in log
    assert "data=digits" in log


@pytest.fixture(scope="module")
def training_runs(workflow: Workflow, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("mnist"), workflow, tracked=True)
    source = DATA / "mnist_10k.npz"
    runs.finish(runs.step("load-data", data=str(source) if source.is_file() else "digits"))
    runs.finish(runs.step("modeling-cnn1"), runs.step("modeling-cnn2", epochs="1"))  # one good network is enough
    runs.finish(runs.step("select"))
    return runs


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first test waits for four steps, two of which train
@needs_tensorflow
@pytest.mark.filterwarnings("default")
class TestTraining:
    def test_the_better_network_is_good(self, training_runs: Runs) -> None:
        accuracies = [training_runs.output(step, "accuracy") for step in ("modeling-cnn1", "modeling-cnn2")]

        assert training_runs.output("select", "accuracy") == max(accuracies)
        assert max(accuracies) >= (0.97 if (DATA / "mnist_10k.npz").is_file() else 0.93)

    def test_both_networks_are_on_record_with_every_epoch(self, training_runs: Runs) -> None:
        runs = [run for run in training_runs.list_tracked_runs() if "architecture" in run.data.params]

        assert {run.info.run_name for run in runs} == {"modeling-cnn1", "modeling-cnn2"}
        assert {run.data.params["architecture"] for run in runs} == {"lenet", "vgg"}
        for run in runs:
            assert run.info.status == "FINISHED"
            assert run.info.run_name is not None
            assert run.data.params["data"] == run.data.tags["data"] == training_runs.output("load-data", "source")
            assert run.data.metrics["test_accuracy"] == training_runs.output(run.info.run_name, "accuracy")
            history = training_runs.client.get_metric_history(run.info.run_id, "val_accuracy")
            assert [metric.step for metric in history] == list(range(int(run.data.params["epochs"])))
            assert [artifact.path for artifact in training_runs.client.list_artifacts(run.info.run_id)] == [
                "confusion.png"
            ]

    def test_the_champion_in_the_registry_is_the_better_network(self, training_runs: Runs) -> None:
        version = training_runs.client.get_model_version_by_alias("mnist_cnn", "champion")
        best = max(("modeling-cnn1", "modeling-cnn2"), key=lambda step: training_runs.output(step, "accuracy"))
        assert version.source == training_runs.output(best, "model_uri")
        assert version.tags["accuracy"] == f"{training_runs.output(best, 'accuracy'):.4f}"
        assert version.tags["scanflow.run"] == "calm-otter-417"
        training_runs.finish(training_runs.step("select"))
        assert len(training_runs.client.search_model_versions("name='mnist_cnn'")) == 1, "nothing is registered twice"
        dataset = training_runs.list_tracked_runs("tags.`scanflow.kind` = 'dataset'")[0]
        assert dataset.info.run_name == "dataset"
        assert [artifact.path for artifact in training_runs.client.list_artifacts(dataset.info.run_id)] == [
            "dataset.npz"
        ]

    def test_the_champion_answers_raw_pictures_as_well_as_it_was_tested(self, training_runs: Runs) -> None:
        program = (
            "import sys, mlflow, numpy as np\n"
            "model = mlflow.pyfunc.load_model('models:/mnist_cnn@champion')\n"
            "x, y = (np.load(f'{sys.argv[1]}/{name}_test.npy') for name in 'xy')\n"
            "print('accuracy', float((np.asarray(model.predict(x)).argmax(axis=1) == y).mean()))\n"
        )
        answer = subprocess.run(
            [sys.executable, "-c", program, str(training_runs.folder / "load-data")],
            env=os.environ | {"MLFLOW_TRACKING_URI": training_runs.tracking_uri},
            capture_output=True,
            text=True,
            timeout=LONGEST_STEP_S,
            check=True,
        )

        accuracy = float(answer.stdout.rsplit("accuracy", 1)[1])
        assert accuracy == pytest.approx(training_runs.output("select", "accuracy"), abs=1e-9)
