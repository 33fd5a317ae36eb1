"""Conversion of components' results to tensors: arrays, lists, dictionaries of them, bytes, text, numbers.

What no datatype has (None among texts, mappings, lists of different lengths, texts among numbers) is a tensor of JSON
texts, one for each element, and says so: ``content_type`` among its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from scanflow_serving.messages import Tensor
from scanflow_serving.problems import ProblemError
from scanflow_serving.signature import TensorSpec
from scanflow_serving.tensors import get_datatype

_encode_json = msgspec.json.encode
_MAX_COPIED_BYTES = 64 * 1024
"""Up to this size, in bytes, a copy costs less than a view."""


def to_tensors(value: Any, declared: Sequence[TensorSpec], who: str) -> list[Tensor]:
    """Return a component's result as the output tensors of an answer.

    A dictionary gives an output for each of its names, a tuple one for each of its parts; they are named as declared,
    else ``output-0`` and so on.
    """
    if isinstance(value, dict):
        return [_to_tensor(str(name), part, who) for name, part in value.items()]
    if columns := _to_columns(value):
        return [_to_tensor(name, part, who) for name, part in columns.items()]
    parts = value if isinstance(value, tuple) else (value,)
    if len(declared) == len(parts):
        return [_to_tensor(spec.name, part, who) for spec, part in zip(declared, parts, strict=True)]
    return [_to_tensor(f"output-{place}", part, who) for place, part in enumerate(parts)]


def to_array(value: Any, who: str) -> NDArray[Any]:
    return _to_tensor("", value, who).data


def to_values(value: Any, who: str) -> NDArray[Any]:
    """Return a result as an array for JSON, whose elements may be of different kinds."""
    tensor = _to_tensor("", value, who)
    if not tensor.holds_json:
        return tensor.data
    values = np.empty(tensor.data.size, dtype=object)
    values[:] = [msgspec.json.decode(text) for text in tensor.data.flat]
    return values.reshape(tensor.data.shape)


def to_raw_bytes(value: Any, who: str) -> bytes | memoryview:
    """Return a result as raw bytes, without a copy if possible."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, memoryview):
        return value.cast("B") if value.contiguous else value.tobytes()
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and len(value) == 1:
        return to_raw_bytes(next(iter(value.values())), who)
    if isinstance(value, (dict, tuple)):
        raise _make_unusable_problem(
            who, f"{len(value)} outputs, but only one can be returned as raw bytes. Request JSON."
        )
    array = to_array(value, who)
    if array.dtype.kind == "O":
        return b"".join(array.flat)
    if array.nbytes <= _MAX_COPIED_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _to_tensor(name: str, value: Any, who: str) -> Tensor:
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, (bytes, bytearray, memoryview, str)):
        array = np.empty(1, dtype=object)
        array[0] = value if isinstance(value, str) else bytes(value)
    elif value is None:
        raise _make_unusable_problem(who, "nothing. Let it return an array, a list, a dict of them, bytes or text.")
    else:
        array = _convert(value, who)
    if array.dtype.kind in "mM":
        array = _format_moments(array)
    elif array.dtype.kind == "O":
        array = _unify(array)
    if array.dtype.kind == "O":
        if all(isinstance(element, (str, bytes, bytearray)) for element in array.flat):
            return Tensor(name, "BYTES", _to_bytes(array))
        return Tensor(name, "BYTES", _to_json(array, who), holds_json=True)
    datatype = get_datatype(array.dtype)
    if datatype is None:
        raise _make_unusable_problem(who, f"an array of {array.dtype.name}, which no datatype can hold.")
    if datatype == "BYTES":
        array = _to_bytes(array)
    elif datatype == "BF16":
        array = array.astype(np.float32)
    return Tensor(name, datatype, array)


def _to_columns(value: Any) -> dict[str, list[Any]]:
    """Return records, a mapping each with the same keys, as columns; empty: it is something else."""
    if not (isinstance(value, list) and value and all(isinstance(record, dict) for record in value)):
        return {}
    names = list(value[0])
    if not names or any(record.keys() != value[0].keys() for record in value):
        return {}
    return {str(name): [record[name] for record in value] for name in names}


def _convert(value: Any, who: str) -> NDArray[Any]:
    if isinstance(value, (list, tuple)):
        return _convert_list(value)
    if hasattr(value, "to_numpy"):
        converted: NDArray[Any] = value.to_numpy()
        return converted
    array = np.asarray(value)
    # numpy wraps objects it does not know in an array without dimensions.
    if array.dtype.kind == "O" and array.ndim == 0:
        if not isinstance(value, (dict, date)):
            raise _make_unusable_problem(
                who,
                f"a value of type {type(value).__name__!r}, which is not an array, list, dict of them, bytes or text.",
            )
        array = array.reshape(1)
    return array


def _convert_list(values: Sequence[Any]) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # rows of different lengths
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array
    if array.dtype.kind in "US":  # numbers among texts would have become texts themselves
        objects = np.array(values, dtype=object)
        return objects if objects.shape == array.shape else array
    return array


def _unify(array: NDArray[Any]) -> NDArray[Any]:
    """Return objects of one kind as that kind: numbers, of which some may be missing, dates, or the objects."""
    elements = [None if is_missing(element) else element for element in array.flat]
    there = [element for element in elements if element is not None]
    if all(isinstance(element, (date, np.datetime64)) for element in there) and there:
        moments = [np.datetime64("NaT") if element is None else _to_naive(element) for element in elements]
        if all(isinstance(moment, np.datetime64) for moment in moments):
            return _format_moments(np.array(moments).reshape(array.shape))
        texts = np.array([None if moment is None else str(moment) for moment in elements], dtype=object)
        return texts.reshape(array.shape)
    if there and all(isinstance(element, (bool, np.bool_)) for element in elements):
        return np.array(elements, dtype=bool).reshape(array.shape)
    numbers = (int, float, np.integer, np.floating)
    if there and all(isinstance(element, numbers) and not isinstance(element, bool) for element in there):
        has_gaps = len(there) < len(elements) or any(isinstance(element, (float, np.floating)) for element in there)
        if has_gaps:
            return np.array([np.nan if element is None else element for element in elements], float).reshape(
                array.shape
            )
        whole = np.array(elements)
        return whole.reshape(array.shape) if whole.dtype.kind in "iu" else array
    objects = np.empty(len(elements), dtype=object)
    objects[:] = elements
    return objects.reshape(array.shape)


def _to_naive(moment: Any) -> Any:
    return moment if getattr(moment, "tzinfo", None) is not None else np.datetime64(moment)


def _format_moments(array: NDArray[Any]) -> NDArray[Any]:
    """Return date-times as text in ISO 8601, and None for those that are missing."""
    texts = (np.datetime_as_string(array) if array.dtype.kind == "M" else array.astype(str)).astype(object)
    texts[np.isnat(array)] = None
    return texts


def _to_bytes(array: NDArray[Any]) -> NDArray[Any]:
    elements = np.empty(array.size, dtype=object)
    for place, item in enumerate(array.flat):
        elements[place] = item.encode(errors="replace") if isinstance(item, str) else bytes(item)
    return elements.reshape(array.shape)


def _to_json(array: NDArray[Any], who: str) -> NDArray[Any]:
    def replace_unknown(value: Any) -> Any:
        if is_missing(value):
            return None
        if isinstance(value, (date, np.datetime64)):
            return str(np.datetime64(value)) if getattr(value, "tzinfo", None) is None else value.isoformat()  # type: ignore[union-attr]
        if hasattr(value, "tolist"):
            return value.tolist()
        raise _make_unusable_problem(who, f"an array of objects, one of which is of type {type(value).__name__!r}.")

    elements = np.empty(array.size, dtype=object)
    try:
        for place, item in enumerate(array.flat):
            elements[place] = _encode_json(item, enc_hook=replace_unknown)
    except (TypeError, ValueError, RecursionError) as error:
        raise _make_unusable_problem(who, f"objects that are no JSON: {error!s:.200}.") from error
    return elements.reshape(array.shape)


def is_missing(value: object) -> bool:
    """Whether a value stands for none: None, NaN, and pandas' NA and NaT."""
    return (
        value is None
        or (isinstance(value, (float, np.floating)) and math.isnan(value))
        or type(value).__name__ in {"NAType", "NaTType"}
    )


def _make_unusable_problem(who: str, what: str) -> ProblemError:
    return ProblemError(500, f"{who} returned {what}")
