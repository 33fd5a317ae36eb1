"""Loads models of the registry from the folder of their ``MLmodel``, by their own library where that is faster than
MLflow's wrapper."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError, MissingExtraError, NotFoundError, UnsupportedError, did_you_mean
from scanflow.installation import explain_install
from scanflow.instance_messages import ModelFiles
from scanflow.knowledge.model_code import list_code_folders, use_code, warn_of_borrowed_code
from scanflow_serving.inference_problems import ProblemError, invalid
from scanflow_serving.instance_gpu import (
    choose_onnx_providers,
    find_out_of_device_memory,
    has_device,
    prepare_pytorch,
    prepare_tensorflow,
)
from scanflow_serving.model_examples import read_example
from scanflow_serving.model_inputs import ModelInputs, decode_objects, decode_texts, list_trained_names, to_plain_values
from scanflow_serving.oip_tensors import DATATYPES, round_to_bf16, widen_bf16
from scanflow_serving.results import to_tensors
from scanflow_serving.signature import NodeSignature, TensorSpec, parse_dtype, read_mlmodel_signature

_PARAMETERS: Final = {"sklearn": ("predict_proba",)}
_PREDICT_FUNCTIONS: Final = ("predict", "predict_proba", "predict_log_proba", "predict_joint_log_proba")
_UNSIGNED: Final = (
    "has no signature: the names and types of its inputs cannot be checked. Save it with one: "
    "signature=mlflow.models.infer_signature(inputs)."
)
_log = logging.getLogger(__name__)
_BF16: Final = "tensor(bfloat16)"
_ONNX: Final = {f"tensor({dtype.name})": datatype for datatype, dtype in DATATYPES.items()} | {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    _BF16: "FP32",  # which holds its numbers exactly, and which every client can send
    "tensor(string)": "BYTES",
}

_ONNX_BF16: Final = 16
"""``onnx.TensorProto.BFLOAT16``; the package is not needed to serve."""


class Predictor(Protocol):
    """An opened registered model."""

    platform: str
    signature: NodeSignature
    notes: tuple[str, ...] = ()
    """What a person should know of it, and what to do."""

    input_errors: tuple[type[RuntimeError], ...] = ()
    """The exceptions by which it refuses an input, and no subclass of them; others may be faults of its own."""

    def predict(self, value: Any, names: Any = (), parameters: Mapping[str, Any] | None = None, /) -> Any:
        """Return the model's answer; ProblemError (4xx) names what is wrong with the input."""


def open_model(
    files: ModelFiles, parameters: Mapping[str, Any], *, threads: int, follows_node: bool = False
) -> Predictor:
    """Open a model and warm it up with its input example, else with ones if its inputs are declared.

    ``follows_node``: its input is another node's result.
    """
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
    for code in list_code_folders(folder, flavors):
        use_code(code, who)
    before = set(sys.modules)
    opened: Predictor
    if flavor == "pyfunc":
        declared = replace(declared, parameters=declared.parameters or ())
        on_pytorch = "pytorch" in flavors
        if "tensorflow" in flavors and has_device():
            prepare_tensorflow(_import_tensorflow(who), who)
        opened = _Pyfunc(folder, declared, who, follows_node=follows_node, on_pytorch=on_pytorch)
        if on_pytorch:  # for shapes and types that it does not take; where memory is short, a subclass
            opened.input_errors = (RuntimeError,)
    else:  # only MLflow's wrapper passes parameters on
        declared = replace(declared, parameters=())
        if flavor == "keras":
            opened = _Keras(_get_keras_file(flavors, folder), declared, who)
        elif flavor == "sklearn":
            method = _choose_method(flavors, parameters, who)
            opened = _Sklearn(folder, flavors["sklearn"], declared, who, method=method, follows_node=follows_node)
        else:
            opened = _Onnx(folder / flavors["onnx"].get("data", "model.onnx"), declared, who, threads=threads)
    notes = [] if opened.signature.inputs else [f"{who} {_UNSIGNED}"]
    if failure := _warm_up(opened, read_example(folder, mlmodel, opened.signature), who):
        notes.append(failure)
    if warning := warn_of_borrowed_code(set(sys.modules) - before, folder, who):
        notes.append(warning)
    for note in notes:
        _log.warning("%s", note)
    opened.notes = tuple(notes)
    return opened


def _choose_method(flavors: Mapping[str, Any], parameters: Mapping[str, Any], who: str) -> str:
    saved = str((flavors.get("python_function") or {}).get("predict_fn") or "predict")
    if "predict_proba" in parameters:
        if parameters["predict_proba"] is True:
            return "predict_proba"
        return "predict" if saved == "predict_proba" else saved
    if saved not in _PREDICT_FUNCTIONS:
        raise UnsupportedError(
            f"{who} was saved with pyfunc_predict_fn={saved!r}, which needs more than inputs. "
            f"Save it with one of {', '.join(_PREDICT_FUNCTIONS)}."
        )
    return saved


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
    return "keras" if _is_keras(flavors) and _get_keras_file(flavors, folder).is_file() else "pyfunc"


def _is_keras(flavors: Mapping[str, Any]) -> bool:
    keras, tensorflow = flavors.get("keras"), flavors.get("tensorflow")
    if keras is not None:
        return keras.get("keras_backend", "tensorflow") == "tensorflow" and not keras.get("save_exported_model")
    return tensorflow is not None and tensorflow.get("model_type") == "keras"


def _get_keras_file(flavors: Mapping[str, Any], folder: Path) -> Path:
    flavor = flavors.get("keras") or flavors.get("tensorflow") or {}
    place = folder / str(flavor.get("data", "data"))
    return place / "model.keras" if place.is_dir() else place.with_suffix(".keras")


def _warm_up(model: Predictor, example: Any, who: str) -> str:
    """Call the model once, so that nothing is built at the first request, and infer its outputs.

    Returns what failed, else nothing: what nobody chose as an input says little of a model. A GPU without the memory
    for it says enough, and is raised.
    """
    chosen = example is not None
    value = example if chosen else model.signature.make_example()
    if value is None:
        return ""
    try:
        result = model.predict(value)
        tensors = to_tensors(result, (), who)
    except Exception as error:
        if find_out_of_device_memory(error) is not None:
            raise
        reason = error.detail if isinstance(error, ProblemError) else f"{type(error).__name__}: {error}"
        tried, remedy = ("its input example", "a right one") if chosen else ("ones", "an input_example that it takes")
        return f"{who} was not warmed up, as it failed on {tried}: {reason:.500}. Save it with {remedy}."
    if not model.signature.outputs:
        # The first dimension is that of the batch.
        specs = tuple(
            TensorSpec(tensor.name, tensor.datatype, (-1, *tensor.data.shape[1:]))
            for tensor in tensors
            if tensor.data.ndim
        )
        model.signature = replace(model.signature, outputs=specs)
    return ""


def _stack_columns(inputs: ModelInputs, value: Any, names: Any) -> Any:
    """Return named columns as the matrix that a model without names of its own takes."""
    columns = inputs.read_columns(value, names)
    return value if columns is None else inputs.make_matrix(columns)


class _Keras(Predictor):
    """A Keras model on TensorFlow, as a traced function: Keras' own ``predict`` costs tens of milliseconds a call."""

    platform = "tensorflow"

    def __init__(self, file: Path, declared: NodeSignature, who: str) -> None:
        tensorflow = _import_tensorflow(who)
        prepare_tensorflow(tensorflow, who)
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
        self._columns = ModelInputs(declared, who=who) if declared.table and not several else None

    def predict(self, value: Any, names: Any = (), _parameters: Mapping[str, Any] | None = None, /) -> Any:
        """Return an array, or a dictionary or tuple of arrays if the model has several outputs."""
        if self._columns is not None:
            value = _stack_columns(self._columns, value, names)
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


class _Sklearn(Predictor):
    platform = "sklearn"

    def __init__(
        self,
        folder: Path,
        flavor: Mapping[str, Any],
        declared: NodeSignature,
        who: str,
        *,
        method: str,
        follows_node: bool = False,
    ) -> None:
        self.signature = declared
        estimator = _load_sklearn(folder / str(flavor.get("pickled_model", "model.pkl")), flavor, who)
        if not hasattr(estimator, method):
            raise InvalidError(f"{who} is a {type(estimator).__name__}, which has no method {method!r}.")
        self._predict: Callable[[Any], Any] = getattr(estimator, method)
        trained = list_trained_names(estimator)
        self._inputs = ModelInputs(declared, trained_names=trained, follows_node=follows_node, who=who)
        # It may have been fitted with a table and be called with arrays, whose columns are in the same order.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        warnings.filterwarnings("ignore", message="X has feature names, but")

    def predict(self, value: Any, names: Any = (), _parameters: Mapping[str, Any] | None = None, /) -> Any:
        array = not isinstance(value, dict)
        if array and not self.signature.table and not (len(names) and self._inputs.names):
            if self._inputs.names and getattr(value, "ndim", 2) != 2:
                raise invalid(f"The input is no table of columns. {self._inputs.describe()}")
            return self._predict(decode_objects(value))
        columns = self._inputs.read_columns(value, names)
        if columns is None:
            if self._inputs.names or array:
                raise invalid(f"The input is no table of columns. {self._inputs.describe()}")
            return self._predict(np.column_stack(list(value.values())))
        if self.signature.anonymous:  # a column without a name: text, or whatever it is a list of
            return self._predict(next(iter(columns.values())))
        return self._predict(self._inputs.make_frame(columns))


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


class _Onnx(Predictor):
    platform = "onnxruntime"

    def __init__(self, file: Path, declared: NodeSignature, who: str, *, threads: int) -> None:
        onnxruntime = _import_library("onnxruntime", who, "ONNX Runtime", package="onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A thread that spins while it waits takes CPU time from other instances.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        providers = choose_onnx_providers(onnxruntime.get_available_providers(), onnxruntime.__version__, who)
        self._session = onnxruntime.InferenceSession(str(file), options, providers=providers)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        specs = _read_onnx_specs(inputs, who)
        self.signature = NodeSignature(
            specs, _read_onnx_outputs(outputs, who), anonymous=declared.anonymous or len(inputs) == 1, parameters=()
        )
        self._columns = None
        if declared.table and not declared.anonymous and len(specs) == 1 and len(specs[0].shape) == 2:
            self._columns = ModelInputs(declared, who=who)
            self.signature = replace(self.signature, inputs=declared.inputs, table=True, anonymous=False)
        self._inputs = [tensor.name for tensor in inputs]
        self._outputs = [tensor.name for tensor in outputs]
        self._dtypes = {spec.name: DATATYPES[spec.datatype] for spec in specs}
        self._bf16 = {tensor.name for tensor in (*inputs, *outputs) if tensor.type == _BF16}

    def predict(self, value: Any, names: Any = (), _parameters: Mapping[str, Any] | None = None, /) -> Any:
        if self._columns is not None:
            value = _stack_columns(self._columns, value, names)
        values = value if isinstance(value, dict) else {self._inputs[0]: value}
        results = self._run({name: self._convert(name, array) for name, array in values.items()})
        return results[0] if len(results) == 1 else dict(zip(self._outputs, results, strict=True))

    def _run(self, arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
        if not self._bf16:
            return list(self._session.run(None, arrays))
        from onnxruntime import OrtValue

        values = {
            name: _to_bf16_value(name, array) if name in self._bf16 else OrtValue.ortvalue_from_numpy(array)
            for name, array in arrays.items()
        }
        return [_from_ort_value(value) for value in self._session.run_with_ort_values(self._outputs, values)]

    def _convert(self, name: str, value: Any) -> NDArray[Any]:
        array = np.asarray(value)
        dtype = self._dtypes.get(name)
        if dtype is not None and dtype.kind == "O":
            return decode_texts(array, f"The input {name!r}")
        return np.ascontiguousarray(array, dtype)


def _to_bf16_value(name: str, array: NDArray[Any]) -> Any:
    from onnxruntime import OrtValue

    bits = round_to_bf16(array)
    if (np.isfinite(array) & ~np.isfinite(widen_bf16(bits))).any():
        raise invalid(f"The input {name!r} is too large for bfloat16, which takes numbers below 3.396e+38.")
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BF16)


def _from_ort_value(value: Any) -> Any:
    if value.data_type() != _BF16:
        return value.numpy()
    # numpy has no such type, so that ONNX Runtime makes no array of it: its bits are read where they lie.
    shape = value.shape()
    bits: Any = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return widen_bf16(np.frombuffer(bits, np.uint16).reshape(shape))


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


def _read_onnx_outputs(nodes: Any, who: str) -> tuple[TensorSpec, ...]:
    """Return the outputs, or none if one is a sequence or a map, as of ZipMap: it is known by what comes of it."""
    if any(node.type.startswith(("seq(", "map(")) for node in nodes):
        return ()
    return _read_onnx_specs(nodes, who)


class _Pyfunc(Predictor):
    platform = "pyfunc"

    def __init__(
        self, folder: Path, declared: NodeSignature, who: str, *, follows_node: bool = False, on_pytorch: bool = False
    ) -> None:
        from scanflow.knowledge.mlflow.pyfunc import load_pyfunc

        self.signature = declared
        if on_pytorch:
            prepare_pytorch(who)
        self._model = load_pyfunc(folder, who)
        trained = list_trained_names(self._model.raw)
        self._inputs = ModelInputs(declared, trained_names=trained, follows_node=follows_node, who=who)
        if self._inputs.is_reordered:
            self._model.set_order(self._inputs.names)

    def predict(self, value: Any, names: Any = (), parameters: Mapping[str, Any] | None = None, /) -> Any:
        return self._model.predict(self._prepare(value, names), parameters)

    def _prepare(self, value: Any, names: Any) -> Any:
        declared = self.signature
        trained = not declared.inputs and bool(self._inputs.names)
        if declared.table or trained or ((isinstance(value, dict) or len(names)) and not declared.inputs):
            columns = self._inputs.read_columns(value, names)
            if columns is not None:
                if declared.records:
                    return self._inputs.make_records(columns)
                if declared.anonymous:
                    return to_plain_values(next(iter(columns.values())))
                return self._inputs.make_frame(columns)
            if declared.table or trained:
                raise invalid(f"The input is no table of columns. {self._inputs.describe()}")
        if isinstance(value, dict):
            return {name: decode_objects(array, f"The input {name!r}") for name, array in value.items()}
        if declared.inputs and not declared.anonymous:
            return {declared.inputs[0].name: decode_objects(value)}
        return decode_objects(value)


def _import_library(module: str, who: str, library: str, *, package: str | None = None, extra: str = "") -> Any:
    """Import a library; its ``extra``, else its ``package`` (``library``), is what the error says to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        how = explain_install(extra) if extra else explain_install(package=package or library)
        raise MissingExtraError(f"{who} needs {library}, which is not installed. {how}") from error
