"""The Open Inference Protocol over gRPC: the same core behind another door.

Metadata and readiness are asked of the core by their HTTP routes, so that both doors say the same. Every instance of a
service listens on the one port with SO_REUSEPORT, as gRPC does by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc
import grpc.aio
import numpy as np

from scanflow.errors import UnavailableError
from scanflow.wire import Limits
from scanflow_serving.messages import InferRequest, InferResponse, Request, RequestedOutput, Response, Tensor
from scanflow_serving.oip import timeout_of
from scanflow_serving.problems import Problem, invalid
from scanflow_serving.protos import SERVICE, message, methods
from scanflow_serving.tensors import DATATYPES, from_binary, from_python, to_binary

__all__ = ["Core", "GrpcFace", "status_of"]

_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where a tensor's elements are when they are not raw; FP16 and BF16 have no such place."""

_STATUS: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_MESSAGE_EXTRA: Final = 64 * 1024
"""What a message has around its tensors."""


class Core(Protocol):
    """What is behind the door: :class:`scanflow_serving.routes.Application`."""

    def handle(self, request: Request, reply: Callable[[Response], None]) -> None:
        """Answer an HTTP request."""
        ...

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse:
        """Answer an inference."""
        ...

    def ready(self) -> bool:
        """Say whether requests can be answered."""
        ...

    def live(self) -> bool:
        """Say whether the instance is well."""
        ...


def status_of(problem: Problem) -> grpc.StatusCode:
    """Return gRPC's word for a problem."""
    return _STATUS.get(problem.status, grpc.StatusCode.INTERNAL)


class GrpcFace:
    """The gRPC server of one instance."""

    def __init__(self, core: Core, host: str, port: int, limits: Limits) -> None:
        self._core = core
        self._place = f"{host}:{port}"
        self._limits = limits
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            UnavailableError: another program has the port.
        """
        most = self._limits.max_request_bytes + _MESSAGE_EXTRA
        options: list[tuple[str, int]] = [
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
        ]
        if self._limits.connection_age_s > 0:
            options += [
                ("grpc.max_connection_age_ms", int(self._limits.connection_age_s * 1000)),
                ("grpc.max_connection_age_grace_ms", int(self._limits.deadline_s * 1000)),
            ]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            server.add_insecure_port(self._place)
        except RuntimeError as error:
            raise UnavailableError(
                f"gRPC cannot listen on {self._place}: {error}. Choose another: sf.Serving(grpc_port=...)."
            ) from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Say goodbye to callers, and let what is begun come to its end."""
        if self._server is not None:
            await self._server.stop(self._limits.deadline_s)
            self._server = None

    def _handlers(self) -> grpc.GenericRpcHandler:
        behaviours: Mapping[str, Callable[[Any, Any], Awaitable[Any]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                behaviours[name],
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
            for name, (request, response) in methods().items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _server_live(self, _request: Any, _context: Any) -> Any:
        return message("ServerLiveResponse")(live=self._core.live())

    async def _server_ready(self, _request: Any, _context: Any) -> Any:
        return message("ServerReadyResponse")(ready=self._core.ready())

    async def _model_ready(self, request: Any, context: Any) -> Any:
        answer = await self._ask(f"{_path(request.name, request.version)}/ready")
        if answer.status == 404:
            await _refuse(context, Problem(404, _detail(answer)))
        return message("ModelReadyResponse")(ready=answer.status == 200)

    async def _server_metadata(self, _request: Any, context: Any) -> Any:
        found = await self._document("/v2", context)
        return message("ServerMetadataResponse")(
            name=found["name"], version=found.get("version", ""), extensions=found.get("extensions", [])
        )

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        found = await self._document(_path(request.name, request.version), context)
        return message("ModelMetadataResponse")(
            name=found["name"],
            versions=found.get("versions", []),
            platform=found.get("platform", ""),
            inputs=[_described(one) for one in found.get("inputs", [])],
            outputs=[_described(one) for one in found.get("outputs", [])],
        )

    async def _model_infer(self, request: Any, context: Any) -> Any:
        try:
            read = read_request(request, allow_nan=self._limits.allow_nan)
            allowed = self._limits.deadline_s
            left = context.time_remaining()
            if left is not None:
                allowed = min(allowed, left)
            answer = await self._core.infer(request.model_name, request.model_version, read, allowed)
            return write_response(answer, raw=bool(request.raw_input_contents))
        except Problem as problem:
            await _refuse(context, problem)
            raise AssertionError("aborting raises") from problem

    async def _document(self, path: str, context: Any) -> dict[str, Any]:
        answer = await self._ask(path)
        if answer.status != 200:
            await _refuse(context, Problem(answer.status, _detail(answer)))
        found: dict[str, Any] = json.loads(_body(answer))
        return found

    async def _ask(self, path: str) -> Response:
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._core.handle(Request("GET", path), answered.set_result)
        return await answered


def read_request(request: Any, *, allow_nan: bool) -> InferRequest:
    """Return what a ``ModelInferRequest`` asks for.

    Raises:
        Problem: 400, it is not as the protocol says.
    """
    if not request.inputs:
        raise invalid("The list 'inputs' is empty: there is nothing to infer from.")
    raws: Sequence[bytes] = request.raw_input_contents
    if raws and len(raws) != len(request.inputs):
        raise invalid(f"There are {len(request.inputs)} inputs and {len(raws)} raw_input_contents.")
    tensors = [
        _read_tensor(one, raws[place] if raws else None, allow_nan=allow_nan)
        for place, one in enumerate(request.inputs)
    ]
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise invalid("Two inputs have the same name.")
    parameters = {name: _value(one) for name, one in request.parameters.items()}
    return InferRequest(
        tensors,
        id=request.id,
        parameters=parameters,
        outputs=[RequestedOutput(one.name, binary=True) for one in request.outputs] or None,
        timeout_s=timeout_of(parameters),
    )


def write_response(answer: InferResponse, *, raw: bool) -> Any:
    """Return an answer as a ``ModelInferResponse``: raw where the request was, or where there is no other way."""
    raw = raw or any(tensor.datatype not in _CONTENTS for tensor in answer.outputs)
    written = message("ModelInferResponse")(model_name=answer.model, model_version=answer.version, id=answer.id)
    for name, value in answer.parameters.items():
        _set_parameter(written.parameters[name], value)
    for tensor in answer.outputs:
        output = written.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        if raw:
            written.raw_output_contents.append(bytes(to_binary(tensor)))
        else:
            getattr(output.contents, _CONTENTS[tensor.datatype]).extend(tensor.data.ravel().tolist())
    return written


def _read_tensor(one: Any, raw: bytes | None, *, allow_nan: bool) -> Tensor:
    where = f"The input {one.name[:80]!r}"
    shape = list(one.shape)
    if raw is not None:
        if one.HasField("contents"):
            raise invalid(f"{where} has contents and raw_input_contents. Send one of them.")
        return from_binary(one.name, one.datatype, shape, raw, allow_nan=allow_nan, where=where)
    place = _CONTENTS.get(one.datatype)
    if place is None and one.datatype in DATATYPES:
        raise invalid(f"{where}: {one.datatype} can be sent as raw_input_contents only.")
    values = list(getattr(one.contents, place)) if place else []
    tensor = from_python(one.name, one.datatype, shape, values, where=where)
    if not allow_nan and tensor.data.dtype.kind == "f" and not np.isfinite(tensor.data).all():
        raise invalid(f"{where} holds NaN or infinity; this service takes finite numbers only.")
    return tensor


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _set_parameter(parameter: Any, value: Any) -> None:
    match value:
        case bool():
            parameter.bool_param = value
        case int():
            parameter.int64_param = value
        case float():
            parameter.double_param = value
        case _:
            parameter.string_param = value if isinstance(value, str) else json.dumps(value)


def _described(tensor: Mapping[str, Any]) -> Any:
    described = message("ModelMetadataResponse").TensorMetadata
    return described(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])


def _path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _body(answer: Response) -> bytes:
    return bytes(answer.body) if isinstance(answer.body, bytes) else b"".join(answer.body)


def _detail(answer: Response) -> str:
    try:
        return str(json.loads(_body(answer))["detail"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {answer.status}"


async def _refuse(context: Any, problem: Problem) -> None:
    trailing = ()
    if problem.retry_after_s is not None:
        trailing = (("retry-pushback-ms", str(int(problem.retry_after_s * 1000))),)  # type: ignore[assignment]
    await context.abort(status_of(problem), problem.detail, trailing)
