"""Conversion of components' results to tensors: arrays, lists, dictionaries of them, bytes, text, numbers.

What no datatype has (None among texts, mappings, lists of different lengths, texts among numbers) is a tensor of JSON
texts, one for each element, and says so: ``content_type`` among its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import date, timedelta
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from scanflow.arrays import fill_masked, is_exact_float, is_missing, join_numbers, make_array, read_column
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import Tensor
from scanflow_serving.oip_tensors import find_datatype
from scanflow_serving.signature import TensorSpec

_encode_json = msgspec.json.encode
RETURNED: Final = "Let it return an array, a list, a dict of them, a DataFrame, bytes or text."
_MAX_COPIED_BYTES = 64 * 1024
"""Up to this size, in bytes, a copy costs less than a view."""


def to_tensors(value: Any, declared: Sequence[TensorSpec], who: str) -> list[Tensor]:
    """Return a component's result as the output tensors of an answer.

    A dictionary gives an output for each of its names, a tuple one for each of its parts; they are named as declared,
    else ``output-0`` and so on.
    """
    if isinstance(value, dict):
        return [_to_tensor(name, part, who) for name, part in name_outputs(value, who).items()]
    if columns := _to_columns(value, who):
        return [_to_tensor(name, part, who) for name, part in columns.items()]
    parts = value if isinstance(value, tuple) else (value,)
    if len(declared) == len(parts):
        return [_to_tensor(spec.name, part, who) for spec, part in zip(declared, parts, strict=True)]
    return [_to_tensor(f"output-{place}", part, who) for place, part in enumerate(parts)]


def name_outputs(outputs: Mapping[Any, Any], who: str) -> dict[str, Any]:
    """Return outputs by names that are text; ProblemError (500): two of them, as 1 and "1", would be one."""
    named: dict[str, Any] = {}
    for name, output in outputs.items():
        if str(name) in named:
            first = next(other for other in outputs if str(other) == str(name))
            raise _make_unusable_problem(
                who, f"outputs {first!r} and {name!r}, whose names are the same in an answer. Rename one of them."
            )
        named[str(name)] = output
    return named


def to_array(value: Any, who: str) -> NDArray[Any]:
    return _to_tensor("", value, who).data


def to_values(value: Any, who: str) -> NDArray[Any]:
    """Return a result as an array for JSON, whose elements may be of different kinds."""
    tensor = _to_tensor("", value, who)
    if not tensor.holds_json:
        return tensor.data
    return np.fromiter(map(msgspec.json.decode, tensor.data.flat), object).reshape(tensor.data.shape)


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
    value = fill_masked(value)
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, (bytes, bytearray, memoryview, str)):
        array = np.array([value if isinstance(value, str) else bytes(value)], object)
    elif value is None:
        raise _make_unusable_problem(who, f"nothing. {RETURNED}")
    else:
        array = _convert(value, who)
    if array.dtype.kind in "mM":
        array = _format_moments(array)
    elif array.dtype.kind == "O":
        array = _unify(array)
    if array.dtype.kind == "O":
        if all(isinstance(element, (str, bytes, bytearray)) for element in array.flat):
            is_text = array.size > 0 and all(isinstance(element, str) for element in array.flat)
            return Tensor(name, "BYTES", _to_bytes(array), holds_text=is_text)
        return Tensor(name, "BYTES", _to_json(array, who), holds_json=True)
    datatype = find_datatype(array.dtype)
    if datatype is None:
        raise _make_unusable_problem(
            who, f"an array of {array.dtype.name}, which no datatype can hold. {_advise(array.dtype.type)}"
        )
    if datatype == "BYTES":
        return Tensor(name, datatype, _to_bytes(array), holds_text=array.dtype.kind == "U")
    if datatype == "BF16":
        array = array.astype(np.float32)
    return Tensor(name, datatype, array)


def _to_columns(value: Any, who: str) -> dict[str, list[Any]]:
    """Return records, a mapping each with the same keys, as columns; empty: it is something else."""
    if not (isinstance(value, list) and value and all(isinstance(record, dict) for record in value)):
        return {}
    names = list(value[0])
    if not names or any(record.keys() != value[0].keys() for record in value):
        return {}
    return name_outputs({name: [record[name] for record in value] for name in names}, who)


def _convert(value: Any, who: str) -> NDArray[Any]:
    if isinstance(value, (list, tuple)):
        return _convert_list(value)
    if hasattr(value, "to_numpy"):
        return read_column(value)
    array = np.asarray(value)
    # numpy wraps objects it does not know in an array without dimensions.
    if array.dtype.kind == "O" and array.ndim == 0:
        if not isinstance(value, (dict, date)):
            raise _make_unusable_problem(
                who, f"a value of type {type(value).__name__!r}, which no datatype can hold. {_advise(type(value))}"
            )
        array = array.reshape(1)
    return array


def _convert_list(values: Sequence[Any]) -> NDArray[Any]:
    try:
        return make_array(values)
    except (ValueError, OverflowError):  # rows of different lengths
        return np.fromiter(values, object)


def _unify(array: NDArray[Any]) -> NDArray[Any]:
    """Return objects of one kind as that kind: numbers, of which some may be missing, dates, or the objects."""
    elements = [None if is_missing(element) else element for element in array.flat]
    there = [element for element in elements if element is not None]
    if there and all(isinstance(element, (date, np.datetime64, timedelta, np.timedelta64)) for element in there):
        texts = np.array([None if element is None else format_moment(element) for element in elements], dtype=object)
        return texts.reshape(array.shape)
    if there and all(isinstance(element, (bool, np.bool_)) for element in elements):
        return np.array(elements, dtype=bool).reshape(array.shape)
    objects: NDArray[Any] = np.fromiter(elements, object).reshape(array.shape)
    numbers = join_numbers(objects)
    return objects if numbers.dtype.kind == "f" and not all(map(is_exact_float, there)) else numbers


def _format_moments(array: NDArray[Any]) -> NDArray[Any]:
    """Return date-times and durations as text in ISO 8601, and None for those that are missing."""
    if array.dtype.kind == "M":
        texts = np.asarray(np.datetime_as_string(array)).astype(object)
        texts[np.isnat(array)] = None
        return texts
    durations = (None if np.isnat(element) else format_moment(element) for element in array.reshape(-1))
    return np.fromiter(durations, object).reshape(array.shape)


def format_moment(moment: Any) -> str:
    """Return a date, a date-time or a duration, of Python, NumPy or pandas, as text in ISO 8601."""
    if isinstance(moment, np.timedelta64):
        return _format_duration(int(moment.astype(np.int64)), *np.datetime_data(moment.dtype))
    if isinstance(moment, timedelta):
        nanoseconds = getattr(moment, "nanoseconds", 0)  # of pandas
        return _format_duration(moment // timedelta(microseconds=1) * 1000 + nanoseconds, "ns", 1)
    if getattr(moment, "tzinfo", None) is not None:
        return str(moment.isoformat())
    return str(moment.to_datetime64() if hasattr(moment, "to_datetime64") else np.datetime64(moment))


_UNITS: Final = {"W": 604800, "D": 86400, "h": 3600, "m": 60, "s": 1}
"""In seconds."""

_FRACTIONS: Final = {"ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}
"""Their decimal places of a second."""


def _format_duration(number: int, unit: str, step: int) -> str:
    """Return so many units of time as ISO 8601, such as ``P1DT2H0M0.5S``; years and months have no length in days."""
    sign, count = "-" if number < 0 else "", abs(number) * step
    if unit == "generic":
        return f"{sign}{count}"
    if unit in {"Y", "M"}:
        return f"{sign}P{count}{unit}"
    places = _FRACTIONS.get(unit, 0)
    seconds, fraction = divmod(count * _UNITS.get(unit, 1), 10**places)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    part = f".{fraction:0{places}d}".rstrip("0") if fraction else ""
    return f"{sign}P{days}DT{hours}H{minutes}M{seconds}{part}S"


def _to_bytes(array: NDArray[Any]) -> NDArray[Any]:
    elements = (item.encode(errors="replace") if isinstance(item, str) else bytes(item) for item in array.flat)
    return np.fromiter(elements, object).reshape(array.shape)


def _to_json(array: NDArray[Any], who: str) -> NDArray[Any]:
    def replace_unknown(value: Any) -> Any:
        if is_missing(value):
            return None
        if isinstance(value, (date, np.datetime64, timedelta, np.timedelta64)):
            return format_moment(value)
        if isinstance(value, np.ndarray):
            plain = fill_masked(value)
            return (_format_moments(plain) if plain.dtype.kind in "mM" else plain).tolist()
        if hasattr(value, "tolist"):
            return value.tolist()
        raise _make_unusable_problem(
            who, f"an array of objects, one of which is of type {type(value).__name__!r}. {_advise(type(value))}"
        )

    try:
        elements = [_encode_json(item, enc_hook=replace_unknown) for item in array.flat]
    except (TypeError, ValueError, RecursionError) as error:
        raise _make_unusable_problem(who, f"objects that are no JSON: {error!s:.200}.") from error
    return np.fromiter(elements, object).reshape(array.shape)


def _advise(kind: type) -> str:
    """Say what to return in place of a value of a type."""
    if issubclass(kind, (complex, np.complexfloating)):
        instead = "its parts, {'real': x.real, 'imag': x.imag}"
    elif issubclass(kind, np.dtype("longdouble").type):
        instead = "x.astype('float64')"
    elif issubclass(kind, np.void):
        instead = "a dict of its fields, {name: x[name] for name in x.dtype.names}"
    elif issubclass(kind, Set):
        instead = "a list, sorted(x)"
    elif hasattr(kind, "toarray"):
        instead = "x.toarray()"
    elif kind.__name__ in {"Period", "Interval"}:
        instead = "its text, x.astype(str)"
    else:
        return RETURNED
    return f"Return {instead}. {RETURNED}"


def _make_unusable_problem(who: str, what: str) -> ProblemError:
    return ProblemError(500, f"{who} returned {what}")
