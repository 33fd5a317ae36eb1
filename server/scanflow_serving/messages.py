"""Requests, responses and tensors, exchanged by the protocols of an instance (HTTP, gRPC) and its graph.

Structs of msgspec rather than checked dataclasses: one of each is made for every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from numpy.typing import NDArray

Body = bytes | bytearray | memoryview
Headers = tuple[tuple[str, str], ...]


class Request(Struct, eq=False):
    method: str
    path: str
    """Decoded."""

    query: str = ""
    headers: dict[str, str] = {}
    """Their names are in lower case."""

    body: Body = b""


class Response(Struct, eq=False):
    """One HTTP response. A body in parts is written as it is, never joined."""

    status: int
    body: bytes | Sequence[bytes | memoryview] = b""
    content_type: str = "application/json"
    headers: Headers = ()

    def join_body(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Tensor(Struct, eq=False):
    """A named array of the Open Inference Protocol.

    ``data`` has the shape that was declared. BYTES are object arrays of ``bytes``; BF16, which numpy has not, is held
    as float32.
    """

    name: str
    datatype: str
    data: NDArray[Any]
    holds_json: bool = False
    """Whether its BYTES are JSON texts, of values that no datatype has."""

    holds_text: bool = False
    """Whether its BYTES are text, in UTF-8."""

    content: str = ""
    """What the client says that its BYTES are: ``datetime``, ``date``, or nothing that matters here."""

    unit: str = ""
    """The unit of its date-times, as NumPy names it."""


class RequestedOutput(Struct, eq=False):
    name: str
    binary: bool = False
    """Whether its bytes follow the JSON."""


class InferRequest(Struct, eq=False):
    inputs: list[Tensor]
    id: str = ""
    outputs: list[RequestedOutput] | None = None
    """None: all of them."""

    parameters: dict[str, Any] = {}
    binary_output: bool = False
    timeout_s: float | None = None
    """The client's timeout; the service's own applies if it is shorter."""


class InferResponse(Struct, eq=False):
    """The answer to an inference. ``outputs`` holds the requested outputs, in that order."""

    model: str
    version: str
    outputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Any] = {}
