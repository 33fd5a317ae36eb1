"""The serving options of an online workflow: address, limits, recording and backup."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from scanflow.app.model import Model, Number, Whole
from scanflow.app.parameters import Fixed, Variables
from scanflow.app.quantities import Seconds, Size, Wait, parse_memory
from scanflow.errors import InvalidError
from scanflow.names import check_name

MAX_QUEUE = 100_000
MAX_CONCURRENCY = 256  # threads of one instance
_Port = Annotated[Whole, Field(ge=1, le=65535)]


class Batching(Model):
    """Let a service answer requests that wait together, in one call."""

    max_size: Whole = Field(ge=1)
    max_delay: Wait = 0.0
    """Seconds that a request waits for others. 0: it joins those that wait already."""


class Serving(Model):
    """What holds for a whole online workflow, whatever its graph is."""

    port: _Port | None = None
    """The port of HTTP. Unset: the next one that is free, and the same one for as long as the service lives."""

    grpc_port: Annotated[Whole, Field(ge=0, le=65535)] | None = None
    """The port of gRPC. Unset: the next one that is free. 0: no gRPC."""

    deadline: Seconds = 30.0
    """Longest that a request may take, in seconds; it is then answered 504."""

    queue: Whole = Field(default=128, ge=1, le=MAX_QUEUE)
    """Most requests that wait or run in one instance; the next is answered 429, with when to try again."""

    max_request: Size = "64Mi"
    """Largest body of a request; a larger one is answered 413."""

    connection_age: Wait = 300.0
    """The first response on an older connection says ``Connection: close``, so that load spreads. 0: never."""

    concurrency: Whole = Field(default=1, ge=1, le=MAX_CONCURRENCY)
    """Calls of components at the same time in one instance. More than 1 asks that they are thread-safe."""

    allow_nan: bool = False
    """Whether inputs may hold NaN or infinity; such a request is otherwise answered 400."""

    record: Number = Field(default=0.0, ge=0, le=1)
    """The fraction of predictions that is written to the tracker. 0: none; 1: all."""

    backup: Annotated[str, AfterValidator(lambda name: check_name(name, "workflow"))] | None = None
    """Another online workflow of the application, which answers while this one has no instance that could."""

    hand_back_after: Whole = Field(default=3, ge=1)
    """Consecutive successful health checks before it fails back from its backup."""

    keep_shape: bool = True
    """Whether a model's version is kept with the instances and cores that it is served with here, to be served with
    them again. Not for what serves it to try something."""

    env: Variables = Field(default_factory=Fixed)
    auth: str | None = None
    """Where the bearer token is that requests must carry: ``env:NAME`` or ``file:PATH``. Unset: they need none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.auth is not None and not re.fullmatch("(env|file):.+", self.auth):
            raise InvalidError(
                "Serving.auth is a reference to the token, not the token itself. Write env:NAME or file:PATH."
            )
        if self.port is not None and self.port == self.grpc_port:
            raise InvalidError(
                f"Serving has port {self.port} for both HTTP and gRPC. Give gRPC another, or none: grpc_port=0."
            )
        return self

    @property
    def max_request_bytes(self) -> int:
        return parse_memory(self.max_request, least=1)
