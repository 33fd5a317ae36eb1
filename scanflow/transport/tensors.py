"""Arrays in the formats of the Open Inference Protocol (v2): JSON, and the binary tensor extension. Pure.

https://github.com/kserve/open-inference-protocol and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from scanflow.arrays import cast_exactly, fill_masked, is_missing, join_numbers, make_array
from scanflow.errors import InvalidError, MissingExtraError, UnavailableError
from scanflow.installation import explain_install

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["INFER_METHOD", "as_arrays", "decode_answer", "encode_grpc_request", "encode_request", "load_arrays"]

DEFAULT_INPUT = "input"
INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"
"""The path of the gRPC method for predictions."""

_DATATYPES = {
    dtype: dtype.upper().replace("FLOAT", "FP")
    for dtype in "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()
}
_DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}


def as_arrays(inputs: Any, *, dtype: str | None = None) -> dict[str, NDArray[Any]]:
    """Convert a caller's input, an array, a list, or a mapping of names to these, to named arrays.

    Raises:
        InvalidError: something in it is no array of numbers, truth values, text or date-times.
    """
    named = inputs if isinstance(inputs, Mapping) else {DEFAULT_INPUT: inputs}
    if not named:
        raise InvalidError("There is no input to send. Give an array, or a mapping of input names to arrays.")
    _import_numpy()
    return {str(name): _to_array(str(name), value, dtype) for name, value in named.items()}


def find_dtype(datatype: str) -> str | None:
    """Return NumPy's name of a protocol's datatype of numbers; None: it has none."""
    return _DTYPES.get(datatype)


def encode_request(
    inputs: Mapping[str, NDArray[Any]], *, binary: bool = True, id: str | None = None
) -> tuple[bytes, dict[str, str]]:
    """Encode a request's body and headers. With ``binary`` the response is requested in binary too."""
    described, blocks = [], []
    for name, array in inputs.items():
        parameters: dict[str, Any] = {**_describe_moments(array)}
        array = _write_moments(array)
        tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": _get_datatype(array)}
        if parameters:
            tensor["parameters"] = parameters
        if binary:
            block = _to_bytes(array)
            tensor["parameters"] = {**parameters, "binary_data_size": len(block)}
            blocks.append(block)
        else:
            tensor["data"] = _to_texts(array) if array.dtype.kind in "OSU" else array.ravel().tolist()
        described.append(tensor)
    document: dict[str, Any] = {"inputs": described}
    if id is not None:
        document["id"] = id
    if not binary:
        return json.dumps(document).encode(), {"content-type": "application/json"}
    document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document, separators=(",", ":")).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return b"".join([head, *blocks]), headers


def encode_grpc_request(model: str, inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a ``ModelInferRequest`` of the Open Inference Protocol, its tensors as raw contents.

    Args:
        model: The name of the model, or of a node.
        inputs: Arrays by the names of the inputs.

    Raises:
        MissingExtraError: protobuf is not installed.

    Source:
        https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto
    """
    try:
        from scanflow.protos import get_message_class
    except ImportError as error:
        raise MissingExtraError(f"gRPC needs the serving extra. {explain_install('serving')}") from error
    request = get_message_class("ModelInferRequest")(model_name=model)
    for name, array in inputs.items():
        texts = _write_moments(array)
        tensor = request.inputs.add(name=name, datatype=_get_datatype(texts), shape=texts.shape)
        for parameter, value in _describe_moments(array).items():
            tensor.parameters[parameter].string_param = value
        request.raw_input_contents.append(_to_bytes(texts))
    content: bytes = request.SerializeToString()
    return content


def load_arrays(file: BinaryIO, source: str) -> Any:
    """Return the array of a ``.npy`` file, or those of an ``.npz`` file by their names."""
    np = _import_numpy()
    try:
        loaded = np.load(file, allow_pickle=False)
        return dict(loaded) if hasattr(loaded, "files") else loaded
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidError(f"{source} contains no array that can be sent: {error} Write it with numpy.save.") from error


def decode_answer(body: bytes, header_length: str | None) -> dict[str, NDArray[Any]]:
    """Decode the arrays of a response; ``header_length`` is its header ``Inference-Header-Content-Length``."""
    size = int(header_length) if header_length and header_length.isdecimal() else len(body)
    try:
        document = json.loads(body[:size])
        arrays, place = {}, size
        for tensor in document["outputs"]:
            length = tensor.get("parameters", {}).get("binary_data_size")
            if length is None:
                arrays[tensor["name"]] = _from_list(tensor)
            else:
                arrays[tensor["name"]] = _from_bytes(tensor, body[place : place + length])
                place += length
            content = tensor.get("parameters", {}).get("content_type")
            if tensor["datatype"] == "BYTES" and content in _READERS:
                coded = arrays[tensor["name"]]
                arrays[tensor["name"]] = _make_objects(map(_READERS[content], coded.flat), coded.shape)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise UnavailableError(f"Its answer does not follow the Open Inference Protocol: {error!r:.200}") from error
    return arrays


def _import_numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtraError(
            f"Predictions are sent as arrays, but NumPy is not installed. {explain_install('serving')}"
        ) from error
    return np


def _to_array(name: str, value: Any, dtype: str | None) -> NDArray[Any]:
    np = _import_numpy()
    try:
        if dtype is None:
            array = make_array(value)
        else:
            array = _to_dtype(name, value, np.dtype(_DTYPES.get(dtype.upper(), dtype)))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidError(f"The input {name!r} is not an array: {error}. Give rows of the same length.") from error
    if array.dtype.kind == "O":
        array = join_numbers(array)
        if array.size and all(isinstance(element, (bool, np.bool_)) for element in array.flat):
            array = array.astype(bool)
    if _describe_moments(array):
        return array
    if array.dtype.kind not in "biufOSU" or (array.dtype.kind == "O" and not all(map(_is_text, array.flat))):
        _refuse_gaps(name, array)
        raise InvalidError(
            f"The input {name!r} holds {_describe_kinds(array)}, which cannot be sent. "
            "Send numbers, booleans, date-times or text."
        )
    return array


def _to_dtype(name: str, value: Any, dtype: Any) -> NDArray[Any]:
    """Return a value as the type that the caller asks for, where numbers lose no more than digits."""
    np = _import_numpy()
    array = np.asarray(fill_masked(value))
    if array.dtype.kind in "iuf" and dtype.kind in "iu" and cast_exactly(array, dtype) is None:
        raise InvalidError(f"The input {name!r} holds numbers that {dtype.name} does not: send them as another type.")
    with np.errstate(over="ignore"):
        converted: NDArray[Any] = np.asarray(array, dtype=dtype)
    if (
        converted.dtype.kind == "f"
        and array.dtype.kind in "iuf"
        and bool((np.isinf(converted) > np.isinf(array)).any())
    ):
        raise InvalidError(f"The input {name!r} holds numbers too large for {dtype.name}: send them as another type.")
    return converted


def _refuse_gaps(name: str, array: NDArray[Any]) -> None:
    place = next((place for place, element in enumerate(array.flat) if is_missing(element)), None)
    if place is not None:
        raise InvalidError(
            f"The input {name!r} has no value at element {place} ({array.flat[place]}). Only floating-point numbers "
            "and date-times can be missing. Send a value that means missing, such as '' in text, or leave out these "
            "rows, or leave out the whole column if it is optional."
        )


def _write_moments(array: NDArray[Any]) -> NDArray[Any]:
    """Return date-times as text (ISO 8601), "NaT" where one is missing; other arrays as they are."""
    np = _import_numpy()
    if array.dtype.kind == "M":
        return np.datetime_as_string(array).astype(object)  # type: ignore[no-any-return]
    if not _describe_moments(array):
        return array
    texts = (
        "NaT" if is_missing(element) else str(element) if isinstance(element, np.datetime64) else element.isoformat()
        for element in array.flat
    )
    return np.fromiter(texts, object).reshape(array.shape)  # type: ignore[no-any-return]


def _describe_moments(array: NDArray[Any]) -> dict[str, str]:
    """Return the parameters of an input that say what its texts are: date-times, of which unit, or dates; empty: it
    has neither."""
    np = _import_numpy()
    if array.dtype.kind == "M":
        unit = np.datetime_data(array.dtype)[0]
        return {"content_type": "datetime", **({} if unit == "generic" else {"unit": unit})}
    if array.dtype.kind != "O":
        return {}
    first = next((element for element in array.flat if not is_missing(element)), None)
    if not isinstance(first, (date, np.datetime64)):
        return {}
    present = [element for element in array.flat if not is_missing(element)]
    if not all(isinstance(element, (date, np.datetime64)) for element in present):
        return {}
    has_dates = any(isinstance(element, date) and not isinstance(element, datetime) for element in present)
    units = {
        np.datetime_data(element.dtype)[0] if isinstance(element, np.datetime64) else getattr(element, "unit", "us")
        for element in present
    }
    unit = {"unit": units.pop()} if len(units) == 1 and not has_dates else {}
    return {"content_type": "date" if has_dates else "datetime", **unit}


def _describe_kinds(array: NDArray[Any]) -> str:
    if array.dtype.kind != "O":
        return str(array.dtype)
    kinds = sorted({type(element).__name__ for element in array.flat if not _is_text(element)})
    if kinds == ["int"] and not any(map(_is_text, array.flat)):
        return "whole numbers of which no type of 64 bits holds all"
    return f"{'text and ' if any(map(_is_text, array.flat)) else ''}values of type {', '.join(kinds)}"


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def _get_datatype(array: NDArray[Any]) -> str:
    if array.dtype.kind in "OSU":
        return "BYTES"
    return _DATATYPES[array.dtype.name]


def _to_bytes(array: NDArray[Any]) -> bytes:
    if array.dtype.kind in "OSU":
        blocks = [text.encode() if isinstance(text, str) else bytes(text) for text in array.flat]
        return b"".join(part for block in blocks for part in (struct.pack("<I", len(block)), block))
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _to_texts(array: NDArray[Any]) -> list[str]:
    return [text.decode() if isinstance(text, bytes) else str(text) for text in array.flat]


def _from_list(tensor: Mapping[str, Any]) -> NDArray[Any]:
    np = _import_numpy()
    dtype: Any = _DTYPES.get(tensor["datatype"], object)
    array: NDArray[Any] = np.array(tensor["data"], dtype=dtype)
    return array.reshape(tensor["shape"])


def _read_text(content: bytes | str) -> str:
    return content if isinstance(content, str) else content.decode()


_READERS: Final[dict[str, Callable[[bytes | str], Any]]] = {"application/json": json.loads, "str": _read_text}
"""What the elements of BYTES are read by, for each ``content_type`` that an output may have."""


def _make_objects(values: Iterable[Any], shape: Sequence[int]) -> NDArray[Any]:
    return _import_numpy().fromiter(values, object).reshape(shape)  # type: ignore[no-any-return]


def _from_bytes(tensor: Mapping[str, Any], block: bytes) -> NDArray[Any]:
    np = _import_numpy()
    if tensor["datatype"] != "BYTES":
        dtype = np.dtype(_DTYPES[tensor["datatype"]]).newbyteorder("<")
        return np.frombuffer(block, dtype=dtype).reshape(tensor["shape"])  # type: ignore[no-any-return]
    texts, place = [], 0
    while place < len(block):
        (size,) = struct.unpack_from("<I", block, place)
        texts.append(block[place + 4 : place + 4 + size])
        place += 4 + size
    return _make_objects(texts, tensor["shape"])
