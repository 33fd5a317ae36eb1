"""The plan of a load: the target, bodies and time limits of its requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
