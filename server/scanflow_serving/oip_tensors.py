"""The tensors of the Open Inference Protocol: datatypes, and conversion from and to JSON and bytes."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from scanflow.errors import did_you_mean
from scanflow_serving.inference_problems import ProblemError, invalid
from scanflow_serving.messages import Body, Tensor

DATATYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<f4"),
    "BYTES": np.dtype("O"),
}
"""The numpy dtype of each datatype. numpy has no BF16: it is held as float32."""

_NAMES: Final = {dtype: name for name, dtype in DATATYPES.items() if name != "BF16"}
FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_BOUNDS: Final = {"FP16": 65520.0, "FP32": 3.4028235677973366e38, "BF16": 3.3961775292304601e38}
"""The first number that rounds to infinity."""

MAX_DIMENSIONS: Final = 32  # what every supported numpy holds
_MAX_ELEMENTS: Final = 1 << 48
_LENGTH: Final = struct.Struct("<I")
_INDEX: Final = re.compile(r"\[(\d+)\]")


def _get_dtype(datatype: str, where: str) -> np.dtype[Any]:
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        hint = did_you_mean(datatype.upper()[:40], DATATYPES) or f" Known: {', '.join(DATATYPES)}."
        raise invalid(f"{where}: the datatype {datatype[:40]!r} is not known.{hint}")
    return dtype


def check_shape(shape: Sequence[int], where: str) -> int:
    if len(shape) > MAX_DIMENSIONS:
        raise invalid(f"{where}: the shape has {len(shape)} dimensions, but at most {MAX_DIMENSIONS} are supported.")
    if any(size < 0 for size in shape):
        raise invalid(f"{where}: the shape {_format_shape(shape)} has a negative dimension. Say how large the data is.")
    count = math.prod(shape)
    if count > _MAX_ELEMENTS or any(size > _MAX_ELEMENTS for size in shape):  # [0, 2**63] has none, but no array has it
        raise invalid(f"{where}: the shape {_format_shape(shape)} has more elements than any request can hold.")
    return count


def check_finite(data: NDArray[Any], where: str) -> None:
    """Check that an array of floating-point numbers holds neither NaN nor infinity."""
    if np.isfinite(data).all():
        return
    place = int(np.flatnonzero(~np.isfinite(data))[0])
    raise make_infinite_problem(f"{where}: element {place}", "NaN" if np.isnan(data.flat[place]) else "infinity")


def make_infinite_problem(where: str, what: str = "null, a missing number (NaN)") -> ProblemError:
    return invalid(
        f"{where} is {what}, but this service takes only finite numbers. Send finite ones, or deploy the service with "
        "allow_nan."
    )


def from_json(
    name: str, datatype: str, shape: Sequence[int], data: Body | msgspec.Raw, *, allow_nan: bool = False, where: str
) -> Tensor:
    """Return a tensor from the JSON text of its ``data``: a flat list, or one nested as the shape.

    Its numbers are finite, since JSON has no others and values beyond the datatype are refused; with ``allow_nan``,
    null is NaN.
    """
    dtype = _get_dtype(datatype, where)
    count = check_shape(shape, where)
    depth = len(shape) if len(shape) > 1 and _is_nested(data) else 1
    try:
        values = _get_decoder(datatype, depth, allow_nan and datatype in FLOATS).decode(data)
    except msgspec.ValidationError as error:
        raise _make_value_problem(data, datatype, error, where) from None
    return Tensor(name, datatype, _build(values, dtype, shape, count, depth, where))


def from_python(
    name: str, datatype: str, shape: Sequence[int], data: object, *, allow_nan: bool = False, where: str
) -> Tensor:
    """As :func:`from_json`, from decoded data, which may hold NaN and infinity if they are allowed."""
    dtype = _get_dtype(datatype, where)
    count = check_shape(shape, where)
    depth = len(shape) if len(shape) > 1 and isinstance(data, list) and data and isinstance(data[0], list) else 1
    if datatype == "BYTES" and isinstance(data, list) and all(isinstance(element, bytes) for element in data):
        return Tensor(name, datatype, _build(data, dtype, shape, count, 1, where))
    try:
        element = _get_element_type(datatype)
        if datatype in FLOATS:
            element = float | None if allow_nan else float
        values = msgspec.convert(data, _nest_type(element, depth))
    except msgspec.ValidationError as error:
        raise invalid(f"{where}: {error} of its data; {datatype} takes {_describe_values(datatype)}.") from None
    array = _build(values, dtype, shape, count, depth, where)
    if datatype in _BOUNDS:
        _check_bounds(np.array(values, "f8").reshape(-1), datatype, where)
    return Tensor(name, datatype, array)


def _check_bounds(numbers: NDArray[Any], datatype: str, where: str) -> None:
    beyond = np.isfinite(numbers) & (np.abs(numbers) >= _BOUNDS[datatype])
    if beyond.any():
        place = int(np.flatnonzero(beyond)[0])
        raise invalid(
            f"{where}: element {place} is {numbers[place]:g}, but {datatype} takes {_describe_values(datatype)}."
        )


def from_binary(name: str, datatype: str, shape: Sequence[int], data: Body, *, allow_nan: bool, where: str) -> Tensor:
    """Return a tensor from its bytes: little endian, row by row; of BYTES each element after its length in 4 bytes.

    The array is a view of ``data`` if possible.
    """
    dtype = _get_dtype(datatype, where)
    count = check_shape(shape, where)
    if datatype == "BYTES":
        return Tensor(name, datatype, _split_bytes(data, count, where).reshape(shape))
    width = 2 if datatype == "BF16" else dtype.itemsize
    if len(data) != count * width:
        raise invalid(
            f"{where}: {datatype} of shape {_format_shape(shape)} takes {count * width} bytes, "
            f"but there are {len(data)}."
        )
    if datatype == "BF16":
        array = widen_bf16(np.frombuffer(data, "<u2"))
    else:
        array = np.frombuffer(data, np.uint8 if datatype == "BOOL" else dtype)
    if not array.flags.aligned:
        array = array.copy()
    if datatype == "BOOL":
        if count and array.max() > 1:
            raise invalid(f"{where}: a BOOL is a byte 0 or 1, but element {int(np.argmax(array > 1))} is neither.")
        array = array.view("?")
    if not allow_nan and datatype in FLOATS:
        check_finite(array, where)
    return Tensor(name, datatype, array.reshape(shape))


def to_binary(tensor: Tensor) -> bytes | memoryview:
    """Return a tensor's bytes, without a copy if its array is contiguous."""
    data = tensor.data
    if tensor.datatype == "BYTES":
        parts: list[bytes] = []
        for item in data.flat:
            parts += (_LENGTH.pack(len(item)), item)
        return b"".join(parts)
    if tensor.datatype == "BF16":
        return round_to_bf16(data).tobytes()
    dtype = DATATYPES[tensor.datatype]
    whole = np.ascontiguousarray(data, dtype)
    return whole.reshape(-1).view(np.uint8).data if whole.size else b""


def to_list(tensor: Tensor) -> list[Any]:
    """Return a tensor's elements as a flat list for JSON."""
    flat: list[Any] = tensor.data.ravel().tolist()
    if tensor.datatype != "BYTES":
        return flat
    try:
        return [item.decode() for item in flat]
    except UnicodeDecodeError as error:
        raise invalid(
            f"The output {tensor.name!r} holds bytes that are not UTF-8 text, which JSON cannot contain. "
            'Ask for it with "parameters": {"binary_data": true}.'
        ) from error


def find_datatype(dtype: np.dtype[Any]) -> str | None:
    """Return the datatype of a numpy dtype; None: it has none."""
    name = _NAMES.get(dtype)
    if name is not None:
        return name
    if dtype.name == "bfloat16":
        return "BF16"
    if dtype.kind in "US":
        return "BYTES"
    return _NAMES.get(dtype.newbyteorder("<")) if dtype.kind in "biuf" else None


def _build(values: Any, dtype: np.dtype[Any], shape: Sequence[int], count: int, depth: int, where: str) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):  # refused by name
            array = np.array(_to_bytes(values) if dtype.kind == "O" else values, dtype)
    except ValueError:
        raise invalid(f"{where}: the rows of its data differ in length; the shape is {_format_shape(shape)}.") from None
    except OverflowError:
        raise invalid(f"{where}: a number in its data is too large for {dtype.name}.") from None
    if depth > 1 and array.shape != tuple(shape):
        if array.ndim != depth:
            raise invalid(f"{where}: the rows of its data differ in length; the shape is {_format_shape(shape)}.")
        raise invalid(
            f"{where}: the shape is {_format_shape(shape)}, but the data is nested as {_format_shape(array.shape)}."
        )
    if array.size != count:
        raise invalid(f"{where}: the shape {_format_shape(shape)} has {count} elements, but the data has {array.size}.")
    return array.reshape(shape)


def _to_bytes(values: Any) -> Any:
    if isinstance(values, list):
        return [_to_bytes(value) for value in values]
    return values.encode() if isinstance(values, str) else values


def _is_nested(data: Body | msgspec.Raw) -> bool:
    begin = bytes(memoryview(data)[:64])
    return begin.startswith(b"[") and begin[1:].lstrip().startswith(b"[")


def _get_element_type(datatype: str) -> Any:
    """Return the msgspec type of an element, with its bounds."""
    dtype = DATATYPES[datatype]
    if dtype.kind == "b":
        return bool
    if dtype.kind == "O":
        return str
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if bounds.max > np.iinfo("i8").max:  # msgspec's bounds are of 64 bits; numpy refuses what is larger
            return Annotated[int, msgspec.Meta(ge=0)]
        return Annotated[int, msgspec.Meta(ge=int(bounds.min), le=int(bounds.max))]
    if datatype in _BOUNDS:
        return Annotated[float, msgspec.Meta(gt=-_BOUNDS[datatype], lt=_BOUNDS[datatype])]
    return float


def _nest_type(element: Any, depth: int) -> Any:
    for _ in range(depth):
        element = list[element]
    return element


@cache
def _get_decoder(datatype: str, depth: int, has_gaps: bool) -> msgspec.json.Decoder[Any]:
    element = _get_element_type(datatype)
    return msgspec.json.Decoder(_nest_type(element | None if has_gaps else element, depth))


def _describe_values(datatype: str) -> str:
    dtype = DATATYPES[datatype]
    if dtype.kind == "b":
        return "true and false"
    if dtype.kind == "O":
        return "text"
    if dtype.kind in "iu":
        return f"whole numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
    return f"numbers below {_BOUNDS[datatype]:.4g}" if datatype in _BOUNDS else "64-bit numbers"


def _make_value_problem(
    data: Body | msgspec.Raw, datatype: str, error: msgspec.ValidationError, where: str
) -> ProblemError:
    _, _, path = str(error).rpartition(" - at `$")
    places = [int(place) for place in _INDEX.findall(path)]
    at = "".join(f"[{place}]" for place in places)
    try:
        value: Any = msgspec.json.decode(data)
        for place in places:
            value = value[place]
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, LookupError):
        return invalid(
            f"{where}: its data{at and ' at ' + at} is not a {datatype}, which takes {_describe_values(datatype)}."
        )
    if not places:
        return invalid(f"{where}: its data should be a list, but is {_shorten(value)}.")
    if isinstance(value, list):
        return invalid(f"{where}: its data at {at} is a list: it should be flat, or nested as the shape says.")
    if value is None and datatype in FLOATS:
        return make_infinite_problem(f"{where}: its data at {at}")
    return invalid(
        f"{where}: its data at {at} is {_shorten(value)}, but {datatype} takes {_describe_values(datatype)}."
    )


def _shorten(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


def _split_bytes(data: Body, count: int, where: str) -> NDArray[Any]:
    """Return the elements of BYTES data, each of which follows its length."""
    whole = bytes(data)
    items: list[bytes] = []
    place = 0
    while place < len(whole):
        begin = place + _LENGTH.size
        if begin > len(whole):
            raise invalid(f"{where}: its bytes end within the length of element {len(items)}.")
        place = begin + _LENGTH.unpack_from(whole, place)[0]
        if place > len(whole):
            raise invalid(
                f"{where}: element {len(items)} should have {place - begin} bytes, but {len(whole) - begin} are left."
            )
        items.append(whole[begin:place])
        if len(items) > count:
            break
    if len(items) != count:
        more = "more" if len(items) > count else str(len(items))
        raise invalid(f"{where}: the shape has {count} elements, but its bytes hold {more}.")
    return np.fromiter(items, object)


def round_to_bf16(data: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(data, "<f4").view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(data), 0x7FC0, rounded).astype("<u2")


def widen_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 numbers of which ``bits`` are the upper halves."""
    return (bits.astype("<u4") << 16).view("<f4")


def _format_shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
