"""What the faces of an instance (HTTP, gRPC) and its core say to each other.

Plain classes with slots rather than dataclasses with checks: one of each is made for every request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from numpy.typing import NDArray

__all__ = [
    "ANSWERING",
    "IDLE",
    "PHASES",
    "RUNNING",
    "WAITING",
    "Body",
    "InferRequest",
    "InferResponse",
    "Reply",
    "Request",
    "RequestedOutput",
    "Response",
    "Slot",
    "Tensor",
]

PHASES: Final = ("idle", "waiting", "running", "answering")
"""The words for a connection's phase; its number is the place in here, one byte in the shared table of connections."""

IDLE: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
ANSWERING: Final = 3

Body = bytes | bytearray | memoryview


class Slot(Protocol):
    """A connection's place in the table that outlives the process. Set from any thread: one byte is written."""

    @property
    def phase(self) -> int:
        """The number of one of :data:`PHASES`."""
        ...

    @phase.setter
    def phase(self, value: int) -> None: ...


class Request:
    """One HTTP request, read whole."""

    __slots__ = ("body", "headers", "method", "path", "query", "received", "slot")

    def __init__(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: Body = b"",
        *,
        received: float = 0.0,
        slot: Slot | None = None,
    ) -> None:
        """``received`` is the time of its first byte on the monotonic clock; 0: now. Header names are lower case."""
        self.method = method
        self.path = path
        self.query = query
        self.headers = {} if headers is None else headers
        self.body = body
        self.received = received
        self.slot = slot


class Response:
    """One HTTP answer. A body in parts is written as it is, never joined."""

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


Reply = Callable[[Response], None]
"""Called exactly once a request, on the loop's thread, now or later."""


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
    """An output that the caller names, and whether its bytes are to follow the JSON."""

    __slots__ = ("binary", "name")

    def __init__(self, name: str, *, binary: bool = False) -> None:
        self.name = name
        self.binary = binary


class InferRequest:
    """A request for an inference, whatever it came by."""

    __slots__ = ("binary_output", "id", "inputs", "outputs", "parameters", "slot", "timeout_s")

    def __init__(
        self,
        inputs: list[Tensor],
        *,
        id: str = "",
        outputs: list[RequestedOutput] | None = None,
        parameters: dict[str, Any] | None = None,
        binary_output: bool = False,
        timeout_s: float | None = None,
        slot: Slot | None = None,
    ) -> None:
        """``outputs`` None: all of them. ``timeout_s``: what the caller allows, of which the shorter counts."""
        self.inputs = inputs
        self.id = id
        self.outputs = outputs
        self.parameters = {} if parameters is None else parameters
        self.binary_output = binary_output
        self.timeout_s = timeout_s
        self.slot = slot


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
