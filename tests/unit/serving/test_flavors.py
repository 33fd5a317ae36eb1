"""Models of the registry, as MLflow saves them: opened by their own libraries, checked, warmed up and asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.errors import InvalidError, MissingExtraError, NotFoundError, ScanflowError, UnsupportedError
from scanflow.installation import explain_install
from scanflow.instance_messages import ModelFiles, Node, Revision
from scanflow_serving.flavors import open_model
from scanflow_serving.inference_problems import ProblemError
from tests.unit.serving.serving_harness import instance, make_desired_state, node, write_class
from tests.waiting import patient

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

X = np.array([[0.1, 1.0], [0.9, 0.0], [0.2, 0.8], [0.8, 0.1]])
Y = np.array([0, 1, 0, 1])


def files(folder: Path, version: int = 1) -> ModelFiles:
    return ModelFiles(name="iris", version=version, path=str(folder))


def open_from(folder: Path, **parameters: Any) -> Any:
    return open_model(files(folder), parameters, threads=1)


def save(folder: Path, flavor: str, model: Any, example: Any, result: Any, **options: Any) -> Path:
    import mlflow
    from mlflow.models import infer_signature

    signature = infer_signature(example, result) if example is not None else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(mlflow, flavor).save_model(model, str(folder), signature=signature, pip_requirements=[], **options)
    return folder


def classifier() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(X, Y)


@pytest.fixture(scope="module")
def sklearn_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "sk", "sklearn", classifier(), X, Y)


@pytest.fixture(scope="module")
def onnx_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx import TensorProto, helper

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 2])

    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Mul", ["a", "b"], ["product"])]
    graph = helper.make_graph(nodes, "g", [info("a"), info("b")], [info("sum"), info("product")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    example = {name: np.ones((1, 2), np.float32) for name in "ab"}
    return save(tmp_path_factory.mktemp("models") / "onnx", "onnx", model, example, np.ones((1, 2), np.float32))


@pytest.mark.parametrize("kind", ["skops", "cloudpickle", "pickle"])
def test_an_estimator_is_opened_as_it_was_saved(tmp_path: Path, kind: str) -> None:
    model = open_from(save(tmp_path / "m", "sklearn", classifier(), X, Y, serialization_format=kind))
    assert model.platform == "sklearn"
    assert model.predict(X).tolist() == [0, 1, 0, 1]
    assert str(model.signature.inputs[0]) == "FP64 [-1, 2]"
    assert str(model.signature.outputs[0]) == "INT64 [-1]"


def test_probabilities_are_given_where_they_are_requested_or_saved(sklearn_model: Path, tmp_path: Path) -> None:
    assert open_from(sklearn_model, predict_proba=True).predict(X).shape == (4, 2)
    folder = save(tmp_path / "m", "sklearn", classifier(), X, Y, pyfunc_predict_fn="predict_proba")
    assert open_from(folder).predict(X).shape == (4, 2)
    assert open_from(folder, predict_proba=False).predict(X).shape == (4,)


def test_columns_are_put_together_in_the_order_of_the_signature(tmp_path: Path) -> None:
    import pandas as pd
    from sklearn.linear_model import LogisticRegression

    frame = pd.DataFrame(X, columns=["a", "b"])
    model = open_from(save(tmp_path / "m", "sklearn", LogisticRegression().fit(frame, Y), frame, Y))
    assert model.signature.table
    assert model.predict({"b": X[:, 1:], "a": X[:, 0]}).tolist() == [0, 1, 0, 1]
    assert model.predict(X).tolist() == [0, 1, 0, 1]


def test_columns_keep_their_names_where_a_pipeline_needs_them(tmp_path: Path) -> None:
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "colour": ["red", "blue", "red", "blue"]})
    encode = ColumnTransformer([("c", OneHotEncoder(handle_unknown="ignore"), ["colour"])], remainder="passthrough")
    pipeline = make_pipeline(encode, LogisticRegression()).fit(frame, [0, 1, 0, 1])
    model = open_from(save(tmp_path / "m", "sklearn", pipeline, frame, Y, serialization_format="cloudpickle"))
    colours = np.array([b"red", b"blue"], dtype=object)
    assert model.predict({"size": np.array([1.0, 4.0]), "colour": colours}).tolist() == [0, 1]


def test_an_onnx_model_says_itself_what_it_takes(onnx_model: Path) -> None:
    model = open_from(onnx_model)
    assert model.platform == "onnxruntime"
    assert [f"{spec.name} {spec}" for spec in model.signature.inputs] == ["a FP32 [-1, 2]", "b FP32 [-1, 2]"]
    result = model.predict({"a": np.ones((1, 2), "f4"), "b": np.full((1, 2), 3.0)})
    assert {name: array.tolist() for name, array in result.items()} == {"sum": [[4, 4]], "product": [[3, 3]]}


def test_an_onnx_model_of_bfloat16_answers_as_the_reference_does(tmp_path: Path) -> None:
    import ml_dtypes
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [None, 3])

    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "wide"], ["square"]),
        helper.make_node("Cast", ["square"], ["y"], to=TensorProto.BFLOAT16),
    ]
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    model = open_from(save(tmp_path / "m", "onnx", proto, None, None))
    assert [f"{spec.name} {spec}" for spec in model.signature.inputs] == ["x FP32 [-1, 3]"]
    rows = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    right = ReferenceEvaluator(proto).run(None, {"x": rows.astype(ml_dtypes.bfloat16)})[0]  # type: ignore[index]
    np.testing.assert_array_equal(model.predict(rows), np.asarray(right).astype(np.float32))
    with pytest.raises(ProblemError, match="too large for bfloat16"):
        model.predict(np.array([[3.4e38, 1.0, 1.0]], np.float32))


def save_function(folder: Path, function: Callable[[Any], Any], example: Any) -> Path:
    from mlflow import pyfunc
    from mlflow.models import infer_signature

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyfunc.save_model(
            str(folder), python_model=function, signature=infer_signature(example, example), pip_requirements=[]
        )
    return folder


def test_whatever_mlflow_can_load_is_loaded_by_it(tmp_path: Path) -> None:
    model = open_from(save_function(tmp_path / "m", lambda model_input: model_input * 2, X))
    assert model.platform == "pyfunc"
    assert model.predict(X).tolist() == (X * 2).tolist()


def test_a_table_goes_through_mlflow_with_its_names(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1.5, 2.5]})
    model = open_from(save_function(tmp_path / "m", lambda model_input: model_input.rename(columns={"a": "b"}), frame))
    assert model.predict({"a": np.array([1.0])})["b"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda folder: (folder / "MLmodel").unlink(), NotFoundError, "no file 'MLmodel'"),
        (lambda folder: (folder / "MLmodel").write_text("{"), InvalidError, "cannot be read"),
        (lambda folder: (folder / "MLmodel").write_text("a: 1"), InvalidError, "names no flavors"),
        (
            lambda folder: (folder / "MLmodel").write_text("flavors: {sklearn: {pickled_model: no.pkl}}"),
            Exception,
            "no.pkl",
        ),
        (
            lambda folder: (folder / "MLmodel").write_text("flavors: {sklearn: {serialization_format: tar}}"),
            UnsupportedError,
            "Known: skops",
        ),
    ],
)
def test_a_folder_that_holds_no_model_is_refused(
    sklearn_model: Path, tmp_path: Path, change: Callable[[Path], Any], kind: type[Exception], words: str
) -> None:
    import shutil

    folder = Path(shutil.copytree(sklearn_model, tmp_path / "m"))
    change(folder)
    with pytest.raises(kind) as caught:
        open_from(folder)
    assert words in str(caught.value)


def test_a_parameter_that_a_model_has_not_is_refused(sklearn_model: Path, onnx_model: Path) -> None:
    with pytest.raises(InvalidError, match="Did you mean 'predict_proba'"):
        open_from(sklearn_model, predict_prob=True)
    with pytest.raises(InvalidError, match="of the flavor 'onnx' takes none"):
        open_from(onnx_model, threads=3)


def test_a_library_that_is_missing_is_named(sklearn_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(MissingExtraError, match=re.escape(explain_install(package="skops"))):
        open_from(sklearn_model)


def test_pickles_are_not_read_where_that_is_forbidden(sklearn_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(UnsupportedError, match="MLFLOW_ALLOW_PICKLE_DESERIALIZATION"):
        open_from(sklearn_model)


@pytest.mark.processes
def test_opening_a_model_by_its_own_library_imports_no_mlflow(sklearn_model: Path, onnx_model: Path) -> None:
    code = (
        "import sys\nfrom scanflow.instance_messages import ModelFiles\n"
        "from scanflow_serving.flavors import open_model\n"
        "for path in sys.argv[1:]:\n    open_model(ModelFiles(name='m', version=1, path=path), {}, threads=1)\n"
        "print(sorted({'mlflow', 'tensorflow', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(sklearn_model), str(onnx_model)],
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=True,
    )
    assert done.stdout.strip() == "[]"


def ask(data: list[list[float]], shape: list[int] | None = None, datatype: str = "FP64") -> bytes:
    flat = [value for row in data for value in row]
    described = {"name": "x", "datatype": datatype, "shape": shape or [len(data), len(data[0])], "data": flat}
    return json.dumps({"inputs": [described]}).encode()


async def test_a_model_is_served_with_its_version_and_its_signature(sklearn_model: Path, tmp_path: Path) -> None:
    async with instance(tmp_path, Node(name="iris", model=files(sklearn_model, version=3))) as here:
        answer = await here.ask("/v2/models/iris/infer", ask(X.tolist()))
        assert answer.outputs == [[0, 1, 0, 1]]
        assert answer.json["model_version"] == "3"
        assert (await here.ask("/v2/models/iris/versions/3")).json["platform"] == "sklearn"
        assert (await here.ask("/v2/models/wf")).json["inputs"][0]["shape"] == [-1, 2]
        for body, words in (
            (ask([[1, 2, 3]]), "declared as FP64 [-1, 2], but is FP64 [1, 3]"),
            (ask([[1, 2]], datatype="FP32"), "is FP32 [1, 2]"),
        ):
            refused = await here.ask("/v2/models/wf/infer", body)
            assert (refused.status, words in refused.detail) == (400, True)
        seldon = await here.ask("/api/v1.0/predictions", json.dumps({"data": {"ndarray": [[1, 0]]}}).encode())
        assert seldon.json["data"]["ndarray"] == [1]
        seldon = await here.ask("/api/v1.0/predictions", json.dumps({"data": {"ndarray": [[1]]}}).encode())
        assert (seldon.status, "FP64 [-1, 2]" in seldon.detail) == (422, True)


async def test_a_poisoned_version_changes_nothing(sklearn_model: Path, tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "MLmodel").write_text((sklearn_model / "MLmodel").read_text())
    (poison / "model.skops").write_bytes(b"garbage")

    async with instance(tmp_path, Node(name="iris", model=files(sklearn_model))) as here:
        bad = Revision(id="r2", nodes=(Node(name="iris", model=files(poison, version=2)),))
        with pytest.raises(ScanflowError, match="The node 'iris' cannot be loaded"):
            await here.application.apply(make_desired_state(bad, generation=2))
        assert (await here.ask("/v2/models/wf/infer", ask(X.tolist()))).outputs == [[0, 1, 0, 1]]


async def test_a_transformer_may_come_before_a_model(onnx_model: Path, tmp_path: Path) -> None:
    path = write_class(
        tmp_path, "class Prepare:\n    def transform_input(self, X):\n        return {'a': X, 'b': X + 1.0}\n"
    )

    nodes = [
        node("prepare", path, "Prepare", role="TRANSFORMER"),
        Node(name="add", model=files(onnx_model), parents=("prepare",)),
    ]
    async with instance(tmp_path, *nodes) as here:
        answer = await here.ask("/v2/models/wf/infer", ask([[1, 2]]))
        assert answer.outputs == [[3, 5], [2, 6]]
        refused = await here.ask("/v2/models/wf/infer", ask([[1, 2, 3]]))
        assert (refused.status, "takes FP32 [-1, 2], but got float64 [1, 3]" in refused.detail) == (422, True)


KERAS = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, keras, mlflow
from mlflow.models import infer_signature
inputs = keras.Input((3,), name="image")
model = keras.Model(inputs, [keras.layers.Dense(2, name="y")(inputs)])
x = np.ones((1, 3), "float32")
signature = infer_signature(x, model.predict(x, verbose=0))
for flavor in ("keras", "tensorflow"):
    getattr(mlflow, flavor).save_model(model, sys.argv[1] + flavor, signature=signature, pip_requirements=[])
np.save(sys.argv[1] + "expected.npy", model.predict(np.arange(6, dtype="float32").reshape(2, 3), verbose=0))
"""

SERVE_KERAS = """
import asyncio, json, sys, time
from pathlib import Path
import numpy as np
from scanflow.instance_messages import ModelFiles, Node
from tests.unit.serving.serving_harness import instance
async def main(flavor):
    folder = Path(sys.argv[1] + flavor)
    node = Node(name="net", model=ModelFiles(name="net", version=1, path=str(folder)))
    async with instance(folder, node) as here:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": list(range(6))}]}
        answer = await here.ask("/v2/models/net/infer", json.dumps(body).encode())
        expected = np.load(sys.argv[1] + "expected.npy")
        np.testing.assert_allclose(np.reshape(answer.outputs[0], (2, 2)), expected, rtol=1e-4)
        traces = here.application.revisions.loaded["r1"].components["net"]
        print(answer.json["outputs"][0]["datatype"], traces.platform, "mlflow" in sys.modules)
for flavor in ("keras", "tensorflow"):
    asyncio.run(main(flavor))
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_keras_model_is_served_without_mlflow(tmp_path: Path) -> None:
    messages: list[str] = []
    for code in (KERAS, SERVE_KERAS):
        done = subprocess.run(
            [sys.executable, "-c", code, f"{tmp_path}/"],
            capture_output=True,
            text=True,
            timeout=patient(240),
            check=False,
            cwd=Path(__file__).resolve().parents[3],
        )
        assert done.returncode == 0, done.stderr[-3000:]
        messages = done.stdout.splitlines()
    assert messages[-2:] == ["FP32 tensorflow False"] * 2
