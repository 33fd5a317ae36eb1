"""The plan of a load, the target, bodies and time limits of its requests; and what it needs of a connection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scanflow.errors import UnavailableError

PAUSE_S = 0.01
"""Pause between two attempts to open a refused connection: each is a failed request, and thousands of them are
useless."""

NEVER = math.nan
"""The sending time of a request that was not sent."""


class LoadError(UnavailableError):
    """The load could not be generated, which says nothing about the requests; the text has the reason."""


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    url: str
    """``http://HOST:PORT/PATH``, or ``grpc://HOST:PORT/SERVICE/METHOD`` for calls of a gRPC method; ``https`` and
    ``grpcs`` over TLS."""

    authority: str = ""
    """The file of the authority that is trusted; empty: the system's."""

    certificate: str = ""
    """The file of the client certificate that is shown; empty: none."""

    key: str = ""

    method: str = "POST"
    bodies: Sequence[str] = ("",)
    """In base64, sent in rotation: HTTP bodies, or serialized gRPC messages."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of each request; gRPC sends them as metadata."""

    connections: int = 8
    requests: int | None = None
    duration_s: float | None = None
    timeout_s: float = 30.0
    """Longest time for an answer, from when the request was sent."""

    queue_s: float = 30.0
    """Longest time that a request may wait for a free connection, from when it was due."""

    expect: str | None = None
    """Text that a correct answer contains."""

    tally: str | None = None
    """A response header whose value is recorded for each answer: the instance that answered."""

    cpus: Sequence[int] = ()


class LoadConnection(Protocol):
    """A connection that sends one request at a time; each ends in the sender's ``record_result`` and ``release``."""

    @property
    def closed_meanwhile(self) -> bool:
        """Whether the server has closed it while it was idle, which clients check before they send."""
        raise NotImplementedError

    def send(self, due: float, number: int) -> None:
        """Send a request that was due at a time, by ``time.monotonic``."""

    def expire(self, now: float) -> None:
        """Abort a request that has taken longer than the plan allows."""

    async def close(self) -> None:
        """Close the connection at the end of the load."""


class Sender(Protocol):
    """The sender of a load, as its connections and its clock see it."""

    plan: LoadPlan
    began: float
    """When it began, by ``time.monotonic``; 0 before."""

    reconnects: int
    expect: bytes | None
    """What each answer must contain."""

    tally: bytes | None
    """The header of answers, in lower case, whose values are counted."""

    def build_message(self, number: int, /) -> bytes: ...

    def send_due(self, requests: Sequence[tuple[float, int]], *, late: bool) -> None: ...

    def record_result(
        self, number: int, due: float, sent: float, status: int, reason: str | None, tally: str | None
    ) -> None: ...

    def release(self, connection: LoadConnection) -> None:
        """Take a connection that may send its next request."""

    def replace(self, connection: LoadConnection) -> None:
        """Open another connection in the place of one that was closed."""
