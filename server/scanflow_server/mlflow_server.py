"""``python -m scanflow_server.mlflow_server [--port PORT]``: MLflow's server, one process, for Scanflow's server alone.

Over the tracker of the home it listens on a Unix socket that only the home's user can open. With ``--port``, as in a
cluster, it asks every request for the token in ``SCANFLOW_TRACKER_TOKEN``, and reads its store from MLflow's variables.
MLflow is loaded by the first request that needs it.
"""

from __future__ import annotations

import argparse
import ctypes
import hmac
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import uvicorn
from starlette.requests import Request

from scanflow.errors import InvalidError, ScanflowError, UsageError
from scanflow.http.body_limits import SEND_LESS, read_body
from scanflow.http.connections import LimitedConnection
from scanflow.http.home_token import parse_step_token
from scanflow.http.security import App, Receive, Scope, Send, read_bearer_token
from scanflow.http.tls_server import TlsServer
from scanflow.knowledge.artifact_locations import move_artifact_addresses
from scanflow.knowledge.mlflow.mlflow_socket import listen_as_server
from scanflow.knowledge.step_environment import TrackerPlace, find_sqlite_path, locate_tracker
from scanflow.processes.home_watch import end_with_home
from scanflow.settings import Settings
from scanflow_server.mlflow_access import MAX_DOCUMENT_BYTES, ArtifactAddresses, classify_request, names_location
from scanflow_server.mlflow_teams import TeamRequests, answer, format_refusal, load_app, replace_body, set_team

TOKEN = "SCANFLOW_TRACKER_TOKEN"  # noqa: S105  the name of the variable
_HEALTH = "/health"
_log = logging.getLogger(__name__)

_REMOVED_VARIABLES = (
    "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_ENABLE_WORKSPACES",
)  # fmt: skip


class LazyApp:
    """An ASGI application that is loaded by the first request. ``/health`` answers without it."""

    def __init__(self, load: Callable[[], App]) -> None:
        self._load = load
        self._app: App | None = None
        self._lock = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == _HEALTH:
            await answer(send, 200, b"OK")
            return
        async with self._lock:
            if self._app is None:
                self._app = await anyio.to_thread.run_sync(self._load)
        await self._app(scope, receive, send)


class TokenCheck:
    """Answers only requests with its token, or one signed with it, as pods have. ASGI middleware.

    Pods track and register, as through Scanflow's server. ``/health`` needs no token.
    """

    def __init__(self, app: App, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = read_bearer_token(scope["headers"]) or ""
        if scope["path"] == _HEALTH or hmac.compare_digest(token.encode(), self._token.encode()):
            await self._app(scope, receive, send)
        elif (pod := parse_step_token(self._token, token)) is None:
            await answer(
                send, 401, format_refusal("UNAUTHENTICATED", "The token in MLFLOW_TRACKING_TOKEN is missing or wrong.")
            )
        else:
            await self._serve_pod(Request(set_team(scope, pod[1]), receive), send)

    async def _serve_pod(self, request: Request, send: Send) -> None:
        method, path = request.method, str(request.scope["path"])
        if classify_request(method, path) is None:
            await answer(send, 404, format_refusal("ENDPOINT_NOT_FOUND", f"{method} {path!r:.200} is not offered."))
            return
        scope, receive = request.scope, request.receive
        if names_location(method, path):
            try:
                body = await read_body(receive, max_bytes=MAX_DOCUMENT_BYTES, advice=SEND_LESS)
                body = ArtifactAddresses(None).convert_request(body)
                scope, receive = replace_body(scope, body)
            except InvalidError as error:
                await answer(send, 422, format_refusal("INVALID_PARAMETER_VALUE", str(error)))
                return
        await self._app(scope, receive, send)


def build_environment(place: TrackerPlace) -> dict[str, str]:
    """Return the variables of MLflow's server over a tracker of this machine.

    They are those that ``mlflow server`` sets for its workers; an address may hold a password, so it is no argument.
    """
    assert place.artifact_root is not None
    return {
        "_MLFLOW_SERVER_FILE_STORE": place.tracking_uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": place.tracking_uri,
        # Files, for clients of this machine that write them themselves; Scanflow's server names them
        # `mlflow-artifacts:` to all others, and those are streamed.
        "_MLFLOW_SERVER_ARTIFACT_ROOT": place.artifact_root.as_uri(),
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": place.artifact_root.as_uri(),
    }


def build_port_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the same for a server that is told its store by the variables of ``mlflow server``.

    Raises:
        UsageError: one is missing.
    """
    needed = ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION", TOKEN)
    if missing := [name for name in needed if not environ.get(name)]:
        raise UsageError(f"The tracker needs {' and '.join(missing)}. Set what is missing, then start it again.")
    store, artifacts, _ = (environ[name] for name in needed)
    return {
        "_MLFLOW_SERVER_FILE_STORE": store,
        "_MLFLOW_SERVER_REGISTRY_STORE": store,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
    }


_COMMON = {
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "_MLFLOW_SGI_NAME": "uvicorn",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes for an unused feature
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",  # hosts and origins are checked by whoever is let in here
    "GIT_PYTHON_REFRESH": "quiet",
}


def _load_mlflow_at_port(environment: str | None) -> App:
    app = _load_mlflow(None)
    app.open_stores()
    if environment is not None:
        name, _, team = environment.partition("/")
        try:
            app.make_experiment(name, team)
        except ScanflowError as error:  # the step that logs to it is refused in the same words
            _log.warning("The experiment of %s is not made: %s", environment, error)
    return app


def _load_mlflow(root: Path | None) -> TeamRequests:
    for name in _UNUSED_LIBRARIES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # Python's own way to say that one is missing
    return load_app(ArtifactAddresses(root))


_UNUSED_LIBRARIES = ("pyarrow", "pygments", "scipy")
"""Loaded by pandas and MLflow where they are installed: 55 MiB, for tables and terminals that this server has not."""


def _prepare_home() -> tuple[socket.socket, Callable[[], App]]:
    """Return the listener of the home's tracker, and what loads MLflow and makes its database."""
    settings = Settings.from_environment()
    place = locate_tracker(settings.home.expanduser(), settings.tracker_uri)
    os.environ.update(build_environment(place))
    listener = listen_as_server(place)
    end_with_home(place.notes.parent)
    path = find_sqlite_path(place.tracking_uri)
    if path is not None and place.artifact_root is not None:
        move_artifact_addresses(path, place.artifact_root)
    maker = _start_database_maker(place)

    def load() -> App:
        app = _load_mlflow(place.artifact_root)
        if maker is not None and maker.wait() != 0 and (again := _start_database_maker(place)) is not None:
            again.wait()
        app.open_stores()
        return app

    return listener, load


def _start_database_maker(place: TrackerPlace) -> subprocess.Popen[bytes] | None:
    """Start the process that makes the database of SQLite, if it is missing; else return None.

    A process of its own, as that takes 40 MiB, which a process does not give back; and at once, as it takes seconds.
    """
    path = find_sqlite_path(place.tracking_uri)
    if path is None or place.artifact_root is None or path.exists():
        return None
    return subprocess.Popen([sys.executable, "-m", "scanflow.knowledge.mlflow.database", path, place.artifact_root])


def _limit_memory() -> None:
    """Keep one heap for all threads, and give back what a request took: else each thread keeps some 10 MiB.

    ``M_ARENA_MAX`` and ``M_TRIM_THRESHOLD`` of mallopt(3), where the C library is glibc.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-8, 1)
        mallopt(-1, 128 * 1024)


def _listen_on_port(port: int) -> socket.socket:
    listener = socket.create_server(("", port), reuse_port=False)
    listener.setblocking(False)
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit code: 2 for wrong usage, 3 if another process serves the tracker."""
    parser = argparse.ArgumentParser(prog="python -m scanflow_server.mlflow_server", description="MLflow's server.")
    parser.add_argument("--port", type=int, help="listen on all addresses, with the token in " + TOKEN)
    parser.add_argument("--environment", metavar="APP/TEAM", help="with --port, whose experiment is made at the start")
    options = parser.parse_args(argv)
    port: int | None = options.port
    os.umask(0o077)  # its files are private to the user
    _limit_memory()
    for name in _REMOVED_VARIABLES:
        os.environ.pop(name, None)
    try:
        if port is None:
            listener, load = _prepare_home()
            app: App = LazyApp(load)
        else:
            os.environ.update(build_port_environment(os.environ))
            app = TokenCheck(LazyApp(partial(_load_mlflow_at_port, options.environment)), os.environ[TOKEN])
            listener = _listen_on_port(port)
    except ScanflowError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UsageError) else 3
    os.environ.update(_COMMON)
    config = uvicorn.Config(
        app, http=LimitedConnection, lifespan="off", access_log=False, log_level="warning", timeout_graceful_shutdown=5
    )
    TlsServer(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
