"""What a service's supervisor and its instances say to each other: plain frozen data, written as JSON.

Dataclasses and nothing else, since an instance imports this and is to stay small. :func:`encode` and :func:`decode` are
the only ways in and out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from scanflow.errors import InvalidError

__all__ = [
    "Batching",
    "Desired",
    "Exchange",
    "InstanceSpec",
    "Limits",
    "ModelFiles",
    "Node",
    "Recording",
    "Revision",
    "decode",
    "encode",
]

Role = Literal["MODEL", "TRANSFORMER", "ROUTER", "COMBINER", "OUTPUT_TRANSFORMER"]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """One version of a registered model, fetched already."""

    name: str
    version: int
    path: str
    """The absolute folder that holds its files, ``MLmodel`` among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Requests that wait are answered together."""

    max_size: int
    """Most rows in one call."""

    max_delay_s: float = 0.0
    """Longest that a request waits for company, in seconds; 0: only for those that are there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of an inference graph, ready to be loaded: exactly one of ``implementation`` and ``model`` is set."""

    name: str
    role: Role = "MODEL"
    parents: tuple[str, ...] = ()
    """The nodes whose result it takes, in the order of the workflow's nodes; none: the request itself."""

    implementation: str | None = None
    """A class, as ``file.py:Class`` or ``package.module:Class``."""

    file: str | None = None
    """The absolute path of ``file.py``, where the implementation is in a file."""

    model: ModelFiles | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    batching: Batching | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A loaded graph and its share of the traffic. Several live side by side in one instance."""

    id: str
    nodes: tuple[Node, ...]
    weight: float = 1.0
    """Its share of the requests; the weights of all that are no shadows sum to 1."""

    shadow: bool = False
    """It gets a copy of every request, and its answers are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What an instance should serve. Level-triggered: the newest generation counts, whatever was said before."""

    generation: int
    revisions: tuple[Revision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What protects an instance, and its callers from one another."""

    deadline_s: float = 30.0
    """Longest that a request may take; it is then answered 504."""

    queue: int = 128
    """Most requests that wait or run in one instance; the next is answered 429."""

    max_request_bytes: int = 64 * 1024 * 1024
    """Largest body; a larger one is answered 413."""

    connection_age_s: float = 300.0
    """After this a connection is handed to another instance or closed between two requests; 0: never."""

    concurrency: int = 1
    """Calls of components at the same time in one instance. More than 1 asks that they are thread-safe."""

    allow_nan: bool = False
    """Whether inputs may hold NaN or infinity; otherwise such a request is answered 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Predictions are written down, so that agents can count and check them."""

    folder: str
    """Where finished files of predictions appear, to be taken to the tracker."""

    fraction: float = 1.0
    """How many of the predictions, from 0 to 1."""

    flush_s: float = 5.0
    """Longest that a prediction waits in memory."""

    rows: int = 1000
    """Most predictions in one file."""

    max_bytes: int = 256 * 1024 * 1024
    """Most that may wait in the folder; what comes then is dropped, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """What an instance is told once, when it starts: ``instance.json`` in its folder."""

    service: str
    """The name of the online workflow."""

    app: str
    team: str
    instance: str
    """This instance's name inside the service."""

    folder: str
    """Its own folder: ``instance.json``, the control socket ``control``, its logs."""

    supervisor: str
    """The Unix socket of the supervisor, to which a dead instance's connections are given."""

    desired: str
    """The file that holds the newest :class:`Desired`."""

    address: str
    """``host:port`` as its callers see it; for messages only, since listening sockets are handed to it."""

    grpc_port: int | None = None
    """Shared by all instances with SO_REUSEPORT; None: no gRPC."""

    host: str = "127.0.0.1"
    app_dir: str = "."
    """Relative paths of the user's code are relative to it; it is put on the path."""

    metrics: str = ""
    """The folder through which the instances of a service share their metrics."""

    cpus: tuple[int, ...] = ()
    """Logical CPUs it may run on; none: any."""

    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes whose memory it should use; none: any."""

    pin_threads: bool = False
    """CPUMEMPIN: each worker thread on a core of its own."""

    threads: dict[str, str] = field(default_factory=dict)
    """The thread guard's variables, set before anything is imported."""

    cores: float = 1.0
    """What it was granted; more threads than these at work break the budget."""

    limits: Limits = field(default_factory=Limits)
    recording: Recording | None = None

    aliases: tuple[str, ...] = ()
    """Services it stands in for as their backup: the whole graph answers under these names too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One message on a control socket (``SOCK_SEQPACKET``), either way; open files travel with it (``SCM_RIGHTS``).

    Supervisor to instance:

    ``listen``   accept on this listening socket too (one fd); ``key`` names it
    ``ignore``   accept on the listener ``key`` no longer; what waits in its queue waits for somebody else
    ``apply``    ``body`` is a :class:`Desired`: load and warm what is new, switch, unload the rest
    ``state``    tell how you are
    ``take``     serve this connection (one fd). With a second fd (a memfd): these bytes were read from it already,
                 and ``body["replays"]`` says how often they were tried before
    ``share``    ``give`` ``body["connections"]`` connections to others, each between two requests
    ``drain``    accept no more, answer what is begun, ``give`` every idle connection, then exit with 0

    Instance to supervisor, on the same connection:

    ``reply``    ``body`` answers the message of the same ``key``
    ``give``     take this idle connection (one fd, and a memfd where bytes were read already)

    The keeper of a dead instance to the supervisor's own socket:

    ``orphan``   a connection of it (one fd, and a memfd for what was read of a request that was not answered);
                 ``body``: ``instance``, ``phase`` (``idle``, ``waiting``, ``running``, ``answering``),
                 ``replays``, and ``whole`` (whether the memfd holds all that was read)
    """

    kind: Literal["listen", "ignore", "apply", "state", "take", "share", "drain", "reply", "give", "orphan"]
    key: str = ""
    body: dict[str, Any] = field(default_factory=dict)


def encode(message: object) -> bytes:
    """Return a message as JSON."""
    return json.dumps(asdict(message), separators=(",", ":")).encode()  # type: ignore[call-overload]


def decode(kind: type[_T], text: bytes | str | Mapping[str, Any]) -> _T:
    """Return the message of that class, from JSON or from what JSON held.

    Raises:
        InvalidError: it is none; the message names the field.
    """
    try:
        found = text if isinstance(text, Mapping) else json.loads(text)
    except ValueError as error:
        raise InvalidError(f"This is no {kind.__name__}: {error}.") from error
    built: _T = _build(kind, found, kind.__name__)
    return built


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(wanted: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return value
    if origin is Literal:
        if value not in inner:
            raise InvalidError(f"{where} cannot be {value!r}. Known: {', '.join(map(str, inner))}.")
        return value
    if origin in {Union, UnionType}:
        real = [one for one in inner if one is not NoneType]
        return None if value is None else _build(real[0], value, where)
    if origin is tuple:
        return tuple(_build(inner[0], one, f"{where}[{place}]") for place, one in enumerate(_is(list, value, where)))
    if origin is dict:
        return {str(name): _build(inner[1], one, f"{where}.{name}") for name, one in _is(dict, value, where).items()}
    if is_dataclass(wanted):
        given, hints = _is(dict, value, where), _hints(wanted)  # type: ignore[arg-type]
        known = {one.name for one in fields(wanted)}
        if unknown := set(given) - known:
            raise InvalidError(f"{where} has no field {min(unknown)!r}.")
        built = {name: _build(hints[name], one, f"{where}.{name}") for name, one in given.items()}
        try:
            return wanted(**built)  # type: ignore[operator]
        except TypeError as error:
            raise InvalidError(f"{where} is not complete: {error}.") from error
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _is(wanted, value, where)


def _is(kind: type, value: Any, where: str) -> Any:
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    if kind is list and isinstance(value, tuple):
        return value
    raise InvalidError(f"{where} cannot be {value!r:.60}: it should be a {kind.__name__}.")
