"""The serving options of an online workflow: address, limits, recording and backup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from scanflow.app.model import Model, Number, Whole, as_tuple
from scanflow.app.parameters import FrozenDict, Variables
from scanflow.app.quantities import Seconds, Size, Wait, parse_memory
from scanflow.app.secrets import SecretText
from scanflow.errors import InvalidError
from scanflow.names import check_common_name, check_name

MAX_QUEUE = 100_000
MAX_CONCURRENCY = 256  # threads of one instance
_Port = Annotated[Whole, Field(ge=1, le=65535)]


def _check_client(client: str) -> str:
    kind, _, name = client.partition("=")
    if kind != "CN":
        better = f"CN={client}" if "=" not in client else "CN=ada"
        raise InvalidError(
            f"Serving.clients: {client!r:.80} is no subject of a client certificate. Write CN= and the name that it "
            f"was issued for: {better!r:.80}"
        )
    return f"CN={check_common_name(name)}"


class Batching(Model):
    """Dynamic batching: answer queued requests in one call."""

    max_size: Whole = Field(ge=1)
    """The most requests that are answered in one call."""

    max_delay: Wait = 0.0
    """Seconds that a request waits for others. 0: it joins only requests that are already queued."""


class Serving(Model):
    """Options of a whole online workflow, independent of its graph."""

    port: _Port | None = None
    """The HTTP port. Unset: the next free one, which the service keeps until it is deleted."""

    grpc_port: Annotated[Whole, Field(ge=0, le=65535)] | None = None
    """The gRPC port. Unset: the next free one. 0: no gRPC."""

    deadline: Seconds = 30.0
    """The timeout of a request, in seconds; after it, the response is 504."""

    queue: Whole = Field(default=128, ge=1, le=MAX_QUEUE)
    """The maximum of queued and running requests of an instance; further ones get 429, with a ``Retry-After``."""

    max_request: Size = "64Mi"
    """The largest body of a request; a larger one gets 413."""

    connection_age: Wait = 300.0
    """The first response on an older connection says ``Connection: close``, so that load spreads. 0: never."""

    concurrency: Whole = Field(default=1, ge=1, le=MAX_CONCURRENCY)
    """Concurrent calls of components in one instance. More than 1 requires thread-safe components."""

    allow_nan: bool = False
    """Whether inputs may contain NaN or infinity; otherwise such a request gets 400."""

    record: Number = Field(default=0.0, ge=0, le=1)
    """The fraction of predictions that are recorded in the tracker. 0: none; 1: all."""

    backup: Annotated[str, AfterValidator(lambda name: check_name(name, "workflow"))] | None = None
    """Another online workflow of the application, which serves requests while this one has no ready instance."""

    hand_back_after: Whole = Field(default=3, ge=1)
    """Consecutive successful health checks before it fails back from its backup."""

    keep_shape: bool = True
    """Whether a model's version is kept with the instances and cores that it is served with here, to be served with
    them again. Not for services that only try a version out."""

    env: Variables = Field(default_factory=FrozenDict)
    """Environment variables of the instances: texts, or references to secrets."""

    auth: SecretText | None = None
    """A reference to the bearer token that requests must carry: ``sf.secret("env:NAME")``, or ``file:``. Unset:
    requests need no token."""

    clients: Annotated[Sequence[Annotated[str, AfterValidator(_check_client)]], AfterValidator(as_tuple)] | None = None
    """The clients that may send requests, over HTTP and gRPC: ``CN=NAME`` for each, the subject of a certificate of the
    authority that the home trusts (``scanflow pki issue NAME``). Requests need one of them, and TLS. Unset: no client
    certificate is asked for."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.auth is not None and not re.fullmatch("(env|file):.+", self.auth):
            raise InvalidError(
                "Serving.auth is a reference to the token, not the token itself. Write env:NAME or file:PATH."
            )
        if self.clients == ():
            raise InvalidError(
                "Serving.clients is empty: nobody could send a request. Name a client: clients=['CN=ada']. Or leave it "
                "out, and no certificate is asked for."
            )
        if self.port is not None and self.port == self.grpc_port:
            raise InvalidError(
                f"Serving has port {self.port} for both HTTP and gRPC. Give gRPC another, or none: grpc_port=0."
            )
        return self

    @property
    def max_request_bytes(self) -> int:
        """The largest body of a request, in bytes."""
        return parse_memory(self.max_request, least=1)
