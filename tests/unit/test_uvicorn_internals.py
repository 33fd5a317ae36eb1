"""What of uvicorn is overridden, or read beyond its documented API, by name: a version without it says so."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from scanflow.http.connections import LimitedConnection
from scanflow.http.tls_server import TlsServer
from scanflow_agents.host.http_api import QuietServer
from scanflow_server.http_server import Server
from scanflow_serving.instance_http import Connection

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

PROTOCOL = {
    "__init__": "config server_state app_state _loop",
    "connection_lost": "exc",
    "connection_made": "transport",
    "data_received": "data",
    "eof_received": "",
    "on_headers_complete": "",
    "on_message_begin": "",
    "on_message_complete": "",
    "on_response_complete": "",
    "send_400_response": "msg",
    "_start_asgi_task": "cycle app",
}
SERVER = {
    "__init__": "config",
    "capture_signals": "",
    "handle_exit": "sig frame",
    "main_loop": "",
    "startup": "sockets",
}
READ = {
    HttpToolsProtocol: "cycle flow headers loop pipeline scope transport",
    RequestResponseCycle: "disconnected flow keep_alive message_event more_body on_response response_complete "
    "response_started scope transport",
    ServerState: "connections default_headers tasks",
    uvicorn.Server: "config server_state should_exit",
}


def explain(what: str) -> str:
    return (
        f"uvicorn {uvicorn.__version__} has no {what}, which our servers override or read. Bring them to this version, "
        "or bound uvicorn below it: pyproject.toml."
    )


def list_overridden(ours: type, theirs: type) -> set[str]:
    return {name for name, value in vars(ours).items() if inspect.isfunction(value) and hasattr(theirs, name)}


@pytest.mark.parametrize(
    ("theirs", "signatures", "subclasses"),
    [
        (HttpToolsProtocol, PROTOCOL, (LimitedConnection, Connection)),
        (uvicorn.Server, SERVER, (TlsServer, Server, QuietServer)),
    ],
    ids=["protocol", "server"],
)
def test_uvicorn_has_each_method_that_is_overridden(
    theirs: type, signatures: dict[str, str], subclasses: tuple[type, ...]
) -> None:
    for name, parameters in signatures.items():
        method: Any = getattr(theirs, name, None)
        assert method is not None, explain(f"{theirs.__name__}.{name}")
        actual = " ".join(list(inspect.signature(method).parameters)[1:])
        assert actual == parameters, explain(f"{theirs.__name__}.{name} of ({parameters}), but of ({actual})")
    assert set().union(*(list_overridden(ours, theirs) for ours in subclasses)) == set(signatures)


@pytest.mark.parametrize("theirs", READ, ids=lambda theirs: str(theirs.__name__))
def test_uvicorn_has_each_attribute_that_is_read(theirs: Any) -> None:
    for name in READ[theirs].split():
        assert name in theirs.__init__.__code__.co_names, explain(f"{theirs.__name__}.{name}")
    assert len(httptools_impl.STATUS_LINE), explain("STATUS_LINE")


def test_the_next_minor_version_of_uvicorn_is_bounded_out_of_every_extra() -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    bounds = {extra: line for extra, lines in extras.items() for line in lines if line.startswith("uvicorn")}
    next_minor = f"0.{int(uvicorn.__version__.split('.')[1]) + 1}"
    expected = dict.fromkeys(("serving", "server", "agents"), f"uvicorn>=0.53,<{next_minor}")
    assert bounds == expected, (
        f"uvicorn {uvicorn.__version__} is tested here. Bound it by {next_minor} in pyproject.toml."
    )
