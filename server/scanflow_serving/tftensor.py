"""TensorFlow's ``TensorProto`` in protobuf's JSON, which Seldon's protocol calls ``tftensor``."""

from __future__ import annotations

import base64
from typing import Any, Final

from numpy.typing import NDArray

from scanflow_serving.inference_problems import invalid
from scanflow_serving.oip_tensors import DATATYPES, check_shape, from_binary, from_python

_TYPES: Final = {
    "DT_FLOAT": ("FP32", "floatVal"),
    "DT_DOUBLE": ("FP64", "doubleVal"),
    "DT_INT8": ("INT8", "intVal"),
    "DT_INT16": ("INT16", "intVal"),
    "DT_INT32": ("INT32", "intVal"),
    "DT_INT64": ("INT64", "int64Val"),
    "DT_UINT8": ("UINT8", "intVal"),
    "DT_UINT16": ("UINT16", "intVal"),
    "DT_UINT32": ("UINT32", "uint32Val"),
    "DT_UINT64": ("UINT64", "uint64Val"),
    "DT_BOOL": ("BOOL", "boolVal"),
    "DT_STRING": ("BYTES", "stringVal"),
}
"""The datatype of the Open Inference Protocol, and the field that holds the elements."""

_NAMES: Final = {DATATYPES[datatype].str[1:]: name for name, (datatype, _) in _TYPES.items() if datatype != "BYTES"}


def decode(document: Any, where: str, *, allow_nan: bool) -> NDArray[Any]:
    if not isinstance(document, dict):
        raise invalid(f"{where} should be an object with dtype, tensorShape and its values.")
    dtype = document.get("dtype", "DT_FLOAT")
    if dtype not in _TYPES:
        raise invalid(f"{where}.dtype is {dtype!r:.40}. Known: {', '.join(_TYPES)}.")
    datatype, field = _TYPES[dtype]
    shape = _parse_shape(_get_field(document, "tensorShape"), where)
    content = _get_field(document, "tensorContent")
    if content:
        return from_binary("", datatype, shape, _decode_base64(content, where), allow_nan=allow_nan, where=where).data
    values = _get_field(document, field)
    if not isinstance(values, list) or not values:
        raise invalid(f"{where} should have a list {field!r} or a 'tensorContent'.")
    if datatype == "BYTES":
        values = [_decode_base64(value, where) for value in values]
    elif datatype.endswith("64") and datatype != "FP64":  # protobuf's JSON has them as text
        try:
            values = [int(value) if isinstance(value, str) else value for value in values]
        except ValueError:
            raise invalid(f"{where}.{field} should hold whole numbers.") from None
    count = check_shape(shape, where)
    if len(values) == 1 < count <= _MAX_FILLED:  # one value stands for all
        values = values * count
    return from_python("", datatype, shape, values, where=where).data


_MAX_FILLED: Final = 1 << 20


def encode(array: NDArray[Any]) -> dict[str, Any] | None:
    """Return an array as a TensorProto; None: it has no type for it."""
    shape = {"dim": [{"size": str(size)} for size in array.shape]}
    if array.dtype.kind == "O":
        values = [
            base64.b64encode(element if isinstance(element, bytes) else str(element).encode()).decode()
            for element in array.flat
        ]
        return {"dtype": "DT_STRING", "tensorShape": shape, "stringVal": values}
    dtype = _NAMES.get(array.dtype.str[1:])
    if dtype is None:
        return None
    numbers = array.ravel().tolist()
    if dtype in {"DT_INT64", "DT_UINT64"}:
        numbers = [str(number) for number in numbers]
    return {"dtype": dtype, "tensorShape": shape, _TYPES[dtype][1]: numbers}


def _get_field(document: dict[str, Any], name: str) -> Any:
    """Return a field by its name in protobuf's JSON or in the schema."""
    if name in document:
        return document[name]
    return document.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def _parse_shape(document: Any, where: str) -> list[int]:
    sizes = document.get("dim", []) if isinstance(document, dict) else None
    try:
        return [int(dimension.get("size", 0)) for dimension in sizes]  # type: ignore[union-attr]
    except (TypeError, ValueError, AttributeError):
        raise invalid(f"{where}.tensorShape should be {{'dim': [{{'size': ...}}]}}.") from None


def _decode_base64(text: Any, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise invalid(f"{where}: bytes should be text in base64.") from None
