"""Opens MLflow for one operation: imported lazily, with a bounded wait, silenced, its errors translated."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from scanflow.errors import InvalidError, MissingExtraError, NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.files.disk import find_full_disk
from scanflow.installation import explain_install
from scanflow.knowledge.artifact_locations import move_artifact_addresses
from scanflow.knowledge.mlflow.database import check_database, make_database
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening
from scanflow.knowledge.mlflow.rest_client import Client, RestClient
from scanflow.knowledge.step_environment import TrackerPlace, find_sqlite_path
from scanflow.text.masking import mask_place
from scanflow.transport.mlflow_api import MlflowApiError

if TYPE_CHECKING:
    from mlflow import MlflowClient

_log = logging.getLogger(__name__)

# Read by MLflow from the environment and from nowhere else; set once, before it loads, unless the user has decided.
# They are never taken away again: a thread that copies os.environ at that moment would fail.
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # else it reports what is called to its makers' server
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # a library draws nothing,
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # and prints nothing: with a server, each run's end would
}
_CONNECT_S = 2.0
"""After this time a connection attempt is repeated. An attempt made at the moment when a cluster's Service appears
may never succeed, because the kernel keeps its first route; the next attempt reaches a pod."""

_STARTS_S = 30.0
"""Longest time until the server of the home's tracker listens."""

_RESTART_POLL_S = 0.1
_DISK_ERRORS = ("disk I/O error", "disk is full", "unable to open database", "No space left")
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


class MlflowConnection:
    """Provides a client for one tracker. Creating the connection does not load MLflow."""

    def __init__(
        self, place: TrackerPlace, *, connect_timeout_s: float, served: bool = False, token: str | None = None
    ) -> None:
        """``served``: use the server of the home's tracker while it runs, instead of loading MLflow. ``token``: of a
        tracking server, whose REST API is then used without loading MLflow."""
        if importlib.util.find_spec("mlflow") is None:
            raise MissingExtraError(
                f"The knowledge base needs MLflow, which is not installed. {explain_install('local')}"
            )
        self.place = place
        self._connect_timeout_s, self._served, self._token = connect_timeout_s, served, token
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}

    @contextmanager
    def open(self, doing: str) -> Generator[Client, None, None]:
        """Open the client for one operation; ``doing`` completes "could not ..." in the error.

        The tracker is asked for a sign of life first: MLflow itself would retry for minutes where there is none. One
        that stops answering half-way is retried by MLflow (MLFLOW_HTTP_REQUEST_MAX_RETRIES,
        MLFLOW_HTTP_REQUEST_TIMEOUT).
        """
        socket_path = find_server_socket(self.place) if self._served else None
        uri = self.place.tracking_uri if socket_path is None else str(socket_path)
        where = mask_place(uri)
        if socket_path is not None:
            _wait_for_socket(socket_path)
        else:
            _check_reachable(uri, self._connect_timeout_s)
        with_mlflow = socket_path is None and not self._uses_token
        if with_mlflow:
            _import_mlflow()  # before it is kept quiet: it brings the handlers that would print
        with _redirect_logs():
            try:
                with self._lock:
                    if uri not in self._clients:
                        self._clients[uri] = (
                            self._load() if with_mlflow else RestClient(uri, token=self._token, socket=socket_path)
                        )
                yield self._clients[uri]
            except list_refusal_types() as error:
                raise _translate_error(error, doing, where, self.place) from error
            except _get_outside_errors() as error:
                raise UnavailableError(f"Could not {doing} in {where}: {error}. Fix that, then try again.") from error

    @property
    def _uses_token(self) -> bool:
        return self._token is not None and self.place.tracking_uri.startswith(("http://", "https://"))

    def _load(self) -> MlflowClient:
        from mlflow import MlflowClient

        path = find_sqlite_path(self.place.tracking_uri)
        if path is not None:
            root = self.place.artifact_root or path.parent / "artifacts"
            make_database(path, root)
            move_artifact_addresses(path, root)
        return MlflowClient(tracking_uri=self.place.tracking_uri, registry_uri=self.place.tracking_uri)


def _import_mlflow() -> None:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    importlib.import_module("mlflow.exceptions")


def _wait_for_socket(path: Path) -> None:
    """Wait until the home's server listens: its process is there, or was until a moment ago."""
    give_up = time.monotonic() + _STARTS_S
    try:
        while not is_listening(path):
            if time.monotonic() >= give_up:
                raise UnavailableError(
                    f"The tracker's server at {str(path)!r} does not listen after {_STARTS_S:.0f} s. See: scanflow "
                    "status"
                )
            time.sleep(_RESTART_POLL_S)
    except OSError as error:
        raise UnavailableError(f"The tracker's server at {str(path)!r} cannot be reached: {error}.") from error


def _check_reachable(uri: str, timeout_s: float) -> None:
    parts = urlsplit(uri)
    try:
        if parts.scheme in {"http", "https"}:
            _ask_health(parts, timeout_s)
        elif parts.scheme == "sqlite":
            path = find_sqlite_path(uri)
            assert path is not None
            check_database(path)
        elif parts.hostname:
            port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
            if port is not None:
                socket.create_connection((parts.hostname, port), timeout=timeout_s).close()
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UnavailableError(
            f"The tracker at {mask_place(uri)} does not answer: {reason}. "
            "Check that it runs and that the address is right, then try again."
        ) from error


def _ask_health(parts: SplitResult, timeout_s: float) -> None:
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/") + "/health").geturl()
    give_up, wait_s = time.monotonic() + timeout_s, min(_CONNECT_S, timeout_s)
    while True:
        try:
            with urllib.request.urlopen(address, timeout=wait_s):  # noqa: S310  the scheme was checked: http or https
                return
        except urllib.error.HTTPError as error:  # an answer, too: behind a proxy, /health may be another's or forbidden
            error.close()
            return
        except TimeoutError:  # there is a connection, and the answer takes its time
            if wait_s == timeout_s:
                raise
            wait_s = timeout_s
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):  # MLflow has settings of its own for certificates
                return
            if not isinstance(error.reason, TimeoutError) or time.monotonic() >= give_up:
                raise


def list_refusal_types() -> tuple[type[MlflowApiError], ...]:
    """Return the API errors of both clients; MLflow's own only where it is loaded."""
    loaded = sys.modules.get("mlflow.exceptions")
    return (MlflowApiError,) if loaded is None else (MlflowApiError, loaded.MlflowException)


def _get_outside_errors() -> tuple[type[Exception], ...]:
    """Return the errors of other libraries that MLflow passes on: those of requests are OSErrors."""
    loaded = sys.modules.get("sqlalchemy.exc")
    return (OSError,) if loaded is None else (OSError, loaded.SQLAlchemyError)


def _translate_error(error: MlflowApiError, doing: str, where: str, place: TrackerPlace) -> ScanflowError:
    text = str(error).strip().partition("\n")[0][:2000]
    message = f"Could not {doing} in {where}: {text}"
    if "out-of-date database schema" in text:
        return UsageError(
            f"Could not {doing}: the database {where} was created by another version of MLflow than the installed "
            f"one. Back it up, then run: mlflow db upgrade '{where}'"
        )
    match error.error_code:
        case "RESOURCE_DOES_NOT_EXIST" | "NOT_FOUND":
            return NotFoundError(message)
        case "INVALID_PARAMETER_VALUE" | "BAD_REQUEST" | "RESOURCE_ALREADY_EXISTS":
            return InvalidError(f"{message}{' See the models: scanflow models' if 'model name' in text else ''}")
        case "PERMISSION_DENIED" | "UNAUTHENTICATED" | "CUSTOMER_UNAUTHORIZED":
            return UsageError(
                f"{message} Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
            )
        case "ENDPOINT_NOT_FOUND":
            return UsageError(
                f"{message} The server at this address is not an MLflow tracking server: check the address."
            )
        case _:
            return UnavailableError(f"{message} {_explain_failure(text, place)}")


def _explain_failure(text: str, place: TrackerPlace) -> str:
    """Return what to do about an error of MLflow's; SQLite calls a full disk an input/output error."""
    path = find_sqlite_path(place.tracking_uri)
    full = None if path is None or not any(words in text for words in _DISK_ERRORS) else find_full_disk(path)
    return "Try again." if full is None else f"Its disk is full: no space left on {full}. Free space, then try again."


@contextmanager
def _redirect_logs() -> Generator[None, None, None]:
    """Redirect MLflow's log records of this thread from the terminal to our own log, at debug level."""
    thread = threading.get_ident()

    def mute(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        _log.debug("%s: %s", record.name, record.getMessage())
        return False

    handlers = [*logging.getLogger("mlflow").handlers, *logging.getLogger("alembic").handlers]
    for handler in handlers:
        handler.addFilter(mute)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(mute)
