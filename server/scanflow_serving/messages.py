"""Requests, responses and tensors, as the protocols of an instance (HTTP, gRPC) and its graph exchange them.

Plain classes with slots rather than checked dataclasses: one of each is made for every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Body = bytes | bytearray | memoryview


class Request:
    __slots__ = ("body", "headers", "method", "path", "query")

    def __init__(
        self, method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: Body = b""
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = {} if headers is None else headers
        self.body = body


class Response:
    """One HTTP response. A body in parts is written as it is, never joined."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes | Sequence[bytes | memoryview] = b"",
        content_type: str = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Tensor:
    """A named array of the Open Inference Protocol.

    ``data`` has the shape that was declared. BYTES are object arrays of ``bytes``; BF16, which numpy has not, is held
    as float32.
    """

    __slots__ = ("data", "datatype", "name")

    def __init__(self, name: str, datatype: str, data: NDArray[Any]) -> None:
        self.name = name
        self.datatype = datatype
        self.data = data

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {list(self.data.shape)})"


class RequestedOutput:
    __slots__ = ("binary", "name")

    def __init__(self, name: str, *, binary: bool = False) -> None:
        self.name = name
        self.binary = binary


class InferRequest:
    __slots__ = ("binary_output", "id", "inputs", "outputs", "parameters", "timeout_s")

    def __init__(
        self,
        inputs: list[Tensor],
        *,
        id: str = "",
        outputs: list[RequestedOutput] | None = None,
        parameters: dict[str, Any] | None = None,
        binary_output: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self.inputs = inputs
        self.id = id
        self.outputs = outputs
        self.parameters = {} if parameters is None else parameters
        self.binary_output = binary_output
        self.timeout_s = timeout_s


class InferResponse:
    """The answer to an inference. ``outputs`` holds just what was asked for, in that order."""

    __slots__ = ("id", "model", "outputs", "parameters", "revision", "version")

    def __init__(
        self,
        model: str,
        version: str,
        outputs: list[Tensor],
        *,
        id: str = "",
        parameters: dict[str, Any] | None = None,
        revision: str = "",
    ) -> None:
        self.model = model
        self.version = version
        self.outputs = outputs
        self.id = id
        self.parameters = {} if parameters is None else parameters
        self.revision = revision
