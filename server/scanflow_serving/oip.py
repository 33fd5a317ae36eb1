"""The Open Inference Protocol v2 over HTTP: JSON, its binary tensor extension, and bodies that are one raw tensor."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from scanflow.errors import did_you_mean
from scanflow_serving.inference_problems import ProblemError, invalid
from scanflow_serving.messages import Body, Headers, InferRequest, InferResponse, RequestedOutput, Response, Tensor
from scanflow_serving.oip_tensors import from_binary, from_json, from_python, to_binary, to_list
from scanflow_serving.signature import NodeSignature

HEADER_LENGTH: Final = "inference-header-content-length"
OCTETS: Final = "application/octet-stream"
JSON_TYPE: Final = "application/json"
PARAMETERS: Final = frozenset({"binary_data_output", "sequence_id", "timeout"})
"""The parameters of a request that are the protocol's own, not the model's."""

MOMENTS: Final = frozenset({"date", "datetime"})
"""The ``content_type`` of inputs whose texts are date-times."""

_JSON_ELEMENTS: Final = {"content_type": "application/json"}
_TEXT_ELEMENTS: Final = {"content_type": "str"}

_OUTPUT_PARAMETERS: Final = frozenset({"binary_data"})
_NO_DATA: Final = msgspec.Raw(b"")


class _Input(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw = _NO_DATA


class _WantedOutput(msgspec.Struct, gc=False):
    name: str
    parameters: dict[str, Any] | None = None


class _Request(msgspec.Struct, gc=False):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_WantedOutput] | None = None


class _Output(msgspec.Struct, gc=False, omit_defaults=True):
    name: str
    datatype: str
    shape: Sequence[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _Answer(msgspec.Struct, gc=False, omit_defaults=True):
    model_name: str
    outputs: list[_Output]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] | None = None


_reader: Final = msgspec.json.Decoder(_Request)
_writer: Final = msgspec.json.Encoder()


def decode(body: Body, headers: Mapping[str, str], *, allow_nan: bool) -> InferRequest:
    """Decode a request from JSON, or from JSON followed by the bytes of its tensors."""
    length = headers.get(HEADER_LENGTH)
    if length is None:
        return _decode(body, None, allow_nan=allow_nan)
    if not length.isascii() or not length.isdigit():
        raise invalid(f"The header Inference-Header-Content-Length should be a number, but is {length[:40]!r}.")
    if int(length) > len(body):
        raise invalid(f"Inference-Header-Content-Length is {int(length)}, but the body has only {len(body)} bytes.")
    whole = memoryview(_make_writable(body))
    return _decode(whole[: int(length)], whole[int(length) :], allow_nan=allow_nan)


def decode_raw(body: Body, declared: NodeSignature, *, allow_nan: bool) -> InferRequest:
    """Decode a request from the bytes of one tensor: of the declared input's datatype, or UINT8."""
    data = _make_writable(body)
    if len(declared.inputs) > 1:
        raise invalid(
            f"A raw body is one tensor, but {len(declared.inputs)} are declared: {declared.format_inputs()}. Send JSON."
        )
    if not declared.inputs:
        return InferRequest([Tensor("input-0", "UINT8", np.frombuffer(data, np.uint8))])
    spec = declared.inputs[0]
    if spec.datatype == "BYTES":
        whole = np.array([bytes(data)], dtype=object).reshape([1] * len(spec.shape))
        return InferRequest([Tensor(spec.name, "BYTES", whole)])
    width = 2 if spec.datatype == "BF16" else spec.make_example().dtype.itemsize
    shape = _fill_shape(spec.shape, len(data) // width)
    where = f"The body, the input {spec.name!r}"
    if shape is None or len(data) % width:
        raise invalid(f"{where}: {len(data)} bytes are not a {spec}.")
    return InferRequest([from_binary(spec.name, spec.datatype, shape, data, allow_nan=allow_nan, where=where)])


def pick_outputs(tensors: list[Tensor], wanted: Sequence[RequestedOutput] | None) -> list[Tensor]:
    if not wanted:
        return tensors
    tensors_by_name = {tensor.name: tensor for tensor in tensors}
    for output in wanted:
        if output.name not in tensors_by_name:
            raise invalid(
                f"There is no output {output.name[:80]!r}.{did_you_mean(output.name[:80], tensors_by_name)} "
                f"Given: {', '.join(map(repr, tensors_by_name))}."
            )
    return [tensors_by_name[output.name] for output in wanted]


def describe_content(tensor: Tensor) -> dict[str, str]:
    """Return the parameters of an output that say what its BYTES are: text, JSON texts, or nothing more."""
    return dict(_JSON_ELEMENTS if tensor.holds_json else _TEXT_ELEMENTS if tensor.holds_text else {})


def encode(answer: InferResponse, request: InferRequest, headers: Headers = ()) -> Response:
    is_binary = {output.name: output.binary for output in request.outputs} if request.outputs else None
    parts: list[bytes | memoryview] = []
    outputs: list[_Output] = []
    for tensor in answer.outputs:
        about: dict[str, Any] = {**describe_content(tensor)}
        if is_binary[tensor.name] if is_binary is not None else request.binary_output:
            parts.append(to_binary(tensor))
            parameters = {**about, "binary_data_size": len(parts[-1])}
            outputs.append(_Output(tensor.name, tensor.datatype, tensor.data.shape, parameters))
        else:
            outputs.append(_Output(tensor.name, tensor.datatype, tensor.data.shape, about or None, to_list(tensor)))
    head = _writer.encode(_Answer(answer.model, outputs, answer.version, answer.id, answer.parameters or None))
    if not parts:
        return Response(200, head, JSON_TYPE, headers)
    return Response(200, [head, *parts], OCTETS, (*headers, (HEADER_LENGTH, str(len(head)))))


def should_send_raw(headers: Mapping[str, str]) -> bool:
    return OCTETS in headers.get("accept", "")


def _decode(body: Body, rest: memoryview | None, *, allow_nan: bool) -> InferRequest:
    try:
        read = _reader.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not (allow_nan and _has_nan(body)):
            raise _make_unreadable_problem(body, error) from None
        read = _read_with_nan(body)
    tensors: list[Tensor] = []
    begin = 0
    for entry in read.inputs:
        where = f"The input {entry.name[:80]!r}"
        size = entry.parameters.get("binary_data_size") if entry.parameters else None
        if size is None:
            data: Any = entry.data
            if data is _NO_DATA:
                raise invalid(f"{where} has no 'data'{' and no binary_data_size' if rest is not None else ''}.")
            make = from_json if isinstance(data, msgspec.Raw) else from_python
            tensor = make(entry.name, entry.datatype, entry.shape, data, allow_nan=allow_nan, where=where)
            tensors.append(describe_moments(tensor, entry.parameters) if entry.parameters else tensor)
            continue
        if entry.data is not _NO_DATA:
            raise invalid(f"{where} has both 'data' and a binary_data_size. Send one of them.")
        part = _take_part(rest, begin, size, where)
        begin += len(part)
        tensor = from_binary(entry.name, entry.datatype, entry.shape, part, allow_nan=allow_nan, where=where)
        tensors.append(describe_moments(tensor, entry.parameters) if entry.parameters else tensor)
    outputs = [(output.name, output.parameters or {}) for output in read.outputs] if read.outputs else ()
    request = build_request(tensors, id=read.id or "", parameters=read.parameters or {}, outputs=outputs)
    if rest is not None and begin < len(rest):
        raise invalid(f"After the inputs' binary data there are {len(rest) - begin} more bytes in the body.")
    return request


def describe_moments(tensor: Tensor, parameters: Mapping[str, Any]) -> Tensor:
    """Return an input with what its parameters say of its texts: that they are date-times, and of which unit."""
    if tensor.datatype == "BYTES" and parameters.get("content_type") in MOMENTS:
        tensor.content, tensor.unit = str(parameters["content_type"]), str(parameters.get("unit") or "")
    return tensor


def _read_with_nan(body: Body) -> _Request:
    """Decode JSON with NaN and Infinity by Python's slower decoder."""
    try:
        loose = json.loads(bytes(body))
        datas = [entry.pop("data", _NO_DATA) for entry in loose["inputs"]]
        read = msgspec.convert(loose, _Request)
    except (ValueError, RecursionError, msgspec.ValidationError, TypeError, AttributeError, LookupError) as error:
        raise _make_unreadable_problem(body, error) from None
    for entry, data in zip(read.inputs, datas, strict=True):
        entry.data = data
    return read


def build_request(
    tensors: list[Tensor], *, id: str, parameters: dict[str, Any], outputs: Sequence[tuple[str, Mapping[str, Any]]]
) -> InferRequest:
    """Check the parts of a request, whichever transport they came by, and return it. ``outputs``: the names of those
    that are asked for, with their parameters; empty: all."""
    if not tensors:
        raise invalid("The list 'inputs' is empty: there is nothing to infer from.")
    if len(tensors) > 1 and len({tensor.name for tensor in tensors}) < len(tensors):
        raise invalid("Two inputs have the same name.")
    request = InferRequest(tensors, id=id, parameters=parameters)
    if parameters:
        request.binary_output = parameters.get("binary_data_output") is True
        request.timeout_s = _parse_timeout(parameters)
    if outputs:
        for name, about in outputs:
            _check_output_parameters(name, about)
        request.outputs = [
            RequestedOutput(name, binary=bool(about.get("binary_data", request.binary_output)))
            for name, about in outputs
        ]
    return request


def _check_output_parameters(name: str, parameters: Iterable[str]) -> None:
    """Refuse what the client asks of an output and would not get, such as Triton's ``classification``."""
    if unknown := next((parameter for parameter in parameters if parameter not in _OUTPUT_PARAMETERS), None):
        raise invalid(
            f"The output {name[:80]!r} has the parameter {unknown[:80]!r}, which is not supported. "
            "Leave it out (in tritonclient: class_count, shared memory)."
        )


def _parse_timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return Triton's ``timeout`` parameter, which is in microseconds, in seconds."""
    if parameters.get("sequence_id"):
        raise invalid("The parameter 'sequence_id' is not supported: no state is kept from one request to the next.")
    timeout = parameters.get("timeout")
    if timeout is None or timeout == 0:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout < 0:
        raise invalid(f"The parameter 'timeout' must be a positive number of microseconds, not {timeout!r:.40}.")
    return float(timeout) / 1e6


def _make_writable(body: Body) -> Body:
    """Return the body as writable memory, since arrays share it and components may change them."""
    return bytearray(body) if isinstance(body, bytes) else body


def _take_part(rest: memoryview | None, begin: int, size: object, where: str) -> memoryview:
    if rest is None:
        raise invalid(
            f"{where} has a binary_data_size, but the request has no header Inference-Header-Content-Length that says "
            "where its JSON ends."
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise invalid(f"{where}: binary_data_size should be a number of bytes, but is {size!r:.40}.")
    if begin + size > len(rest):
        raise invalid(f"{where}: binary_data_size is {size}, but {len(rest) - begin} bytes are left in the body.")
    return rest[begin : begin + size]


def _has_nan(body: Body) -> bool:
    text = bytes(body)
    return b"NaN" in text or b"Infinity" in text


def _make_unreadable_problem(body: Body, error: Exception) -> ProblemError:
    if not len(body):
        return invalid('The body is empty. Send a request of the Open Inference Protocol: {"inputs": [...]}.')
    if isinstance(error, msgspec.ValidationError):
        text = str(error)
        if "required field" in text or " - at `$" in text:
            return invalid(f"The request does not follow the protocol: {_format_reason(text)}.")
        return invalid(f"The request should be an object with 'inputs': {_format_reason(text)}.")
    if _has_nan(body):
        return invalid(
            f"The body is not JSON: {error}. JSON has neither NaN nor Infinity; this service takes finite numbers only."
        )
    if isinstance(error, RecursionError):
        return invalid("The body is nested too deeply.")
    return invalid(f"The body is not JSON: {str(error).removeprefix('JSON is malformed: ')[:200]}.")


def _format_reason(text: str) -> str:
    what, _, where = text.partition(" - at `")
    place = where.rstrip("`").removeprefix("$").removeprefix(".")
    what = what[:1].lower() + what[1:].replace("`", "'")
    return f"{what}, at {place}" if place else what


def _fill_shape(shape: Sequence[int], count: int) -> list[int] | None:
    """Fill in the unknown sizes of a shape for ``count`` elements; None: that is impossible."""
    known_count = math.prod(size for size in shape if size >= 0)
    if all(size >= 0 for size in shape):
        return list(shape) if known_count == count else None
    if known_count == 0 or count % known_count:
        return None
    unknown = itertools.chain([count // known_count], itertools.repeat(1))  # the batch dimension takes all
    return [size if size >= 0 else next(unknown) for size in shape]
