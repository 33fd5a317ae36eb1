"""The plan of a load: the target, bodies and time limits of its requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scanflow.errors import UnavailableError

PAUSE_S = 0.01
"""Between two attempts at a connection that was refused: each is a failed request, and thousands are of no use."""

NEVER = math.nan
"""When a request was sent that was not."""


class LoadError(UnavailableError):
    """The load could not be made, which says nothing about the requests; the text has the reason."""


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    url: str
    """``http://HOST:PORT/PATH``, or ``grpc://HOST:PORT/SERVICE/METHOD`` for calls of a gRPC method."""

    method: str = "POST"
    bodies: Sequence[str] = ("",)
    """In base64, sent in turn: bodies of HTTP, or serialized messages of gRPC."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Of each request; gRPC sends them as metadata."""

    connections: int = 8
    requests: int | None = None
    duration_s: float | None = None
    timeout_s: float = 30.0
    """Longest that an answer may take, from when the request was sent."""

    queue_s: float = 30.0
    """Longest that a request may wait for a free connection, from when it was due."""

    expect: str | None = None
    """Text that a right answer contains."""

    tally: str | None = None
    """A header of the answers whose value is kept of each: who answered."""

    cpus: Sequence[int] = ()
