"""The messages between a service's supervisor and its instances: frozen dataclasses, written as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from scanflow.errors import InvalidError
from scanflow.http.tls_files import TlsFiles

Role = Literal["MODEL", "TRANSFORMER", "ROUTER", "COMBINER", "OUTPUT_TRANSFORMER"]
_T = TypeVar("_T")

DRAIN_IDLE_S: Final = 15.0
"""How long a draining instance keeps idle connections."""

SHORT_IDLE_S: Final = 2.0
"""The same if memory is low, or the whole service stops."""

INVALID_STATUSES: Final = range(400, 422)
"""The statuses of requests that were refused before any model got them. They say nothing about a revision, neither by
their latency, which is next to none, nor as errors. A model's own refusal is 422."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    name: str
    version: int
    path: str
    """The absolute folder that holds its files, ``MLmodel`` among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel(ModelFiles):
    """A version as the registry has it now. What is served is its files alone."""

    rejection: str | None = None
    """By whom it was rejected, and why."""

    @property
    def files(self) -> ModelFiles:
        return ModelFiles(name=self.name, version=self.version, path=self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    max_size: int
    max_delay_s: float = 0.0
    """0: batch only requests that are already waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of an inference graph: exactly one of ``implementation`` and ``model`` is set."""

    name: str
    role: Role = "MODEL"
    parents: tuple[str, ...] = ()
    """The nodes whose result it takes, in the order of the workflow's nodes; empty: the request itself."""

    implementation: str | None = None
    file: str | None = None
    """The absolute path of ``file.py``, where the implementation is in a file."""

    model: ModelFiles | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    batching: BatchingOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A loaded graph and its share of the traffic. Several live side by side in one instance."""

    id: str
    nodes: tuple[Node, ...]
    weight: float = 1.0
    """Its share of the requests; the weights of all revisions that are not shadows sum to 1."""

    shadow: bool = False
    """It gets a copy of every request, and its responses are only compared and counted."""

    @property
    def models(self) -> dict[str, str]:
        """The address of the version that a node serves, by the node's name."""
        return {
            node.name: f"models:/{node.model.name}/{node.model.version}"
            for node in self.nodes
            if node.model is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredInstanceState:
    """The desired state of an instance. The newest generation counts."""

    generation: int
    revisions: tuple[Revision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that protect an instance, and its clients from one another: :class:`scanflow.app.serving.Serving`'s."""

    deadline_s: float = 30.0
    queue: int = 128
    max_request_bytes: int = 64 * 1024 * 1024
    """Applies after decompression too."""

    connection_age_s: float = 300.0
    concurrency: int = 1
    allow_nan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    folder: str
    """The folder with finished files of predictions, to be uploaded to the tracker."""

    fraction: float = 1.0
    """The recorded share of the predictions, from 0 to 1."""

    flush_s: float = 5.0
    rows: int = 1000
    max_bytes: int = 256 * 1024 * 1024
    """Largest size of waiting files in the folder; later predictions are dropped, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """The start parameters of an instance: ``instance.json`` in its folder."""

    service: str
    app: str
    team: str
    instance: str
    folder: str
    """Its own folder: ``instance.json``, the control socket ``control``, its logs."""

    desired: str
    """The file that holds the newest :class:`DesiredInstanceState`."""

    address: str
    """``host:port`` of HTTP as clients see it; for messages only."""

    listen_fd: int = -1
    """The inherited, listening HTTP socket, which all instances share; -1: none until a ``listen`` message."""

    http_port: int = 0
    """The port of an instance without a supervisor, which listens by itself; 0: it does not."""

    management_port: int = 0
    """The port of such an instance for metrics and its state."""

    grpc_port: int | None = None
    """Shared by all instances with SO_REUSEPORT; None: no gRPC."""

    host: str = "127.0.0.1"
    app_dir: str = "."
    """Relative paths of the user's code are relative to it; it is put on the import path."""

    auth: str = ""
    """A reference to the data plane's bearer token: ``env:NAME`` or ``file:PATH``. Empty: no token is needed."""

    secrets: dict[str, str] = field(default_factory=dict)
    """References to the secrets that variables of its environment get: ``env:NAME``, ``file:PATH``,
    ``k8s:SECRET/KEY``."""

    masked: tuple[str, ...] = ()
    """References to what is masked in its output, in addition: it inherits the variables."""

    tls: TlsFiles | None = None
    """What it serves TLS with, over HTTP and gRPC; None: it serves without."""

    clients: tuple[str, ...] | None = None
    """The subjects of the client certificates that are let in, ``CN=NAME``; None: no certificate is asked for."""

    cpus: tuple[int, ...] = ()
    """Logical CPUs it may run on; empty: any."""

    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes whose memory it should use; empty: any."""

    pin_threads: bool = False
    """CPUMEMPIN: each thread that computes is pinned to one CPU."""

    threads: dict[str, str] = field(default_factory=dict)
    cores: float = 1.0
    limits: Limits = field(default_factory=Limits)
    recording: Recording | None = None
    drain_idle_s: float = DRAIN_IDLE_S
    """While draining, and after ``ignore``: how long a connection may be idle before it is closed. A client that
    sends at the moment of closing gets no answer, so it is as long as clients keep unused connections."""

    linger_s: float = 0.0
    """How long it still accepts connections after it was told to stop, each for one answer: for load balancers that
    learn of its end late. 0: processes that share its socket accept them."""

    aliases: tuple[str, ...] = ()
    """Services whose backup it is: the whole graph answers under these names too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """How requests are taken from a listening socket: by the service whose it is, and not by who accepts."""

    tls: TlsFiles | None = None
    clients: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlMessage:
    """One message on an instance's control socket (``SOCK_SEQPACKET``); open files are passed with it (``SCM_RIGHTS``).

    ``apply``    ``body`` is a :class:`DesiredInstanceState`: load and warm what is new, switch, unload the rest
    ``state``    see :meth:`scanflow_serving.routes.ServingApplication.describe_state`; with
                 samples if ``body["metrics"]``;
                 ``body["others"]``: the samples of the service's other instances, for ``/metrics``
    ``listen``   accept on this listening socket too (one fd), with TLS by ``body``, a :class:`ListenerTls`, until
                 ``ignore`` with the same ``key``, or until the connection that this came by is closed
    ``ignore``   accept there no longer; its connections get ``Connection: close`` on their next response
    ``drain``    accept no more, finish what was read, close connections, exit with 0; ``body["idle_s"]`` in place of
                 :attr:`InstanceSpec.drain_idle_s`
    ``reply``    from the instance: ``body`` answers the message of the same ``key``
    """

    kind: Literal["apply", "state", "listen", "ignore", "drain", "reply"]
    key: str = ""
    body: dict[str, Any] = field(default_factory=dict)


def read_token(reference: str, folder: Path) -> str | None:
    """Return the secret that ``env:NAME`` or ``file:PATH``, relative to ``folder``, refers to; None for ""."""
    kind, _, place = reference.partition(":")
    if not reference:
        return None
    if kind == "env":
        token = os.environ.get(place, "")
    elif kind == "file":
        try:
            token = (folder / Path(place).expanduser()).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidError(f"The token that {reference!r} refers to cannot be read: {error}.") from error
    else:
        raise InvalidError("auth must be 'env:NAME' or 'file:PATH', a reference to the token, not the token itself.")
    if not token.strip():
        raise InvalidError(f"There is no token in {reference!r}.")
    return token.strip()


def encode(message: object) -> bytes:
    import msgspec

    return msgspec.json.encode(message)


def decode(kind: type[_T], text: bytes | str | Mapping[str, Any]) -> _T:
    """Return the message of that class, from JSON or a JSON value; InvalidError names the invalid field."""
    import msgspec

    try:
        if isinstance(text, Mapping):
            return msgspec.convert(text, kind)
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InvalidError(f"This is not a valid {kind.__name__}: {error}.") from error
