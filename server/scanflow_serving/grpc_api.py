"""The Open Inference Protocol over gRPC, and gRPC's own health service.

Metadata and readiness come from the HTTP routes, so that both protocols say the same. Every instance of a service
listens on the one port with SO_REUSEPORT, as gRPC does by itself.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from scanflow.errors import UnavailableError
from scanflow.http.client_certificates import FORWARDED, PeerCertificate
from scanflow.http.tls import HANDSHAKE_S, ServerTls
from scanflow.http.tls_files import TlsFiles
from scanflow.instance_messages import Limits
from scanflow.protos import SERVICE, get_message_class, list_methods
from scanflow_serving.inference_problems import ProblemError, invalid
from scanflow_serving.messages import InferRequest, InferResponse, Request, Response, Tensor
from scanflow_serving.oip import build_request, describe_content, describe_moments
from scanflow_serving.oip_tensors import DATATYPES, check_finite, from_binary, from_python, to_binary

_log = logging.getLogger(__name__)

_CONTENTS: Final = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of a tensor's elements unless they are raw; FP16 and BF16 have none."""

_STATUS: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_MESSAGE_EXTRA: Final = 64 * 1024
"""The allowance for the rest of a message besides its tensors, in bytes."""

_HEALTH_S: Final = 1.0
_REPOSITORY: Final = "model_repository"
_ALWAYS_OPEN: Final = frozenset({"ServerLive", "ServerReady"})


class RequestHandler(Protocol):
    async def handle(self, request: Request) -> Response: ...

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse: ...

    def ready(self) -> bool: ...

    def live(self) -> bool: ...


def get_status(problem: ProblemError) -> grpc.StatusCode:
    return _STATUS.get(problem.status, grpc.StatusCode.INTERNAL)


class GrpcApi:
    def __init__(
        self,
        core: RequestHandler,
        host: str,
        port: int,
        limits: Limits,
        *,
        service: str = "",
        token: str | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """``token``: the bearer token that all calls but health checks need; None: none. ``tls``: None if it speaks
        none."""
        self._core = core
        self._place = f"{host}:{port}"
        self._limits = limits
        self._tls = tls
        self._token = None if token is None else f"Bearer {token}".encode()
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]  # set where grpc.aio is there
        self._names = ("", SERVICE, *([service] if service else ()))
        self._server: grpc.aio.Server | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        most = self._limits.max_request_bytes + _MESSAGE_EXTRA
        options: list[tuple[str, int]] = [
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ]
        if self._limits.connection_age_s > 0:
            options += [
                ("grpc.max_connection_age_ms", int(self._limits.connection_age_s * 1000)),
                ("grpc.max_connection_age_grace_ms", int(self._limits.deadline_s * 1000)),
            ]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((self._make_handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if self._tls is None:
                server.add_insecure_port(self._place)
            else:
                server.add_secure_port(self._place, _make_credentials(self._tls))
        except RuntimeError as error:
            raise UnavailableError(
                f"gRPC cannot listen on {self._place}: {error}. Choose another: sf.Serving(grpc_port=...)."
            ) from error
        await self._report(self._core.ready())
        await server.start()
        self._server = server
        self._reporting = asyncio.create_task(self._keep_reporting())

    async def stop(self) -> None:
        """Send GOAWAY, and finish the calls in progress."""
        if self._reporting is not None:
            self._reporting.cancel()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(self._limits.deadline_s)
            self._server = None

    async def _report(self, ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._health.set(name, status.SERVING if ready else status.NOT_SERVING)

    async def _keep_reporting(self) -> None:
        before: bool | None = None
        while True:
            ready = self._core.ready()
            if ready != before:
                await self._report(ready)
                before = ready
            await asyncio.sleep(_HEALTH_S)

    def _make_handlers(self) -> grpc.GenericRpcHandler:
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
                partial(self._handle, name, request.FromString, behaviours[name]),
                response_serializer=response.SerializeToString,
            )
            for name, (request, response) in list_methods().items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _handle(
        self,
        name: str,
        read: Callable[[bytes], Any],
        behaviour: Callable[[Any, Any], Awaitable[Any]],
        raw: bytes,
        context: Any,
    ) -> Any:
        try:
            if self._tls is not None:
                self._check_client(self._tls, name, context)
            if self._token is not None and name not in _ALWAYS_OPEN:
                authorization = dict(context.invocation_metadata() or ()).get("authorization", "")
                if not hmac.compare_digest(str(authorization).encode(), self._token):
                    raise ProblemError(401, "This service needs a bearer token.")
            try:
                request = read(raw)
            except DecodeError as error:
                raise invalid(f"The message cannot be parsed: {error}.") from None
            return await behaviour(request, context)
        except ProblemError as problem:
            trailing = ()
            if problem.retry_after_s is not None:
                trailing = (("grpc-retry-pushback-ms", str(int(problem.retry_after_s * 1000))),)  # type: ignore[assignment]
            await context.abort(get_status(problem), problem.detail, trailing)
            raise AssertionError("aborting raises") from problem

    def _check_client(self, tls: ServerTls, name: str, context: Any) -> None:
        if tls.clients is None or name in _ALWAYS_OPEN:
            return
        (certificate, *_) = context.auth_context().get("x509_pem_cert") or (b"",)
        forwarded = [str(value) for key, value in context.invocation_metadata() or () if key == FORWARDED]
        refusal = tls.refuse(_read_peer(certificate) if certificate else None, forwarded)
        if refusal is not None:
            raise ProblemError(refusal.status, refusal.detail)

    async def _server_live(self, _request: Any, _context: Any) -> Any:
        return get_message_class("ServerLiveResponse")(live=self._core.live())

    async def _server_ready(self, _request: Any, _context: Any) -> Any:
        return get_message_class("ServerReadyResponse")(ready=self._core.ready())

    async def _model_ready(self, request: Any, _context: Any) -> Any:
        answer = await self._core.handle(Request("GET", f"{_build_path(request.name, request.version)}/ready"))
        if answer.status == 404:
            raise ProblemError(404, _get_detail(answer))
        return get_message_class("ModelReadyResponse")(ready=answer.status == 200)

    async def _server_metadata(self, _request: Any, _context: Any) -> Any:
        written = await self._fetch_document("/v2", "ServerMetadataResponse")
        written.extensions[:] = [name for name in written.extensions if name != _REPOSITORY]  # over HTTP only
        return written

    async def _model_metadata(self, request: Any, _context: Any) -> Any:
        return await self._fetch_document(_build_path(request.name, request.version), "ModelMetadataResponse")

    async def _model_infer(self, request: Any, context: Any) -> Any:
        read = read_request(request, allow_nan=self._limits.allow_nan)
        allowed_s = self._limits.deadline_s
        if (remaining_s := context.time_remaining()) is not None:
            allowed_s = min(allowed_s, remaining_s)
        answer = await self._core.infer(request.model_name, request.model_version, read, allowed_s)
        return write_response(answer, raw=bool(request.raw_input_contents))

    async def _fetch_document(self, path: str, kind: str) -> Any:
        answer = await self._core.handle(Request("GET", path))
        if answer.status != 200:
            raise ProblemError(answer.status, _get_detail(answer))
        return ParseDict(json.loads(answer.join_body()), get_message_class(kind)(), ignore_unknown_fields=True)


_read_peer: Final = lru_cache(1024)(PeerCertificate.from_pem)
"""One connection sends the same certificate with each call."""


def _make_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return credentials that take a renewed certificate for the next connection.

    gRPC can ask for a certificate only as it needs one: who has none gets no connection.
    """
    asks = tls.clients is not None
    first = _read_files(tls.files, asks=asks)

    def read_renewed() -> Any:
        try:
            return _read_files(tls.files, asks=asks) if tls.has_changed() else None
        except OSError as error:
            _log.warning("The certificate is not renewed: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(first, read_renewed, require_client_authentication=asks)


def _read_files(files: TlsFiles, *, asks: bool) -> Any:
    pairs = [(Path(files.key).read_bytes(), Path(files.certificate).read_bytes())]
    return grpc.ssl_server_certificate_configuration(pairs, Path(files.authority).read_bytes() if asks else None)


def read_request(request: Any, *, allow_nan: bool) -> InferRequest:
    raws: Sequence[bytes] = request.raw_input_contents
    if raws and len(raws) != len(request.inputs):
        raise invalid(f"There are {len(request.inputs)} inputs and {len(raws)} raw_input_contents.")
    tensors = [
        _read_tensor(encoded, raws[place] if raws else None, allow_nan=allow_nan)
        for place, encoded in enumerate(request.inputs)
    ]
    parameters = {name: _get_value(value) for name, value in request.parameters.items()}
    outputs = [(output.name, output.parameters) for output in request.outputs]
    return build_request(tensors, id=request.id, parameters=parameters, outputs=outputs)


def write_response(answer: InferResponse, *, raw: bool) -> Any:
    """Return an answer as a ``ModelInferResponse``: raw if the request was, or if a datatype requires it."""
    raw = raw or any(tensor.datatype not in _CONTENTS for tensor in answer.outputs)
    written = get_message_class("ModelInferResponse")(
        model_name=answer.model, model_version=answer.version, id=answer.id
    )
    for name, value in answer.parameters.items():
        _set_parameter(written.parameters[name], value)
    for tensor in answer.outputs:
        output = written.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        for name, value in describe_content(tensor).items():
            _set_parameter(output.parameters[name], value)
        if raw:
            written.raw_output_contents.append(bytes(to_binary(tensor)))
        else:
            getattr(output.contents, _CONTENTS[tensor.datatype]).extend(tensor.data.ravel().tolist())
    return written


def _read_tensor(encoded: Any, raw: bytes | None, *, allow_nan: bool) -> Tensor:
    where = f"The input {encoded.name[:80]!r}"
    parameters = {name: _get_value(value) for name, value in encoded.parameters.items()}
    shape = list(encoded.shape)
    if raw is not None:
        if encoded.HasField("contents"):
            raise invalid(f"{where} has contents and raw_input_contents. Send one of them.")
        own = bytearray(raw)  # writable: a component may change its input in place
        tensor = from_binary(encoded.name, encoded.datatype, shape, own, allow_nan=allow_nan, where=where)
        return describe_moments(tensor, parameters)
    place = _CONTENTS.get(encoded.datatype)
    if place is None and encoded.datatype in DATATYPES:
        raise invalid(f"{where}: {encoded.datatype} can be sent as raw_input_contents only.")
    values = list(getattr(encoded.contents, place)) if place else []
    tensor = from_python(encoded.name, encoded.datatype, shape, values, where=where)
    if not allow_nan and tensor.data.dtype.kind == "f":
        check_finite(tensor.data, where)
    return describe_moments(tensor, parameters)


def _get_value(parameter: Any) -> Any:
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


def _build_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _get_detail(answer: Response) -> str:
    try:
        return str(json.loads(answer.join_body())["detail"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {answer.status}"
