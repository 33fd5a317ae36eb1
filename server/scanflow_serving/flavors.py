"""Loads models of the registry from the folder of their ``MLmodel``, by their own library where that is faster than
MLflow's wrapper."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError, MissingExtraError, NotFoundError, UnsupportedError, did_you_mean
from scanflow.installation import explain_install
from scanflow.wire import ModelFiles
from scanflow_serving.components import Predictor
from scanflow_serving.results import to_tensors
from scanflow_serving.signature import NodeSignature, TensorSpec, parse_dtype, read_mlmodel_signature
from scanflow_serving.tensors import DATATYPES

_PARAMETERS: Final = {"sklearn": ("predict_proba",)}
_ONNX: Final = {f"tensor({dtype.name})": datatype for datatype, dtype in DATATYPES.items()} | {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


def open_model(files: ModelFiles, parameters: Mapping[str, Any], *, threads: int) -> Predictor:
    """Open a model and warm it up with zeros if its inputs are declared."""
    who = f"The model {files.name!r}, version {files.version},"
    folder = Path(files.path)
    mlmodel = _read_mlmodel(folder, who)
    flavors: Mapping[str, Any] = mlmodel.get("flavors") or {}
    declared = read_mlmodel_signature(mlmodel.get("signature"), who)
    flavor = _choose_flavor(flavors, folder)
    allowed = _PARAMETERS.get(flavor, ())
    if unknown := next((name for name in parameters if name not in allowed), None):
        hint = did_you_mean(unknown, allowed) if allowed else f" A model of the flavor {flavor!r} takes none."
        raise InvalidError(f"{who} has no parameter {unknown!r}.{hint}")
    _put_code_on_path(folder, flavors)
    opened: Predictor
    if flavor == "keras":
        opened = _Keras(_find_keras_file(flavors, folder), declared, who)
    elif flavor == "sklearn":
        proba = parameters.get("predict_proba", flavors.get("python_function", {}).get("predict_fn") == "predict_proba")
        opened = _Sklearn(folder, flavors["sklearn"], declared, who, proba=proba is True)
    elif flavor == "onnx":
        opened = _Onnx(folder / flavors["onnx"].get("data", "model.onnx"), declared, who, threads=threads)
    else:
        opened = _Pyfunc(folder, declared, who)
    return _warm_up(opened, who)


def _read_mlmodel(folder: Path, who: str) -> Mapping[str, Any]:
    import yaml

    file = folder / "MLmodel"
    try:
        mlmodel = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except FileNotFoundError:
        raise NotFoundError(f"{who} cannot be loaded: there is no file 'MLmodel' in {str(folder)!r}.") from None
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise InvalidError(f"{who} cannot be loaded: {str(file)!r} cannot be read: {error}.") from error
    if not isinstance(mlmodel, dict) or not isinstance(mlmodel.get("flavors"), dict):
        raise InvalidError(f"{who} cannot be loaded: {str(file)!r} names no flavors.")
    return mlmodel


def _choose_flavor(flavors: Mapping[str, Any], folder: Path) -> str:
    if "sklearn" in flavors:
        return "sklearn"
    if "onnx" in flavors:
        return "onnx"
    return "keras" if _is_keras(flavors) and _find_keras_file(flavors, folder).is_file() else "pyfunc"


def _is_keras(flavors: Mapping[str, Any]) -> bool:
    keras, tensorflow = flavors.get("keras"), flavors.get("tensorflow")
    if keras is not None:
        return keras.get("keras_backend", "tensorflow") == "tensorflow" and not keras.get("save_exported_model")
    return tensorflow is not None and tensorflow.get("model_type") == "keras"


def _find_keras_file(flavors: Mapping[str, Any], folder: Path) -> Path:
    flavor = flavors.get("keras") or flavors.get("tensorflow") or {}
    place = folder / str(flavor.get("data", "data"))
    return place / "model.keras" if place.is_dir() else place.with_suffix(".keras")


def _put_code_on_path(folder: Path, flavors: Mapping[str, Any]) -> None:
    for flavor in flavors.values():
        code = flavor.get("code") if isinstance(flavor, dict) else None
        if code and str(folder / code) not in sys.path:
            sys.path.insert(0, str(folder / code))


def _warm_up(model: Predictor, who: str) -> Predictor:
    """Call the model once, so that nothing is built at the first request, and infer its outputs."""
    zeros = model.signature.make_zeros()
    if zeros is None:
        return model
    result = model.predict(zeros)
    if not model.signature.outputs:
        tensors = to_tensors(result, (), who)
        # The first dimension is that of the batch.
        specs = tuple(
            TensorSpec(tensor.name, tensor.datatype, (-1, *tensor.data.shape[1:]))
            for tensor in tensors
            if tensor.data.ndim
        )
        model.signature = replace(model.signature, outputs=specs)
    return model


class _Keras:
    """A Keras model on TensorFlow, as a traced function: Keras' own ``predict`` costs tens of milliseconds a call."""

    platform = "tensorflow"

    def __init__(self, file: Path, declared: NodeSignature, who: str) -> None:
        tensorflow = _import_tensorflow(who)
        import keras

        model: Any = keras.saving.load_model(str(file), compile=False)
        self._names, specs = _read_keras_inputs(model, declared)
        self.signature = declared if declared.inputs else _read_keras_signature(self._names, specs, declared)
        signature = [tensorflow.TensorSpec(shape, dtype) for shape, dtype in specs] or None
        several = len(specs) > 1

        def call(*inputs: Any) -> Any:
            return model(list(inputs) if several else inputs[0], training=False)

        self._call: Callable[..., Any] = tensorflow.function(call, input_signature=signature, reduce_retracing=True)
        self._dtypes = [np.dtype(dtype) for _, dtype in specs]

    def predict(self, value: Any) -> Any:
        """Return an array, or a dictionary or tuple of arrays if the model has several outputs."""
        if isinstance(value, dict):
            values = [value[name] for name in self._names] if self._names else list(value.values())
        else:
            values = [value]
        if self._dtypes:
            values = [np.asarray(array, dtype) for array, dtype in zip(values, self._dtypes, strict=True)]
        return _from_tensorflow(self._call(*values))


def _import_tensorflow(who: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    fresh = "tensorflow" not in sys.modules
    tf = _import_library("tensorflow", who, "TensorFlow", extra="tensorflow")
    if fresh:
        for variable, set_to in (
            ("TF_NUM_INTRAOP_THREADS", tf.config.threading.set_intra_op_parallelism_threads),
            ("TF_NUM_INTEROP_THREADS", tf.config.threading.set_inter_op_parallelism_threads),
        ):
            if os.environ.get(variable, "").isdigit():
                set_to(int(os.environ[variable]))
    return tf


def _read_keras_inputs(
    model: Any, declared: NodeSignature
) -> tuple[list[str], list[tuple[tuple[int | None, ...], str]]]:
    inputs = getattr(model, "inputs", None) or []
    names = [str(tensor.name) for tensor in inputs]
    if inputs:
        specs = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in inputs]
    else:
        specs = [
            (tuple(None if size < 0 else size for size in spec.shape), DATATYPES[spec.datatype].name)
            for spec in declared.inputs
        ]
    declared_names = [spec.name for spec in declared.inputs]
    return (names if not declared_names or set(names) == set(declared_names) else declared_names), specs


def _read_keras_signature(
    names: list[str], specs: list[tuple[tuple[int | None, ...], str]], declared: NodeSignature
) -> NodeSignature:
    inputs = tuple(
        TensorSpec(name, parse_dtype(dtype, "The Keras model"), tuple(-1 if size is None else size for size in shape))
        for name, (shape, dtype) in zip(names, specs, strict=True)
    )
    return NodeSignature(inputs, declared.outputs, anonymous=len(inputs) == 1)


def _from_tensorflow(result: Any) -> Any:
    if isinstance(result, dict):
        return {str(name): tensor.numpy() for name, tensor in result.items()}
    if isinstance(result, (list, tuple)):
        return tuple(tensor.numpy() for tensor in result) if len(result) != 1 else result[0].numpy()
    return result.numpy()


class _Sklearn:
    platform = "sklearn"

    def __init__(
        self, folder: Path, flavor: Mapping[str, Any], declared: NodeSignature, who: str, *, proba: bool
    ) -> None:
        self.signature = declared
        estimator = _load_sklearn(folder / str(flavor.get("pickled_model", "model.pkl")), flavor, who)
        method = "predict_proba" if proba else "predict"
        if not hasattr(estimator, method):
            raise InvalidError(f"{who} is a {type(estimator).__name__}, which has no method {method!r}.")
        self._predict: Callable[[Any], Any] = getattr(estimator, method)
        # It may have been fitted with a table and is called with arrays, whose columns are in the same order.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        self._as_frame = declared.table and self._needs_frame()

    def predict(self, value: Any) -> Any:
        as_table = _to_frame if self._as_frame else _to_matrix
        return self._predict(as_table(value, self.signature))

    def _needs_frame(self) -> bool:
        """Whether columns need their names: they hold text, or steps of a pipeline select them by name."""
        if any(spec.datatype == "BYTES" for spec in self.signature.inputs):
            return True
        try:
            self._predict(_to_matrix(self.signature.make_zeros(), self.signature))
        except (ValueError, TypeError, KeyError, IndexError):
            return True
        return False


def _load_sklearn(file: Path, flavor: Mapping[str, Any], who: str) -> Any:
    kind = flavor.get("serialization_format", "cloudpickle")
    if os.environ.get("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true").lower() in {"false", "0"}:
        raise UnsupportedError(f"{who} is not loaded, since MLFLOW_ALLOW_PICKLE_DESERIALIZATION is set to false.")
    _import_library("sklearn", who, "scikit-learn")
    if kind == "skops":
        return _import_library("skops.io", who, "skops").load(file, trusted=flavor.get("skops_trusted_types"))
    if kind not in {"pickle", "cloudpickle"}:
        raise UnsupportedError(f"{who} was saved as {kind!r}, which is unknown. Known: skops, cloudpickle, pickle.")
    with file.open("rb") as opened:
        return pickle.load(opened)  # noqa: S301 - a model of the user's own registry; cloudpickle's files are pickles


def _to_matrix(value: Any, declared: NodeSignature) -> Any:
    if not isinstance(value, dict):
        return value
    columns = [np.asarray(value[spec.name]).reshape(-1) for spec in declared.inputs if spec.name in value]
    return np.column_stack(columns) if columns else np.column_stack([np.asarray(column) for column in value.values()])


def _to_frame(value: Any, declared: NodeSignature) -> Any:
    import pandas as pd

    names = [spec.name for spec in declared.inputs]
    if not isinstance(value, dict):
        return pd.DataFrame(np.asarray(value), columns=names)
    return pd.DataFrame({name: _to_column(value[name]) for name in names if name in value})


def _to_column(values: Any) -> NDArray[Any]:
    column = np.asarray(values).reshape(-1)
    return _decode_texts(column) if column.dtype.kind == "O" else column


def _decode_texts(array: NDArray[Any]) -> NDArray[Any]:
    texts = [text.decode() if isinstance(text, bytes) else text for text in array.flat]
    return np.array(texts, dtype=object).reshape(array.shape)


class _Onnx:
    platform = "onnxruntime"

    def __init__(self, file: Path, declared: NodeSignature, who: str, *, threads: int) -> None:
        onnxruntime = _import_library("onnxruntime", who, "ONNX Runtime", package="onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A thread that spins while it waits takes CPU time from other instances.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.signature = NodeSignature(
            _read_onnx_specs(inputs, who),
            _read_onnx_specs(outputs, who),
            anonymous=declared.anonymous or len(inputs) == 1,
        )
        self._inputs = [tensor.name for tensor in inputs]
        self._outputs = [tensor.name for tensor in outputs]
        self._dtypes = {spec.name: DATATYPES[spec.datatype] for spec in self.signature.inputs}

    def predict(self, value: Any) -> Any:
        values = value if isinstance(value, dict) else {self._inputs[0]: value}
        results = self._session.run(None, {name: self._convert(name, array) for name, array in values.items()})
        return results[0] if len(results) == 1 else dict(zip(self._outputs, results, strict=True))

    def _convert(self, name: str, value: Any) -> NDArray[Any]:
        array = np.asarray(value)
        dtype = self._dtypes.get(name)
        if dtype is not None and dtype.kind == "O":
            return _decode_texts(array)
        return np.ascontiguousarray(array, dtype)


def _read_onnx_specs(nodes: Any, who: str) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for node in nodes:
        if node.type not in _ONNX:
            raise UnsupportedError(
                f"{who} has {node.name!r} of {node.type}, which the Open Inference Protocol does not support."
            )
        shape = tuple(size if isinstance(size, int) else -1 for size in node.shape or ())
        specs.append(TensorSpec(node.name, _ONNX[node.type], shape))
    return tuple(specs)


class _Pyfunc:
    platform = "pyfunc"

    def __init__(self, folder: Path, declared: NodeSignature, who: str) -> None:
        from scanflow.knowledge.mlflow.pyfunc import load_pyfunc

        self.signature = declared
        self._model = load_pyfunc(folder, who)

    def predict(self, value: Any) -> Any:
        return self._model(_to_frame(value, self.signature) if self.signature.table else value)


def _import_library(module: str, who: str, library: str, *, package: str | None = None, extra: str = "") -> Any:
    """Import a library; its ``extra``, else its ``package`` (``library``), is what the error says to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        how = explain_install(extra) if extra else explain_install(package=package or library)
        raise MissingExtraError(f"{who} needs {library}, which is not installed. {how}") from error
