"""Conversion of components' results to tensors: arrays, lists, dictionaries of them, bytes, text, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow_serving.messages import Tensor
from scanflow_serving.problems import ProblemError
from scanflow_serving.signature import TensorSpec
from scanflow_serving.tensors import get_datatype

_MAX_COPIED_BYTES = 64 * 1024
"""Up to this size, in bytes, a copy costs less than a view."""


def to_tensors(value: Any, declared: Sequence[TensorSpec], who: str) -> list[Tensor]:
    """Return a component's result as the output tensors of an answer.

    A dictionary gives an output for each of its names, a tuple one for each of its parts; they are named as declared,
    else ``output-0`` and so on.
    """
    if isinstance(value, dict):
        return [_to_tensor(str(name), part, who) for name, part in value.items()]
    parts = value if isinstance(value, tuple) else (value,)
    if len(declared) == len(parts):
        return [_to_tensor(spec.name, part, who) for spec, part in zip(declared, parts, strict=True)]
    return [_to_tensor(f"output-{place}", part, who) for place, part in enumerate(parts)]


def to_array(value: Any, who: str) -> NDArray[Any]:
    return _to_tensor("", value, who).data


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
    datatype = get_datatype(array.dtype)
    if datatype is None:
        raise _make_unusable_problem(who, f"an array of {array.dtype.name}, which no datatype can hold.")
    if datatype == "BYTES":
        array = _check_bytes(array, who)
    elif datatype == "BF16":
        array = array.astype(np.float32)
    return Tensor(name, datatype, array)


def _convert(value: Any, who: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _make_unusable_problem(who, "a list whose rows differ in length.") from error
    # numpy wraps objects it does not know in an array without dimensions.
    if array.dtype.kind == "O" and array.ndim == 0:
        raise _make_unusable_problem(
            who, f"a value of type {type(value).__name__!r}, which is not an array, list, dict of them, bytes or text."
        )
    return array


def _check_bytes(array: NDArray[Any], who: str) -> NDArray[Any]:
    elements = np.empty(array.size, dtype=object)
    for place, item in enumerate(array.flat):
        if isinstance(item, str):
            elements[place] = item.encode(errors="replace")
        elif isinstance(item, (bytes, bytearray)):
            elements[place] = bytes(item)
        else:
            raise _make_unusable_problem(
                who, f"an array of objects, the first of which is of type {type(item).__name__!r}."
            )
    return elements.reshape(array.shape)


def _make_unusable_problem(who: str, what: str) -> ProblemError:
    return ProblemError(500, f"{who} returned {what}")
